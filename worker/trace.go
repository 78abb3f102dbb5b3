package worker

import (
	"context"

	"github.com/fencepost/fencepost/queue"
)

// Trace is told of every batch on its way into a file, see Config.Trace: it is called before the batch is written, and what it returns,
// unless that is nil, when the batch is durable (nil) or may not be, and why: a lost lease, a full disk, another writer's fence. Batches
// that share an fsync are open at the same time. Of one type there is one call at a time. msgs is for reading, during the call.
type Trace func(ctx context.Context, lease Lease, msgs []*queue.Message) (done func(error))

// trace begins with a batch.
func (s *session) trace(ctx context.Context, msgs []*queue.Message) {
	if f := s.pool.cfg.Trace; f != nil {
		if done := f(ctx, s.lease, msgs); done != nil {
			s.traced = append(s.traced, done)
		}
	}
}

// endTrace ends with all batches that were begun.
func (s *session) endTrace(err error) {
	for _, done := range s.traced {
		done(err)
	}
	s.traced = s.traced[:0]
}
