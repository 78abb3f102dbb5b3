// Package ready answers whether a queue is usable, for probes.
package ready

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

const (
	askAgain  = time.Second     // shortest interval between two health queries to the queue
	healthyIn = 2 * time.Second // time within which the queue must answer
)

// Queue caches for askAgain whether a queue answers, so that the number of probes does not matter to it. Safe for concurrent use.
type Queue struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

// Check returns an error if the queue does not answer. It only reads the queue's clock.
func (r *Queue) Check(q queue.Queue) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.IsZero() || time.Since(r.asked) >= askAgain {
		ctx, cancel := context.WithTimeout(context.Background(), healthyIn)
		_, r.err = q.Now(ctx)
		cancel()
		r.asked = time.Now()
	}
	return r.err
}
