package worker

import (
	"context"
	"sync"
)

// The fetch stage goes back only when nothing is in flight, and a session that has nothing in
// flight is what may end, forget producers, or have the reserve of the memory.

// inflight counts batches between fetch and ack.
type inflight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n drops to 0; nil when nothing waits
}

// add is called with 1 by the fetch stage for each batch, and with what it has settled by the ack
// stage.
func (i *inflight) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n += n
	if i.n == 0 && i.idle != nil {
		close(i.idle)
		i.idle = nil
	}
}

// wait returns when everything that was fetched is acknowledged. Only then may the walk go back:
// what is in flight would be fetched a second time.
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

// closed is for those that need not wait.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
