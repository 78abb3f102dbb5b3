package worker

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Step is a kind of work of a pool whose duration [Config].Observe receives.
type Step int

// Steps, for Config.Observe.
const (
	StepAcquire Step = iota + 1 // acquired the type's lock; counted from when the pool first wanted it
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

// Observation is one Step that has ended, with or without success.
type Observation struct {
	Type     string
	Step     Step
	Took     time.Duration
	Messages int   // how many messages it processed; 0 for StepAcquire
	Err      error // nil: success
}

// Trace is called for every batch before it is written to a file, see Files.Trace. The function that it
// returns, if not nil, is called with nil when the batch is durable, or with the reason when that is not
// certain: a lost lease, a full disk, another writer's fence. Batches that share an fsync overlap. For
// one type there is one call at a time. Trace must not change or keep msgs.
type Trace func(ctx context.Context, lease Lease, msgs []*queue.Message) (done func(error))
