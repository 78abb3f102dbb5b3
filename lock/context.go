package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Re-entrant locks must recognize a caller that already holds the lock. Goroutines have no identity
// for that, so here the context holds the locks: all code that is called with it is the same holder.

// From returns the locks that ctx holds: their names and fencing tokens. A context holds the locks
// of the [Locker.Do], [Set] or [Graph] that it comes from; [Locker.Acquire] does not change contexts.
// Lost locks are omitted. If ctx holds the same name in several stores, the token is that of the
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

// holding is a lease with the number of its users: the Sets, nested in each other, that hold it
// through a context.
type holding struct {
	lease *Lease

	mu    sync.Mutex
	users int // the last one to leave releases the lease; after that join fails
}

// heldKey is the key under which a context carries its holdings.
type heldKey struct{}

// heldBy returns the holdings of ctx, outermost first.
func heldBy(ctx context.Context) []*holding {
	held, _ := ctx.Value(heldKey{}).([]*holding)
	return held
}

// find returns the holding of name by l that ctx carries, and counts the caller as a user of it; nil
// if there is none. alone means that the caller wants the lock exclusively.
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

// waitsForItself returns a *HeldError if an acquisition would wait for its own caller, because ctx holds the lock; otherwise nil.
func (l *Locker) waitsForItself(ctx context.Context, name string, permits int) error {
	for _, h := range heldBy(ctx) {
		le := h.lease
		if le.l == l && le.name == name && h.inUse() && le.Check(0) == nil && (permits == 0 || !le.hold.Shared()) {
			return &HeldError{Name: name, Owner: le.hold.Owner, Why: le.hold.Why, Token: le.Token(), Lease: le.hold.Lease, Own: true}
		}
	}
	return nil
}

// inUse reports whether the lease still has users.
func (h *holding) inUse() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.users > 0
}

// join counts one more user, unless the lease is being released. If the lease is lost, join returns
// that error: the work under this context runs without its lock, and acquiring a new one in the middle
// would only hide that.
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
			"holds it shared and cannot make it exclusive: two holders that tried would wait for each other"}
	}
	h.users++
	return true, nil
}

// leave is the opposite of join. If last is true, the caller must release the lease.
func (h *holding) leave() (last bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users--
	return h.users == 0
}

// loss returns the error of the lease if it is lost, otherwise nil.
func (h *holding) loss() error {
	if err := h.lease.Check(0); errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// endOf returns nil, or the error of an ended context with its cause.
func endOf(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
