package worker

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Step is something that a pool does with the messages of a type over and over, and that takes
// time.
type Step int

// Steps, for Config.Observe.
const (
	StepAcquire Step = iota + 1 // took the type's lock; from the first look at it on, however many there were
	StepFetch                   // read a batch from the queue
	StepAppend                  // wrote a record batch to the file, not yet synced
	StepSync                    // made everything written durable: one fsync
	StepAck                     // removed durable or handled messages from the queue
	StepHandle                  // one call of the Handler
)

func (s Step) String() string {
	if s < StepAcquire || s > StepHandle {
		return "unknown"
	}
	return [...]string{"acquire", "fetch", "append", "sync", "ack", "handle"}[s-StepAcquire]
}

// Observation is one Step that was done, or tried.
type Observation struct {
	Type     string
	Step     Step
	Took     time.Duration
	Messages int   // how many it was about
	Err      error // nil: done
}

// Trace is called for every batch on its way into a file, see Files.Trace: before the
// batch is written, and what it returns, unless that is nil, when the batch is durable (nil) or may
// not be, and why: a lost lease, a full disk, another writer's fence. Batches that share an fsync
// are open at the same time. Of one type there is one call at a time. msgs is for reading, during
// the call.
type Trace func(ctx context.Context, lease Lease, msgs []*queue.Message) (done func(error))
