package worker

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Step is something that a pool does with the messages of a type over and over, and that takes time.
type Step int

// What Config.Observe is told.
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

// observe tells Config.Observe, and that the session is alive. Nothing is allocated.
func (s *session) observe(step Step, began time.Time, messages int, err error) {
	s.pool.observe(Observation{s.typ, step, time.Since(began), messages, err})
}

func (p *Pool) observe(o Observation) {
	p.progress(o)
	if f := p.cfg.Observe; f != nil {
		f(o)
	}
}

// observed measures every call of h.
func (s *session) observed(h Handler) Handler {
	return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
		began := time.Now()
		s.pool.handling(s.typ, true)
		var err error
		defer func() { // also when it panics
			s.pool.handling(s.typ, false)
			s.observe(StepHandle, began, len(msgs), err)
		}()
		err = h.Handle(ctx, lease, msgs)
		return err
	})
}
