package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxRaces bounds how often TryAcquire starts again after somebody else was faster.
const maxRaces = 8

var errWaited = errors.New("the time of WithWait is over")

// attempt is one logical acquisition.
type attempt struct {
	l     *Locker
	name  string
	hold  Hold // rule: the id stays over all tries, so that one whose answer got lost is recognized as ours; but see retire
	try   bool // do not wait
	began time.Duration

	// What became of the writes so far.
	unclear    bool  // one may have been applied without our knowing, or may be yet
	inserted   bool  // a record with the present id may have been inserted, or may be yet
	unseeded   bool  // the record is known to be ours, and to have no token yet
	takingOver bool  // the latest one took the lock from a dead holder
	drawn      int64 // for mutantEarlySeed: a first token, drawn too early
	races      int   // how many in a row matched nothing
	race       jitter

	// What is known of the holder.
	last     observation
	lastHold HoldID
	poll     jitter

	// Failures of the store since its last answer.
	failures     int
	failingSince time.Duration
	failure      error
	retry        jitter

	// For results that come after the attempt.
	mu    sync.Mutex
	over  bool
	lease *Lease // what the attempt led to
}

// grant is the answer of an operation that takes or confirms a lock.
type grant struct {
	token int64
	ok    bool
}

// step is what an attempt does next.
type step int

const (
	stepFree     step = iota // acquire a record that is believed to be free
	stepRead                 // find out what the record says
	stepCreate               // there is no record
	stepTakeOver             // the holder is dead
	stepConfirm              // an answer was lost: is the lock ours?
)

func (l *Locker) acquire(ctx context.Context, name string, opts []Option, try bool) (*Lease, error) {
	c := config{lease: l.opts.Lease}
	for _, o := range opts {
		o(&c)
	}
	if err := c.check(name); err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		return nil, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	defer l.wg.Done()

	wait, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.open, func() { cancel(ErrClosed) })()
	if c.waitSet && !try {
		var stop context.CancelFunc
		wait, stop = context.WithTimeoutCause(wait, c.wait, errWaited)
		defer stop()
	}
	a := &attempt{
		l: l, name: name, try: try, began: l.valid(),
		hold:  Hold{ID: NewHoldID(), Lease: c.lease, Owner: l.opts.Owner, Why: c.why},
		retry: jitter{ceiling: min(time.Second, c.lease/20)},
		race:  jitter{ceiling: maxPoll},
	}
	a.drawn = a.seed()
	le, err := a.run(wait, ctx)
	a.mu.Lock()
	a.over, a.lease = true, le
	a.mu.Unlock()
	if err != nil && a.unclear {
		l.abandon(name, a.hold)
	}
	return le, err
}

func (c *config) check(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := checkLease(c.lease); err != nil {
		return err
	}
	if c.waitSet && c.wait <= 0 {
		return &InvalidError{What: "wait", Value: c.wait.String(), Problem: "it must be positive; to not wait use TryAcquire"}
	}
	// Stores keep whole milliseconds; a holder must not count on more than others see.
	c.lease = c.lease.Truncate(time.Millisecond)
	return checkText("text of WithWhy", c.why)
}

// run goes from step to step until the lock is held or given up. wait bounds it; caller is the context of the caller.
func (a *attempt) run(wait, caller context.Context) (*Lease, error) {
	next := stepFree
	if a.l.seen.look(a.name).record.Hold != nil {
		next = stepRead // rule: read first; a write that is bound to fail costs the server more than a read
	}
	for {
		if wait.Err() != nil {
			return nil, a.ended(wait, caller)
		}
		var (
			g    grant
			err  error
			now  = next
			sent = a.l.valid() // rule: a lease counts from the sending of the operation that got or renewed it
		)
		if now == stepRead {
			next, err = a.read(wait)
		} else {
			g, err = a.write(wait, now)
		}
		switch {
		case err != nil:
			if next, err = a.failed(wait, caller, now, sent, err); err != nil {
				return nil, err
			}
			continue
		case now == stepRead:
			a.failures = 0
			if next == stepDone {
				return nil, a.held(nil)
			}
			continue
		}
		a.failures = 0
		if !g.ok {
			if next, err = a.beaten(wait); err != nil {
				return nil, err
			}
			continue
		}
		if a.l.opts.mutant&mutantDeadlineFromReply != 0 {
			sent = a.l.valid()
		}
		switch {
		case g.token < minToken:
			// rule: a record is made without a token; who holds it draws one. A token drawn before an insert that was
			// long under way could be below those of a record that came and went meanwhile.
			a.unseeded, a.unclear, next = true, true, stepConfirm
			continue
		case a.l.valid() >= sent+a.hold.Lease-margin(a.hold.Lease):
			// rule: re-check before returning: the process was stopped so long that the lease may be over.
			a.unclear, next = true, stepConfirm
			continue
		case wait.Err() != nil:
			a.unclear = true // so that it is released. rule: a caller whose context ended gets no lock
			return nil, a.ended(wait, caller)
		}
		le, err := a.l.newLease(caller, a, g.token, sent)
		a.unclear = a.unclear || err != nil
		return le, err
	}
}

// beaten decides what to do after a write that matched nothing.
func (a *attempt) beaten(wait context.Context) (step, error) {
	a.takingOver, a.unseeded = false, false
	a.races++
	if a.try && a.races > maxRaces {
		return 0, a.held(nil)
	}
	if a.races > 1 {
		// Either others are faster again and again, or reads are stale and keep promising what is not so.
		pause(wait.Done(), a.race.next())
	}
	return stepRead, nil
}

// minToken is the least token that is granted: 13 January 1970 in microseconds. A record below it has no token yet.
const minToken = 1 << 40

// seed is the first token of a record, drawn while we hold it.
//
// rule: it is above every token of an earlier, deleted record: tokens grow by one per acquisition, so more slowly than
// the clock in microseconds that the first of them was taken from. What this Locker has seen bounds it as well.
func (a *attempt) seed() int64 {
	return max(a.l.opts.Wall().UnixMicro(), a.l.seen.look(a.name).floor+1, minToken)
}

// retire goes on with a new id, after an insert with the present one that had no effect so far.
//
// rule: an id is inserted once at most. Should the insert arrive after all, when the record has been made, granted and
// deleted again, then nothing else of this attempt that is still under way, a first token in particular, applies to
// it. It is an orphan like any other, which this Locker takes over at once.
func (a *attempt) retire() {
	a.l.seen.bury(a.hold.ID)
	a.mu.Lock()
	a.hold.ID = NewHoldID()
	a.mu.Unlock()
	a.inserted, a.unseeded = false, false
}

// stepDone ends an attempt that must not wait.
const stepDone step = -1

// read reads the record and decides what to do next; it sleeps when that is to wait.
func (a *attempt) read(wait context.Context) (step, error) {
	type reading struct {
		r     Record
		found bool
		at    time.Duration
	}
	got, err := call(a.l, wait, opTimeout(a.hold.Lease), func(ctx context.Context) (reading, error) {
		r, found, err := a.l.store.Read(ctx, a.name)
		return reading{r, found, a.l.clock()}, err
	}, nil)
	if err != nil {
		return 0, err
	}
	ob := a.l.seen.saw(a.name, got.r, got.found, got.at)
	switch {
	case !got.found:
		return stepCreate, nil
	case got.r.Hold == nil:
		return stepFree, nil
	case got.r.Hold.ID == a.hold.ID:
		return stepConfirm, nil
	}
	a.last = ob
	age, need := a.l.clock()-ob.version, a.l.patience(a, *got.r.Hold)
	if age >= need {
		return stepTakeOver, nil
	}
	if a.try {
		return stepDone, nil
	}
	a.races = 0
	if a.lastHold != got.r.Hold.ID {
		a.lastHold = got.r.Hold.ID
		a.poll.reset() // the lock changes hands: it may be free soon
	}
	a.poll.ceiling = min(maxPoll, got.r.Hold.Lease/16)
	a.l.stats.polls.Add(1)
	pause(wait.Done(), min(a.poll.next(), need-age))
	return stepRead, nil
}

// patience is how long a version of hold h must stand still before the lock may be taken over.
func (l *Locker) patience(a *attempt, h Hold) time.Duration {
	switch {
	case l.opts.mutant&mutantEarlyTakeover != 0:
		return 0
	case l.opts.mutant&mutantOwnLease != 0:
		return standstill(a.hold.Lease)
	case l.seen.isDead(h.ID):
		return 0 // our own, and no code relies on it any more
	case provablyDead(l.opts.Owner, h.Owner):
		return 0 // a process of this machine that is gone
	}
	return standstill(h.Lease)
}

// write runs the operation of a step that may make the lock ours.
func (a *attempt) write(wait context.Context, now step) (grant, error) {
	if a.inserted && now != stepConfirm {
		a.retire()
	}
	s, v := a.l.store, NewVersion()
	switch now {
	case stepFree:
		return a.send(wait, func(ctx context.Context, h Hold) (token int64, ok bool, err error) {
			return s.Acquire(ctx, a.name, h, v)
		})
	case stepCreate:
		a.inserted = true
		return a.send(wait, func(ctx context.Context, h Hold) (token int64, ok bool, err error) {
			ok, err = s.Create(ctx, a.name, h, v)
			return 0, ok, err
		})
	case stepTakeOver:
		// rule: takeover is a compare-and-swap on the version that stood still.
		a.takingOver = true
		seen := a.last.record.Version
		return a.send(wait, func(ctx context.Context, h Hold) (token int64, ok bool, err error) {
			return s.TakeOver(ctx, a.name, seen, h, v)
		})
	}
	// rule: after an unclear answer the lock is ours only if a write bound to our id is acknowledged.
	var floor int64
	if a.unseeded {
		floor = a.seed() - 1
		if a.l.opts.mutant&mutantEarlySeed != 0 {
			floor = a.drawn - 1
		}
	}
	return a.send(wait, func(ctx context.Context, h Hold) (token int64, ok bool, err error) {
		return s.Confirm(ctx, a.name, h.ID, floor, v)
	})
}

// send runs one operation of the attempt. If its result comes after the attempt is over it is undone, unless the attempt
// got the lock in another way and still has it: both are the same hold then.
func (a *attempt) send(wait context.Context, op func(context.Context, Hold) (int64, bool, error)) (grant, error) {
	h := a.hold
	return call(a.l, wait, opTimeout(h.Lease), func(ctx context.Context) (grant, error) {
		token, ok, err := op(ctx, h)
		return grant{token, ok}, err
	}, func(g grant, err error) {
		a.mu.Lock()
		retired := a.hold.ID != h.ID
		ended := a.over && (a.lease == nil || a.lease.ctx.Err() != nil)
		a.mu.Unlock()
		if (retired || ended) && (g.ok || unclear(err)) {
			a.l.abandon(a.name, h)
		}
	})
}

// unclear tells whether a write that returned err may have been, or may yet be, applied.
func unclear(err error) bool {
	return err != nil && !errors.Is(err, ErrPermanent) && !errors.Is(err, errNotSent)
}

// failed decides what to do after the error of a step: which step comes next, or an error to give up with.
func (a *attempt) failed(wait, caller context.Context, now step, sent time.Duration, err error) (step, error) {
	if now != stepRead && unclear(err) {
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
		a.retry.reset()
	}
	failing := a.l.valid() - a.failingSince
	if failing >= a.l.opts.GiveUpAfter || a.try && a.failures >= 2 {
		return 0, &UnavailableError{Doing: "acquire", Name: a.name, For: failing, Cause: err}
	}
	pause(wait.Done(), a.retry.next())
	switch {
	case a.l.opts.mutant&mutantNoConfirm != 0:
		a.mu.Lock()
		a.hold.ID = NewHoldID()
		a.mu.Unlock()
		return now, nil
	case now == stepRead:
		return stepRead, nil
	}
	return stepConfirm, nil
}

// ended is the error of an attempt whose wait is over.
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
	case a.last.known:
		return a.held(cause)
	case waited:
		return &UnavailableError{Doing: "acquire", Name: a.name, For: a.l.valid() - a.began, Cause: errWaited}
	}
	return fmt.Errorf("acquire lock %q: %w", a.name, cause)
}

// held is the error of an attempt that found the lock held.
func (a *attempt) held(cause error) error {
	e := &HeldError{Name: a.name, Cause: cause}
	if h := a.last.record.Hold; h != nil {
		e.Owner, e.Why, e.Lease, e.Token = h.Owner, h.Why, h.Lease, a.last.record.Token
		e.Observed = a.l.clock() - a.last.hold
		a.l.mu.Lock()
		_, e.Own = a.l.leases[h.ID]
		a.l.mu.Unlock()
	}
	return e
}

// abandon undoes an attempt whose outcome is unknown, in the background, on its own context. Should the attempt be
// applied even later, its hold is an orphan that nobody renews: gone after one lease, and at once for this Locker,
// which remembers the id.
//
// The caller is counted in l.wg.
func (l *Locker) abandon(name string, h Hold) {
	l.stats.abandoned.Add(1)
	l.seen.bury(h.ID)
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		_, _ = l.release(name, h)
	}()
}

// release removes the hold, repeating the operation until the first clear answer, for one lease at most. gone tells that
// the record did not have the hold although no earlier try can have removed it.
//
// rule: bound to the id, so it never touches a successor; on its own context, so the end of the caller's does not keep
// the lock locked.
func (l *Locker) release(name string, h Hold) (gone bool, err error) {
	begin := l.valid()
	retry := jitter{ceiling: min(time.Second, h.Lease/20)}
	for try := 1; ; try++ {
		ok, err := call(l, l.base, opTimeout(h.Lease), func(ctx context.Context) (bool, error) {
			return l.store.Release(ctx, name, h.ID, NewVersion())
		}, nil)
		if err == nil {
			return !ok && try == 1, nil
		}
		spent := l.valid() - begin
		if spent >= h.Lease || errors.Is(err, ErrPermanent) || !pause(l.base.Done(), retry.next()) {
			return false, &UnavailableError{Doing: "release", Name: name, For: spent, Cause: err}
		}
	}
}
