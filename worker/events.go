package worker

import (
	"github.com/fencepost/fencepost/queue"
)

// EventKind is the kind of an [Event].
type EventKind int

// Kinds of events, for Config.Events.
const (
	Acquired  EventKind = iota + 1 // a session of the type has begun
	Released                       // … and ended without an error, or because Run was cancelled
	Lost                           // … or with an error: a lost lease, a failing disk
	Committed                      // messages are durable in the file, or were handled
	Dead                           // a message has become a dead letter
	Rotated                        // the file reached its size limit; the type continues in a new one
)

func (k EventKind) String() string {
	if k < Acquired || k > Rotated {
		return "unknown"
	}
	return [...]string{"acquired", "released", "lost", "committed", "dead", "rotated"}[k-Acquired]
}

// Event is a change in the state of a type in this pool. Events of one type are delivered one at a
// time and in order.
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
