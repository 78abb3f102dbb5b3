package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Go has no thread identity, so re-entrancy needs something else to say "this is still me". Here it
// is the context: a context holds locks, and everything called with it is one and the same user of
// them.

// From returns what ctx holds: the names of the locks and their fencing tokens. A context gets to
// hold locks from [Locker.Do], [Locker.AcquireAll] and [Graph]; [Locker.Acquire] leaves contexts
// alone. Lost locks are not in it. If ctx holds a name in several stores, the token is that of the
// innermost.
func From(ctx context.Context) map[string]int64 {
	tokens := make(map[string]int64)
	for _, h := range heldBy(ctx) {
		if h.lease.Check(0) == nil {
			tokens[h.lease.Name()] = h.lease.Token()
		}
	}
	return tokens
}

// holding is a lease together with the number of those who use it through a context.
type holding struct {
	lease *Lease

	mu    sync.Mutex
	users int // the last one to leave releases the lease; nobody joins after that
}

type heldKey struct{}

// heldBy returns the holdings of ctx, outermost first.
func heldBy(ctx context.Context) []*holding {
	held, _ := ctx.Value(heldKey{}).([]*holding)
	return held
}

// find returns the holding of name in l's store that ctx carries, with the caller counted in, or
// nil. alone: the caller does not want to share the lock.
func find(ctx context.Context, l *Locker, name string, alone bool) (*holding, error) {
	for _, h := range heldBy(ctx) {
		if h.lease.l != l || h.lease.Name() != name {
			continue
		}
		joined, err := h.join(alone)
		if err != nil {
			return nil, err
		}
		if joined {
			return h, nil
		}
	}
	return nil, nil
}

// join counts a user in, unless the lease is being released. The error may be that of a lost lease:
// what the context is about has lost its lock, and to acquire another one in its middle would only
// hide that.
func (h *holding) join(alone bool) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == 0 {
		return false, nil
	}
	if err := h.loss(); err != nil {
		return false, err
	}
	if alone && h.lease.hold.Shared() {
		return false, &InvalidError{What: "nested acquisition of lock", Value: quote(h.lease.Name()), Problem: "the context " +
			"shares it with others and cannot have it alone: two who try that would wait for each other"}
	}
	h.users++
	return true, nil
}

// leave is the opposite of join; last tells that it is up to the caller to release the lease.
func (h *holding) leave() (last bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users--
	return h.users == 0
}

// loss is the error of a lost lease, nil of another.
func (h *holding) loss() error {
	if err := h.lease.Check(0); errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// endOf returns the error of an ended context, and its cause.
func endOf(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
