package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// outage is a series of failures of the store: those since it was last seen to work.
type outage struct {
	failures int
	since    time.Duration // when the first of them was sent, on l.valid; later if the process was stopped meanwhile
	last     error
	writes   bool // a write is among them
}

// answered notes the answer to a read sent at sent, or to a confirmation that wrote nothing.
//
// rule: a read does not show that the store works again after a failed write: a full disk answers reads and fails every write.
func (a *attempt) answered(sent time.Duration) {
	if !a.outage.writes {
		a.outage = outage{}
		return
	}
	a.outage.since += a.l.stopped(sent, a.timeout())
}

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
	o := &a.outage
	if o.failures++; o.failures == 1 {
		o.since = sent
		a.retry.Reset()
	}
	o.last, o.writes = err, o.writes || now != stepRead
	o.since += a.l.stopped(sent, a.timeout())
	if a.l.valid()-o.since >= a.l.opts.GiveUpAfter || a.try && o.failures >= 2 {
		return 0, a.unavailable(nil)
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
	case a.outage.failures > 0:
		return a.unavailable(cause)
	case a.last.known || a.last.record.Held():
		return a.held(cause)
	case waited:
		return &UnavailableError{Doing: "acquire", Name: a.name, For: a.l.valid() - a.began, Cause: errWaited}
	}
	return fmt.Errorf("acquire lock %q: %w", a.name, cause)
}

// unavailable is the error of an attempt during an outage of the store. cause is what ended its wait, if anything did.
func (a *attempt) unavailable(cause error) error {
	e := &UnavailableError{Doing: "acquire", Name: a.name, For: a.l.valid() - a.outage.since, Cause: a.outage.last}
	if cause != nil {
		e.Cause = errors.Join(a.outage.last, cause)
	}
	return e
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
