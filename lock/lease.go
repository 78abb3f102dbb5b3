package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// Lease is one granted lock. It is held until it is released ([Lease.Release]) or lost; after that it
// is never held again. Run the protected work under [Lease.Context]. All methods are safe for
// concurrent use.
type Lease struct {
	l     *Locker
	name  string
	hold  Hold
	stale bool // another write of the acquisition may still reach the store

	displaced bool // taken over from a holder whose requests may still be in flight

	due   time.Duration // of the next renewal, on l.valid; guarded by l.mu
	until time.Duration // the end of the takeover delay, on l.valid; guarded by mu

	ctx      context.Context
	cancel   context.CancelCauseFunc
	lost     chan struct{} // closed when the lease is lost
	stop     chan struct{} // closed when the lease ends, released or lost
	released chan struct{} // closed when the release has its result
	asked    chan struct{} // closed when a release is requested

	mu         sync.Mutex
	state      leaseState
	token      int64
	deadline   time.Duration // on l.valid; no later than last
	last       time.Duration // the end set by WithMaxHold, on l.valid
	suspect    chan struct{} // closed while less than half of the lease is left
	suspected  bool          // suspect is closed
	why        string        // the reason of the request to release
	timer      *time.Timer   // rule: an independent timer notices the deadline, whatever the renewer does
	renewErr   error         // of the last renewal
	lostErr    *LostError
	cleaned    bool  // the release after a loss has begun
	releaseErr error // set before released is closed
}

// leaseState changes at most once, from leaseHeld to one of the others.
type leaseState int

const (
	leaseHeld leaseState = iota
	leaseReleased
	leaseLost
)

// newLease makes the lease of a granted attempt and schedules its renewals. sent is when the granting
// operation was sent. The error is ErrClosed.
func (l *Locker) newLease(caller context.Context, a *attempt, token int64, sent time.Duration) (*Lease, error) {
	le := &Lease{
		l: l, name: a.name, hold: a.hold, stale: a.unclear, displaced: a.displacing || a.expired, token: token,
		deadline: sent + a.hold.Lease - margin(a.hold.Lease),
		lost:     make(chan struct{}),
		stop:     make(chan struct{}),
		released: make(chan struct{}),
		asked:    make(chan struct{}),
		suspect:  make(chan struct{}),
		last:     math.MaxInt64,
		until:    math.MinInt64,
		due:      notDue,
	}
	// The lease outlives the context of the acquisition, which may only have bounded the wait.
	le.ctx, le.cancel = context.WithCancelCause(context.WithoutCancel(caller))
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		le.cancel(ErrClosed)
		return nil, fmt.Errorf("acquire lock %q: %w", a.name, ErrClosed)
	}
	l.leases[a.hold.ID] = le
	l.mu.Unlock()
	l.seen.granted(a.name, token, a.hold)
	l.stats.acquired.Add(1)
	if a.takingOver {
		l.stats.takenOver.Add(1)
	}

	le.mu.Lock()
	le.timer = time.AfterFunc(le.nextCheck(l.valid()), le.checkDeadline)
	le.mu.Unlock()
	l.renewAfter(le, sent)
	return le, nil
}

// Name is the name of the lock.
func (le *Lease) Name() string { return le.name }

// Token is the fencing token: greater than those of all earlier grants of the name. Only RaiseToken
// changes it.
func (le *Lease) Token() int64 {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.token
}

// Context ends when the lease does. Its cause ([context.Cause]) is a [*LostError] after a loss and
// [ErrReleased] after a release. It carries the values of the context given to Acquire, but does not
// end with it. Run the work that the lock protects under it.
func (le *Lease) Context() context.Context { return le.ctx }

// Lost returns a channel that is closed when the lease is lost, but not when it is released.
func (le *Lease) Lost() <-chan struct{} { return le.lost }

// Suspect returns a channel that is closed when half of the lease has passed without a renewal: the
// store does not answer, and the lease will be lost unless it does soon. If your work has points
// where it can stop safely, stop at the next one. If a renewal succeeds after all, Suspect returns a
// new channel from then on. The channel is also closed when the lease is lost.
func (le *Lease) Suspect() <-chan struct{} {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.suspect
}

// ReleaseRequested returns a channel that is closed when the release of the lock is requested
// ([Locker.RequestRelease]).
func (le *Lease) ReleaseRequested() <-chan struct{} { return le.asked }

// RequestReason is the reason given with that request; empty if there was no request.
func (le *Lease) RequestReason() string {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.why
}

// Remaining is how much longer the lease lasts if no further renewal succeeds; 0 if it has ended.
func (le *Lease) Remaining() time.Duration {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.expire()
	if le.state != leaseHeld {
		return 0
	}
	return le.deadline - le.l.valid()
}

// Check returns nil if the lease is held and lasts at least need longer, even if no further renewal
// succeeds. Call it before an action that takes up to need. Otherwise the error is the [*LostError],
// [ErrReleased] or [ErrTooShort].
//
// The action may be delayed after the check, for example by a pause of the process. Where that
// matters, the resource must compare tokens.
func (le *Lease) Check(need time.Duration) error {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.expire()
	switch le.state {
	case leaseLost:
		return le.lostErr
	case leaseReleased:
		return fmt.Errorf("lock %q: %w", le.name, ErrReleased)
	}
	if left := le.deadline - le.l.valid(); left < need {
		return fmt.Errorf("lock %q: %w: %v left, %v needed", le.name, ErrTooShort, left.Round(time.Millisecond), need)
	}
	return nil
}

// RaiseToken raises the token above floor, unless it is higher already, and returns it. Use it if the
// resource has seen a higher token than [Lease.Token]: then the lock's record was deleted, restored
// from a backup, or lost by its server. RaiseToken retries until the store answers, ctx ends or the
// lease ends. After an error the token may or may not be raised; calling again is safe. The error wraps ctx's
// error, or [ErrPermanent] if the store refuses, or is that of [Lease.Check], [ErrClosed], or an [*InvalidError]
// for a floor that cannot be a token.
func (le *Lease) RaiseToken(ctx context.Context, floor int64) (int64, error) {
	if floor > math.MaxInt64/2 {
		return 0, &InvalidError{What: "token floor", Value: fmt.Sprint(floor), Problem: "no resource can have seen such a " +
			"token; the value is probably damaged"}
	}
	if err := le.l.enter(); err != nil {
		return 0, fmt.Errorf("raise the token of lock %q: %w", le.name, err)
	}
	defer le.l.wg.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(le.ctx, func() { cancel(context.Cause(le.ctx)) })()
	retry := newJitter(le.hold.Lease / 20)
	for {
		sent := le.l.valid()
		g, err := call(le.l, ctx, opTimeout(le.hold.Lease), func(ctx context.Context) (grant, error) {
			token, ok, err := le.l.store.Confirm(ctx, le.name, le.hold, floor, NewVersion())
			return grant{token, ok}, err
		}, nil)
		switch {
		case err == nil && g.ok:
			return le.raised(g.token, sent)
		case err == nil:
			le.lose(le.whyGone())
			return 0, le.Check(0)
		case le.ctx.Err() != nil:
			return 0, le.Check(0) // not err, which may only be the end of our own wait
		case errors.Is(err, ErrPermanent):
			return 0, fmt.Errorf("raise the token of lock %q above %d: %w", le.name, floor, err)
		}
		if ctx.Err() != nil || !pause(ctx.Done(), retry.Next()) {
			return 0, fmt.Errorf("raise the token of lock %q above %d: %w (last answer of the lock store: %w)", le.name,
				floor, endOf(ctx), err)
		}
	}
}

// Release ends the lease at once and removes it from the store in the background, retrying for at
// most one lease. (Time during a request in which the process was stopped does not count.) ctx only
// bounds how long Release waits for the removal: if ctx ends first, Release returns its error and the
// removal continues. Further calls return the same result. The token counter stays in the store.
//
// It returns a [*LostError] (which wraps [ErrLost]) if the lease was lost before: the last part of the
// work may have run without the lock. It returns an [*UnavailableError] if the store could not be
// reached, and an error that wraps [ErrPermanent] if the store refuses; the lock then becomes free
// after one lease.
func (le *Lease) Release(ctx context.Context) error {
	if lost := le.beginRelease(false); lost != nil {
		return lost
	}
	select {
	case <-le.released:
		return le.releaseErr
	default:
	}
	select {
	case <-le.released:
		return le.releaseErr
	case <-ctx.Done():
		return fmt.Errorf("release of lock %q continues in the background: %w", le.name, endOf(ctx))
	}
}

// beginRelease ends the lease, if it has not ended, and starts its release in the store. It returns
// the error of a lost lease. counted means that the caller is already counted in l.wg, so that the
// release works even while the Locker is closing.
func (le *Lease) beginRelease(counted bool) error {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.expire()
	if le.state == leaseReleased || le.state == leaseLost && le.cleaned {
		return le.lossError()
	}
	if !counted {
		if err := le.l.enter(); err != nil {
			return le.lossError() // Close releases everything that is held
		}
		defer le.l.wg.Done()
	}
	if le.state == leaseLost {
		// A lost lease may still be in the record if only renewals failed. The code that used it has
		// finished, so free the lock early.
		le.cleaned = true
		le.l.abandon(le.name, le.hold)
		return le.lossError()
	}
	le.end(leaseReleased, ErrReleased)
	le.l.stats.released.Add(1)
	le.l.wg.Add(1)
	go func() {
		defer le.l.wg.Done()
		defer close(le.released)
		gone, err := le.l.giveUp(le.name, le.hold)
		if le.stale {
			le.l.seen.markDead(le.hold.ID) // not earlier: another waiter of this Locker would take it over, and we would report a loss
		}
		switch {
		case err != nil:
			le.l.seen.markDead(le.hold.ID)
			le.releaseErr = err
		case gone:
			reason, why := le.whyGone()
			le.releaseErr = &LostError{Name: le.name, Token: le.token, Reason: reason, Why: why}
		}
	}()
	return nil
}

// sitOut waits for the end of the takeover delay. It returns false if the lease ends or wait ends first.
//
// rule: the lock stays held and renewed until the old holder's requests have run out, even if the caller stops waiting.
func (le *Lease) sitOut(wait context.Context, until time.Duration) bool {
	l := le.l
	le.mu.Lock()
	le.until = until
	le.mu.Unlock()
	if until <= l.valid() {
		return true
	}
	timer := time.NewTimer(until - l.valid())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-le.stop:
		l.seen.markDead(le.hold.ID) // this Locker takes it over at once, others after the standstill
	case <-wait.Done():
		l.inBackground(func() {
			if pause(le.stop, until-l.valid()) {
				_ = le.beginRelease(true)
			}
		})
	}
	return false
}

// lapse ends a lease without freeing the lock if its takeover delay has not ended: the next holder must take the lock
// over, and so starts a delay of its own.
func (le *Lease) lapse() bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.state != leaseHeld || le.l.valid() >= le.until {
		return false
	}
	le.declareLost(LostExpired, "")
	return true
}

// lossError is lostErr as an error: nil, not a typed nil pointer, if the lease is not lost. le.mu is
// held.
func (le *Lease) lossError() error {
	if le.lostErr == nil {
		return nil
	}
	return le.lostErr
}

// held reports whether the lease has not ended, and whether it already lasts until the end set by WithMaxHold.
func (le *Lease) held() (held, enough bool) {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.state == leaseHeld, le.deadline >= le.last
}

// hear passes a request to release on to the holder; asked is empty if there is none.
func (le *Lease) hear(asked string) {
	le.mu.Lock()
	defer le.mu.Unlock()
	if asked != "" && le.why == "" {
		le.why = asked
		close(le.asked)
	}
}

// whyGone finds out why the record no longer has the lease. Its timeout is short, because the holder
// is notified of the loss only after it returns.
func (le *Lease) whyGone() (reason LostReason, why string) {
	r, err := le.record(min(opTimeout(le.hold.Lease), minMargin))
	if f := r.Forced; err == nil && f != nil && f.ID == le.hold.ID {
		return LostForced, f.Why
	}
	return LostGone, ""
}

// record reads the lock's record; it is empty if there is none.
func (le *Lease) record(timeout time.Duration) (Record, error) {
	return call(le.l, le.l.base, timeout, func(ctx context.Context) (Record, error) {
		r, _, err := le.l.store.Read(ctx, le.name)
		return r, err
	}, nil)
}

// bound sets the end of WithMaxHold.
func (le *Lease) bound(last time.Duration) {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.last = last
	le.deadline = min(le.deadline, last)
	if le.timer != nil && le.state == leaseHeld {
		le.timer.Reset(le.nextCheck(le.l.valid()))
	}
}

// extend moves the deadline after an acknowledged renewal that was sent at sent.
func (le *Lease) extend(sent time.Duration) {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.expire() // rule: an answer after the deadline does not revive the lease
	if le.state != leaseHeld {
		return
	}
	le.l.stats.renewed.Add(1)
	le.renewErr = nil
	le.deadline = max(le.deadline, min(le.last, sent+le.hold.Lease-margin(le.hold.Lease)))
	if le.suspected && !le.half() {
		le.suspected, le.suspect = false, make(chan struct{})
	}
}

// half reports whether less than half of the lease is left because of missing renewals, not because
// of WithMaxHold. le.mu is held.
func (le *Lease) half() bool {
	return le.deadline < le.last && le.deadline-le.l.valid() < le.hold.Lease/2
}

// raised applies a successful RaiseToken to the lease. The answer also counts as a renewal.
func (le *Lease) raised(token int64, sent time.Duration) (int64, error) {
	le.extend(sent)
	le.l.seen.granted(le.name, token, le.hold)
	le.mu.Lock()
	defer le.mu.Unlock()
	le.token = max(le.token, token)
	if le.state == leaseHeld {
		return le.token, nil
	}
	if le.lostErr != nil {
		return 0, le.lostErr
	}
	return 0, fmt.Errorf("lock %q: %w", le.name, ErrReleased)
}

// checkDeadline runs on the timer. It notices the deadline, and half of the lease, even if every
// renewal hangs.
func (le *Lease) checkDeadline() {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.expire()
	if le.state != leaseHeld {
		return
	}
	if !le.suspected && le.half() {
		le.suspected = true
		le.l.stats.suspected.Add(1)
		close(le.suspect)
	}
	le.timer.Reset(le.nextCheck(le.l.valid()))
}

// nextCheck is how long until checkDeadline runs again: at the deadline, or earlier, because timers
// stop while the machine sleeps and the clock does not.
func (le *Lease) nextCheck(now time.Duration) time.Duration {
	return min(le.deadline-now, le.hold.Lease/16)
}

// expire declares the lease lost if its deadline has passed. le.mu is held.
func (le *Lease) expire() {
	if le.state == leaseHeld && le.l.valid() >= le.deadline {
		reason := LostExpired
		if le.deadline >= le.last {
			reason = LostMaxHold
		}
		le.declareLost(reason, "")
	}
}

// lose declares the lease lost unless it has ended already.
func (le *Lease) lose(reason LostReason, why string) {
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.state == leaseHeld {
		le.declareLost(reason, why)
	}
}

// declareLost ends the lease as lost. le.mu is held.
func (le *Lease) declareLost(reason LostReason, why string) {
	le.lostErr = &LostError{Name: le.name, Token: le.token, Reason: reason, Why: why}
	switch reason {
	case LostExpired:
		le.lostErr.Cause = le.renewErr
		le.l.stats.lostExpired.Add(1)
	case LostMaxHold:
		le.l.stats.lostMaxHold.Add(1)
	default:
		le.l.stats.lostGone.Add(1)
	}
	if !le.suspected {
		close(le.suspect) // also notifies code that watches only Suspect
		le.suspected = true
	}
	le.end(leaseLost, le.lostErr)
	close(le.lost)
}

// end ends the lease. le.mu is held.
func (le *Lease) end(state leaseState, cause error) {
	le.state = state
	le.cancel(cause)
	close(le.stop)
	if le.timer != nil {
		le.timer.Stop()
	}
	le.l.mu.Lock()
	delete(le.l.leases, le.hold.ID)
	if len(le.l.leases) == 0 {
		le.l.wakeRenewer()
	}
	le.l.mu.Unlock()
	le.l.seen.ended(le.name, le.hold.ID)
}
