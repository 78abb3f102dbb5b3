package worker

import (
	"context"
	"sync"
)

// Batches in flight are fetched and not yet acknowledged. Only with none in flight may the fetch
// stage go back, the session end, the ledger forget producers, or the session get the reserve of the
// pool's memory.

// inflight counts batches between fetch and ack.
type inflight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n drops to 0; nil when nothing waits
}

// add is called by the fetch stage with 1 for each batch, and by the ack stage with the negative
// number of batches that it has settled.
func (i *inflight) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n += n
	if i.n == 0 && i.idle != nil {
		close(i.idle)
		i.idle = nil
	}
}

// wait returns when everything that was fetched is acknowledged.
func (i *inflight) wait(ctx context.Context) error {
	select {
	case <-i.zero():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// zero returns a channel that is closed when n is 0.
func (i *inflight) zero() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.n == 0 {
		return closed
	}
	if i.idle == nil {
		i.idle = make(chan struct{})
	}
	return i.idle
}

// closed is a channel that never blocks a receiver.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
