package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// abandon undoes an attempt whose outcome is unknown, in the background and independently of the
// caller's context. If the attempt is applied even later, its hold is an orphan that nobody renews:
// others take it over after one lease, and this Locker at once, because it remembers the id as dead.
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

// release removes the hold, retrying until the first clear answer, for one lease at most (in which
// this process was not stopped). gone means that the lease had been taken away: the record did not
// have the hold at the first try already. (At a later try, an earlier one of our own may have removed it.)
//
// rule: bound to the id, so it never touches a successor; on its own context, so the end of the caller's does not keep
// the lock locked.
func (l *Locker) release(name string, h Hold) (gone bool, err error) {
	begin, retry, timeout := l.valid(), newJitter(min(time.Second, h.Lease/20)), opTimeout(h.Lease)
	for try := 1; ; try++ {
		sent := l.valid()
		ok, err := call(l, l.base, timeout, func(ctx context.Context) (bool, error) {
			return l.store.Release(ctx, name, h, NewVersion())
		}, nil)
		begin += l.stopped(sent, timeout) // rule: a suspension does not end the tries to release
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

// handOff passes an exclusive hold, which nobody in this process uses any more, to the first waiter
// of this process, in one round trip. unclear: the store gave no answer, so that waiter finds out
// whether it has the lock.
//
// rule: bound to the id of the hold, as everything a holder does; the new lease has its own id and a token of its own.
func (l *Locker) handOff(name string, h Hold) (handed, unclear bool) {
	if h.Shared() || l.open.Err() != nil {
		return false, false
	}
	w := l.queues.choose(name)
	if w == nil {
		return false, false
	}
	// A chosen waiter does not acquire by itself meanwhile, so its hold does not change. The new lease counts
	// from here, and so does its first renewal.
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
