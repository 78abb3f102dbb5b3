package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// abandon undoes an attempt whose outcome is unknown, in the background and independently of the
// caller's context. If the attempt is applied even later, its hold is an orphan that is never renewed:
// other Lockers take it over after one lease, and this one at once, because it remembers the id as
// dead.
//
// The caller is counted in l.wg.
func (l *Locker) abandon(name string, h Hold) {
	l.stats.abandoned.Add(1)
	l.seen.markDead(h.ID)
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		_, _ = l.giveUp(name, h)
	}()
}

// release removes the hold, retrying until the first clear answer, for at most one lease, not counting
// time in which this process was stopped. gone means that the lease had been taken away: the record
// did not have the hold even at the first try. (Before a later try, our own earlier one may have
// removed it.)
//
// rule: bound to the id, so it never touches a successor; on its own context, so the end of the caller's does not keep
// the lock held.
func (l *Locker) release(name string, h Hold) (gone bool, err error) {
	begin, retry, timeout := l.valid(), newJitter(min(time.Second, h.Lease/20)), opTimeout(h.Lease)
	for try := 1; ; try++ {
		sent := l.valid()
		ok, err := call(l, l.base, timeout, func(ctx context.Context) (bool, error) {
			return l.store.Release(ctx, name, h, NewVersion())
		}, nil)
		begin += l.stopped(sent, timeout) // rule: a suspension does not end the retries of a release
		if err == nil {
			return !ok && try == 1, nil
		}
		if errors.Is(err, ErrPermanent) {
			return false, fmt.Errorf("release lock %q: %w; the lock frees itself after one lease", name, err)
		}
		spent := l.valid() - begin
		if spent >= h.Lease || !pause(l.base.Done(), retry.Next()) {
			return false, &UnavailableError{Doing: "release", Name: name, For: spent, Cause: err}
		}
	}
}

// handOff passes an exclusive hold, which is no longer used in this process, to the first waiter of
// this process, in one round trip. unclear means that the store gave no answer: the waiter must find
// out whether it has the lock.
//
// rule: bound to the id of the hold, like every write of a holder; the new lease has an id and a token of its own.
func (l *Locker) handOff(name string, h Hold) (handed, unclear bool) {
	if h.Shared() || l.open.Err() != nil {
		return false, false
	}
	w := l.queues.choose(name)
	if w == nil {
		return false, false
	}
	// A chosen waiter does not acquire on its own meanwhile, so its hold does not change. The new lease and its first
	// renewal count from here.
	to, sent := w.hold, l.valid()
	g, err := call(l, l.base, opTimeout(min(h.Lease, to.Lease)), func(ctx context.Context) (grant, error) {
		token, ok, err := l.store.HandOff(ctx, name, h.ID, to, NewVersion())
		return grant{token, ok}, err
	}, nil)
	unclear = unclearAnswer(err)
	if !l.queues.deliver(w, handoff{g, sent, unclear}) && (g.ok || unclear) {
		l.abandon(name, to)
	}
	if g.ok {
		l.stats.handedOff.Add(1)
	}
	return g.ok, unclear
}

// giveUp hands the hold of an ended lease off to a waiter of this process or, if there is none,
// releases it in the store. gone is as in release.
func (l *Locker) giveUp(name string, h Hold) (gone bool, err error) {
	handed, unclear := l.handOff(name, h)
	if handed {
		return false, nil
	}
	gone, err = l.release(name, h)
	l.queues.wake(name)
	return gone && !unclear, err
}
