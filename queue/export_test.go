package queue

import "time"

// Mutant drops one safety rule of a publisher.
type Mutant = mutant

// Mutants of the publisher, by the rule they drop.
var Mutants = map[string]mutant{
	"one batch in flight per producer and type": {severalInFlight: true},
	"repeat the same documents":                 {freshIDs: true},
	"new producer number after a failure":       {keepNumber: true},
	"never rejected what may have landed":       {lastAnswerOnly: true},
	"a pause rejects only what was never sent":  {pauseSent: true},
	"what is refused uses no number":            {numberRefused: true},
}

// ResumeMutants drop rules of Resume.
var ResumeMutants = map[string]mutant{
	"numbers are saved before they are used": {noCheckpoint: true},
	"a repetition has the same IDs":          {freshIDsAgain: true},
}

// NoPauseMutant publishes under a new producer number at once.
var NoPauseMutant = mutant{noPause: true}

// Mutate makes p drop a rule. Call it before the first message.
func (p *Publisher) Mutate(m Mutant) { p.mutant = m }

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
