package worker

import (
	"github.com/fencepost/fencepost/queue"
)

// EventKind says what has happened.
type EventKind int

// Kinds of events, for Config.Events.
const (
	Acquired  EventKind = iota + 1 // a session of the type has begun
	Released                       // … and ended in order
	Lost                           // … or by an error: a lost lease, a failing disk
	Committed                      // messages are durable in the file, or were handled
	Dead                           // a message was put aside
	Rotated                        // the file reached its size limit and goes on in another one
)

func (k EventKind) String() string {
	if k < Acquired || k > Rotated {
		return "unknown"
	}
	return [...]string{"acquired", "released", "lost", "committed", "dead", "rotated"}[k-Acquired]
}

// Event is something that has happened to a type in this pool. Those of one type come one at a time
// and in order.
type Event struct {
	Kind     EventKind
	Type     string
	Token    int64             // of the type's lock
	Messages int               // Committed: how many
	Index    uint64            // Committed, Rotated: records of the file below it are durable; 0 without a file
	Path     string            // Rotated: the new file
	Letter   *queue.DeadLetter // Dead
	Err      error             // Lost: why
	Missed   uint64            // Pool.Subscribe: events that this channel has dropped so far
}
