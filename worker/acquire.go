package worker

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
	"golang.org/x/sync/semaphore"
)

// depth queries whether a type has messages. At most maxLooks checks run concurrently.
func (p *Pool) depth(ctx context.Context, typ string) (queue.Depth, error) {
	if err := p.looks.Acquire(ctx, 1); err != nil {
		return queue.Depth{}, err
	}
	defer p.looks.Release(1)
	return p.ask(ctx, typ)
}

// ask is depth without queueing up with the checks of other types.
func (p *Pool) ask(ctx context.Context, typ string) (queue.Depth, error) {
	p.book.noteAsking(typ)
	d, err := p.cfg.Queue.Depth(ctx, typ, 1)
	p.book.noteAnswer(ctx, typ, err)
	return d, err
}

// pending returns those of types that have messages or foreign keys, up to most of them.
func (p *Pool) pending(ctx context.Context, types []string, most int) ([]string, error) {
	p.book.noteAsking("")
	found, err := p.cfg.Queue.Pending(ctx, types, most)
	p.book.noteAnswer(ctx, "", err)
	return found, err
}

// busy reports whether the pool is opening as many types as it can.
func (p *Pool) busy() bool {
	part := p.openingPart()
	if !p.opening.TryAcquire(part) {
		return true
	}
	p.opening.Release(part)
	return false
}

// openingPart is the part of maxOpening that one type takes. With many pools, each opens fewer types: the
// concurrent requests of all pools queue up in the server, and those that wait longer than the timeouts
// of the lock are sent again and again.
func (p *Pool) openingPart() int64 { return int64(min(p.rebalancer.Crowd(), maxOpening)) }

// acquire acquires the type's lock in the way that the turn requires. Acquiring a free lock takes the
// slot, which the caller always releases. waited is as in lock.
func (p *Pool) acquire(ctx context.Context, typ string, t share.Turn, wait time.Duration, slot *openingSlot) (lease *lock.Lease, waited bool, err error) {
	opts := []lock.Option{lock.WithLease(p.cfg.Lease), lock.WithWhy(lockReason(p.instance))}
	switch t {
	case share.TurnAsk:
		lease, err = p.takeShare(ctx, typ)
		return lease, true, err
	case share.TurnStandBy: // there may be thousands, for example those of a replica that has fallen silent
		if err := p.looks.Acquire(ctx, 1); err != nil {
			return nil, false, err
		}
		defer p.looks.Release(1)
		lease, err = p.cfg.Locker.TryAcquire(ctx, typ, opts...)
		return lease, false, err
	}
	// rule: a type gets its slot before its lock. A pool that held the locks of thousands of types before it could open them would
	// spend its time on renewals, and lose the leases.
	if err := slot.take(ctx); err != nil {
		return nil, false, err
	}
	if !p.rebalancer.Take(typ) {
		return nil, false, lock.ErrHeld
	}
	lease, err = p.cfg.Locker.TryAcquire(ctx, typ, opts...)
	if held := (*lock.HeldError)(nil); errors.As(err, &held) && !p.rebalancer.Contended(typ, instanceOf(held.Why)) {
		slot.release() // the wait may be long
		waited = true
		lease, err = p.cfg.Locker.Acquire(ctx, typ, append(opts, lock.WithWait(wait))...)
	}
	return lease, waited, err
}

// openingSlot is the right to open a type. Not safe for concurrent use.
type openingSlot struct {
	slots *semaphore.Weighted
	part  int64 // of slots
	taken bool
}

// take waits for the slot, unless it is taken already.
func (s *openingSlot) take(ctx context.Context) error {
	if s.taken {
		return nil
	}
	err := s.slots.Acquire(ctx, s.part)
	s.taken = err == nil
	return err
}

// release releases the slot if it is taken.
func (s *openingSlot) release() {
	if s.taken {
		s.slots.Release(s.part)
		s.taken = false
	}
}
