package lock

import (
	"context"
	"math"
	"time"
)

// When is a holder presumed dead, and its lock taken over? Only after this Locker has itself
// observed one version of the holder's record unchanged for the holder's whole lease plus a margin
// for clock rates (decide, patience, standstill). It never compares a stored date with a clock: the
// clocks of two machines may differ by any amount, while their rates are nearly equal. The takeover
// is a compare-and-swap on the observed version (attempt.write), so a renewal at the last moment
// wins.
//
// Two holders need no wait: an orphan of this Locker itself, and a process of this machine that has
// provably ended (patience).

// decision is the reaction of an attempt to the record it has read.
type decision struct {
	next     step                                // stepDone: wait
	patience time.Duration                       // read again after at most this long: a holder or waiter may be dead by then
	remove   func(context.Context) (bool, error) // if set, first remove a dead share or waiter from the record
}

// decide decides what to do about the record last read: acquire, take over, remove a dead entry, or
// wait.
func (a *attempt) decide() decision {
	ob, now, patience := a.last, a.l.clock(), time.Duration(math.MaxInt64)
	r := ob.record
	dead := func(h Hold, since time.Duration) bool {
		left := a.l.patience(h) - (now - since)
		if left > 0 {
			patience = min(patience, left)
		}
		return left <= 0
	}
	// rule: a place in the queue is itself a lease: a dead waiter blocks the queue only until its place expires.
	for _, e := range r.Queue {
		if e.ID != a.hold.ID && dead(e.Hold, ob.entries[e.Version]) {
			return decision{remove: a.removing(func(ctx context.Context) (bool, error) {
				return a.l.store.Dequeue(ctx, a.name, e.ID, e.Version)
			})}
		}
	}
	// rule: only the first in the queue may acquire; attempts outside the queue wait until it is empty.
	turn := len(r.Queue) == 0 || r.Queue[0].ID == a.hold.ID
	switch {
	case r.Hold != nil:
		if dead(*r.Hold, ob.version) && turn {
			return decision{next: stepTakeOver}
		}
	case len(r.Shares) >= max(a.hold.Permits, 1):
		// rule: each entry has its own lease and version, so renewals of the others do not keep a dead one alive.
		for _, e := range r.Shares {
			if dead(e.Hold, ob.entries[e.Version]) {
				a.expired = a.expired || !a.l.seen.isDead(e.ID)
				return decision{remove: a.removing(func(ctx context.Context) (bool, error) {
					return a.l.store.Expire(ctx, a.name, e, NewVersion())
				})}
			}
		}
	case turn:
		return decision{next: stepFree}
	}
	return decision{next: stepDone, patience: patience}
}

// removing turns a store operation into a decision's remove, which reports whether it has removed anything.
func (a *attempt) removing(op func(context.Context) (bool, error)) func(context.Context) (bool, error) {
	return func(wait context.Context) (bool, error) {
		return call(a.l, wait, opTimeout(a.hold.Lease), op, nil)
	}
}

// patience is how long a version of hold h must stay unchanged before its holder is presumed dead.
func (l *Locker) patience(h Hold) time.Duration {
	switch {
	case l.seen.isDead(h.ID):
		return 0 // our own orphan: no code relies on it
	case provablyDead(l.opts.Owner, h.Owner):
		return 0 // a process of this machine that has ended
	}
	return standstill(h.Lease)
}

// margin is how long before the end of its lease a holder stops. Together with the surplus in
// standstill it covers clocks that run at different rates.
func margin(lease time.Duration) time.Duration { return max(lease/16, minMargin) }

// standstill is how long a version must stay unchanged before its holder is presumed dead.
//
// rule: the holder's own lease counts, not the taker's (k8s#114872); ms·17/16 + 250 ms.
func standstill(lease time.Duration) time.Duration { return lease + lease/16 + minMargin }
