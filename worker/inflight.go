package worker

import (
	"context"
	"sync"
)

// inflight counts batches between fetch and ack.
type inflight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n drops to 0; nil when nobody waits
}

func (i *inflight) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n += n
	if i.n == 0 && i.idle != nil {
		close(i.idle)
		i.idle = nil
	}
}

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
