package queue

import "time"

// Streams counts the types that have a stream.
func (p *Publisher) Streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

// WaitingItems counts the slots of a type's queue, withdrawn ones included.
func (p *Publisher) WaitingItems(typ string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams[typ].waiting)
}

const RotationPause time.Duration = rotationPause

// The bounds of the pause between two attempts.
const (
	MinRepeatWait = minRepeatWait
	MaxRepeatWait = maxRepeatWait
)
