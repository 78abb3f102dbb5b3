package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// failed handles a step that failed with err: it returns the next step, or the error for the caller.
// It pauses before a retry.
func (a *attempt) failed(wait, caller context.Context, now step, sent time.Duration, err error) (step, error) {
	if now != stepRead && unclearAnswer(err) {
		if now != stepConfirm {
			a.l.stats.unclear.Add(1)
		}
		a.unclear = true
	}
	if wait.Err() != nil {
		return 0, a.ended(wait, caller)
	}
	if errors.Is(err, ErrPermanent) {
		return 0, fmt.Errorf("acquire lock %q: %w", a.name, err)
	}
	a.l.stats.storeFailures.Add(1)
	a.failure = err
	if a.failures++; a.failures == 1 {
		a.failingSince = sent
		a.retry.Reset()
	}
	a.failingSince += a.l.stopped(sent, a.timeout())
	failing := a.l.valid() - a.failingSince
	if failing >= a.l.opts.GiveUpAfter || a.try && a.failures >= 2 {
		return 0, &UnavailableError{Doing: "acquire", Name: a.name, For: failing, Cause: err}
	}
	pause(wait.Done(), a.retry.Next())
	if now == stepRead {
		return stepRead, nil
	}
	return stepConfirm, nil
}

// stopped returns how long this process was stopped, or its machine suspended, during a call that began at sent and has
// ended: the time it took beyond its timeout.
//
// rule: this is not a failure of the store and does not count towards GiveUpAfter.
func (l *Locker) stopped(sent, timeout time.Duration) time.Duration {
	return max(0, l.valid()-sent-timeout-hangGrace)
}

// ended is the error of an attempt whose wait has ended. It says why the attempt got no lock: store
// failures, a holder, or only the end of the caller's context.
func (a *attempt) ended(wait, caller context.Context) error {
	cause := context.Cause(wait)
	if caller.Err() == nil && errors.Is(cause, ErrClosed) {
		return fmt.Errorf("acquire lock %q: %w", a.name, ErrClosed)
	}
	waited := errors.Is(cause, errWaited)
	if waited {
		cause = nil
	} else if e := caller.Err(); e != nil && !errors.Is(cause, e) {
		cause = fmt.Errorf("%w: %w", e, cause)
	}
	switch {
	case a.failures > 0:
		return &UnavailableError{Doing: "acquire", Name: a.name, For: a.l.valid() - a.failingSince,
			Cause: errors.Join(a.failure, cause)}
	case a.last.known || a.last.record.Held():
		return a.held(cause)
	case waited:
		return &UnavailableError{Doing: "acquire", Name: a.name, For: a.l.valid() - a.began, Cause: errWaited}
	}
	return fmt.Errorf("acquire lock %q: %w", a.name, cause)
}

// held is the error of an attempt that found the lock held, or available but reserved for the first in
// its queue.
func (a *attempt) held(cause error) error {
	r := a.last.record
	e := &HeldError{Name: a.name, Token: r.Token, Cause: cause}
	holds := r.Holds()
	if e.Reserved = len(holds) < max(a.hold.Permits, 1) && r.Hold == nil && len(r.Queue) > 0; e.Reserved {
		holds = []Hold{r.Queue[0].Hold}
	}
	for i, h := range holds {
		if i == 0 {
			e.Owner, e.Why, e.Lease = h.Owner, h.Why, h.Lease
		}
		e.Own = e.Own || a.l.holds(h.ID)
	}
	if r.Hold != nil && a.last.known {
		e.Observed = a.l.clock() - a.last.hold
	}
	return e
}

// unclearAnswer reports whether a write that returned err may have been applied, or may yet be.
func unclearAnswer(err error) bool {
	return err != nil && !errors.Is(err, ErrPermanent) && !errors.Is(err, errNotSent)
}
