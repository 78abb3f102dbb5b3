package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// maxRaces bounds how many lost races in a row TryAcquire retries.
const maxRaces = 8

var errWaited = errors.New("the WithWait timeout elapsed")

// attempt is one acquisition: a loop of steps (run) and its state. It runs on its caller's goroutine;
// only over, lease and hold.ID are read by other goroutines (send), under mu.
type attempt struct {
	l     *Locker
	name  string
	hold  Hold    // rule: the id stays the same across retries, so that a try whose answer was lost is recognized as ours; but see renewID
	try   bool    // do not wait
	w     *waiter // our place in the queue of this process; nil = do not wait
	began time.Duration
	begin step

	// The outcome of the writes so far.
	unclear    bool // one without a clear answer may have been applied, or may yet be
	inserted   bool // a record with the present id may have been inserted, or may yet be
	tokenless  bool // the record is known to be ours, and to have no token yet
	takingOver bool // the latest write was a takeover
	displacing bool // … from a holder whose requests may still be in flight
	expired    bool // the share of such a holder was removed
	races      int  // races lost in a row
	race       jitter

	// The observed holder.
	last     observation
	lastHold HoldID
	poll     wait.Backoff
	handoff  handoff       // the latest handoff to this attempt
	hinted   time.Duration // when a Watcher's hint last ended a pause

	// Our place in the record's queue.
	fair   bool
	queued bool
	place  place
	beat   time.Duration // when it was last renewed
	turns  turns         // how fast the queue moves
	probes int           // tries in a row, each instead of a read

	// While we are first in it.
	ahead   int     // reads since the last reason to poll fast
	version Version // the record's version at the last read

	outage outage
	retry  jitter

	// For results of store operations that arrive after the attempt has ended: see send.
	mu    sync.Mutex
	over  bool
	lease *Lease // the result of the attempt; nil if it failed
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
	stepRead                 // read the record
	stepCreate               // there is no record
	stepTakeOver             // the holder is dead
	stepConfirm              // an answer was lost: is the lock ours?
)

// acquire is Acquire and, with try, TryAcquire. It applies the options around the attempts: WithWait, WithTakeoverDelay and
// WithMaxHold.
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
	if err := l.waitsForItself(ctx, name, c.permits); err != nil {
		return nil, err
	}

	open, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.open, func() { cancel(ErrClosed) })()
	wait := open
	if c.waitSet && !try {
		var stop context.CancelFunc
		wait, stop = context.WithTimeoutCause(open, c.wait, errWaited)
		defer stop()
	}
	until := l.valid() // when the takeover delay ends; kept if the lock is lost during the delay
	for {
		le, err := l.once(ctx, wait, name, &c, try)
		if errors.Is(err, errWaited) {
			// The wait was shorter than the store's response time: try once more, so that the error can
			// name the holder.
			wait = open
			le, err = l.once(ctx, wait, name, &c, true)
		}
		if err != nil {
			return nil, err
		}
		if le.displaced && c.delay > 0 {
			until = later(l.valid(), c.delay)
		}
		if !le.sitOut(wait, until) {
			if err := wait.Err(); err != nil {
				return nil, fmt.Errorf("acquire lock %q: during the takeover delay: %w: %w", name, err, context.Cause(wait))
			}
			if l.open.Err() != nil { // wait ends a moment later
				return nil, fmt.Errorf("acquire lock %q: during the takeover delay: %w", name, ErrClosed)
			}
			continue // lost during the delay
		}
		if c.maxHoldSet {
			le.bound(later(l.valid(), c.maxHold))
		}
		return le, nil
	}
}

// later is t+d, or math.MaxInt64 if that overflows. d is not negative; t may be.
func later(t, d time.Duration) time.Duration {
	if t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}

// once makes one attempt when its turn comes in the wait queue of this process. ctx is the caller's
// context; wait ends with it, or earlier because of Close or WithWait.
func (l *Locker) once(ctx, wait context.Context, name string, c *config, try bool) (*Lease, error) {
	a := &attempt{
		l: l, name: name, try: try, began: l.valid(),
		hold:  Hold{ID: NewHoldID(), Lease: c.lease, Owner: l.opts.Owner, Why: c.why, Permits: c.permits},
		fair:  c.fair,
		retry: newJitter(min(time.Second, c.lease/20)),
		race:  newJitter(maxPoll),
		poll:  newPoll(),
		turns: l.seen.look(name).turns.again(l.clock()),
	}
	if !try {
		a.w = l.queues.join(wait, name, a.hold)
		defer l.queues.leave(name, a.w)
		var handed bool
		if a.handoff, handed = a.awaitTurn(wait); handed {
			a.begin = stepHandedOff
		}
		if wait.Err() != nil {
			if handed && (a.handoff.ok || a.handoff.unclear) {
				l.abandon(name, a.hold)
			}
			a.last = l.seen.look(name)
			return nil, a.ended(wait, ctx)
		}
		a.resumeFailure()
	}
	le, err := a.run(wait, ctx)
	a.mu.Lock()
	a.over, a.lease = true, le
	a.mu.Unlock()
	if err != nil {
		a.dequeue()
	}
	if err != nil && a.unclear {
		l.abandon(name, a.hold)
	}
	if !try {
		a.carryFailure(err == nil && !a.handoff.ok)
		if err == nil && a.place == contendedPlace {
			a.turns.granted(a.ahead > 0)
		}
		l.seen.keepTurns(name, a.turns)
	}
	return le, err
}

// resumeFailure inherits the failures of the previous front, so that GiveUpAfter counts from the first
// of them, but not from before this attempt began.
func (a *attempt) resumeFailure() {
	a.l.queues.with(a.name, func(ln *waitQueue, _ *waiter) {
		if ln.outage.failures > 0 {
			a.outage = ln.outage
			a.outage.failures, a.outage.since = 1, max(ln.outage.since, a.began)
		}
	})
}

// carryFailure passes our failures on to the next front: see resumeFailure. fresh means that we
// acquired the lock from the store, not by a handoff.
func (a *attempt) carryFailure(fresh bool) {
	a.l.queues.with(a.name, func(ln *waitQueue, _ *waiter) {
		if fresh {
			ln.handoffs = 0
		}
		ln.outage = a.outage
	})
}

// check refuses options out of range. The error is an InvalidError.
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
	if c.maxHoldSet && c.maxHold <= 0 {
		return &InvalidError{What: "longest hold", Value: c.maxHold.String(), Problem: "it must be positive"}
	}
	if c.permitsSet && (c.permits < 1 || c.permits > MaxEntries) {
		return &InvalidError{What: "number of permits", Value: strconv.Itoa(c.permits), Problem: fmt.Sprintf("it must be "+
			"between 1 and %d", MaxEntries)}
	}
	if c.delay < 0 {
		return &InvalidError{What: "takeover delay", Value: c.delay.String(), Problem: "it must not be negative"}
	}
	// Stores keep whole milliseconds; a holder must not rely on a longer lease than other processes see.
	c.lease = c.lease.Truncate(time.Millisecond)
	return checkText("text of WithWhy", c.why)
}

// run executes steps until the lock is held, the attempt fails or wait ends. caller is the caller's
// context; if it has ended, its error is the one returned.
func (a *attempt) run(wait, caller context.Context) (*Lease, error) {
	next := a.begin
	if r := a.l.seen.look(a.name).record; next == stepFree && (r.Held() || len(r.Queue) > 0 || a.turns.contended()) {
		next = stepRead // rule: read first; a write that will probably fail costs the server more than a read
	}
	for {
		if wait.Err() != nil {
			if next == stepHandedOff {
				a.unclear = a.unclear || a.handoff.ok || a.handoff.unclear
			}
			return nil, a.ended(wait, caller)
		}
		var (
			g    grant
			err  error
			now  = next
			sent = a.l.valid() // rule: a lease counts from when the operation that acquired or renewed it was sent
		)
		switch now {
		case stepHandedOff:
			g, sent = a.handoff.grant, a.handoff.sent
			if a.handoff.unclear {
				a.unclear, next = true, stepConfirm
				continue
			}
		case stepRead:
			next, err = a.read(wait)
		default:
			g, err = a.write(wait, now)
		}
		if err != nil {
			if next, err = a.failed(wait, caller, now, sent, err); err != nil {
				return nil, err
			}
			continue
		}
		if now == stepRead {
			if next == stepDone {
				return nil, a.held(nil)
			}
			if next != stepHandedOff {
				a.answered(sent)
			}
			continue
		}
		if now == stepConfirm && !g.ok {
			a.answered(sent) // nothing was written
		} else {
			a.outage = outage{}
		}
		if !g.ok && now == stepFree && a.probes > 0 && a.probes < maxProbes {
			next = a.probe(wait)
			continue
		}
		a.probes = 0
		if !g.ok {
			if next, err = a.lostRace(wait); err != nil {
				return nil, err
			}
			continue
		}
		var le *Lease
		if le, next, err = a.accept(wait, caller, g, sent); le != nil || err != nil {
			return le, err
		}
	}
}

// accept makes the lease of a grant, or decides the next step if the grant cannot be used yet. sent is when the operation that
// granted it was sent.
func (a *attempt) accept(wait, caller context.Context, g grant, sent time.Duration) (*Lease, step, error) {
	switch {
	case g.token < minToken:
		// rule: a record is created without a token; its holder then draws one. A token drawn before an insert that
		// arrived late could be lower than the tokens of a record created and deleted in the meantime.
		a.tokenless, a.unclear = true, true
		return nil, stepConfirm, nil
	case a.l.valid() >= sent+a.hold.Lease-margin(a.hold.Lease):
		// rule: re-check before returning: the process was stopped for so long that the lease may have expired.
		a.unclear = true
		return nil, stepConfirm, nil
	case wait.Err() != nil:
		a.unclear = true // so that it is released. rule: a caller whose context ended gets no lock
		return nil, 0, a.ended(wait, caller)
	}
	le, err := a.l.newLease(caller, a, g.token, sent)
	a.unclear = a.unclear || err != nil
	return le, 0, err
}

// lostRace decides the next step after a write whose condition was not met: another write came first,
// or the read was stale.
func (a *attempt) lostRace(wait context.Context) (step, error) {
	a.takingOver, a.tokenless = false, false
	a.displacing = a.displacing && a.unclear // the takeover may yet turn out to have been applied
	a.races++
	if a.try && a.races > maxRaces {
		if a.outage.failures > 0 {
			return 0, a.unavailable(nil)
		}
		return 0, a.held(nil)
	}
	if a.races > 1 {
		// Either other attempts keep winning, or stale reads keep showing a held lock as free. Both
		// need a pause.
		pause(wait.Done(), a.race.Next())
	}
	return stepRead, nil
}

// minToken is the smallest token ever granted: 13 January 1970 in microseconds. A record with a
// smaller one has no token yet.
const minToken = 1 << 40

// firstToken chooses the first token of a new record. The caller holds the record.
//
// rule: it is above every token of an earlier, deleted record: tokens grow by one per acquisition, more slowly than the
// microsecond clock that the first of them came from. It is also above every token that this Locker has seen.
func (a *attempt) firstToken() int64 {
	return max(a.l.opts.Wall().UnixMicro(), a.l.seen.look(a.name).floor+1, minToken)
}

// renewID gives the attempt a new id after an insert with the present id that has had no visible
// effect so far.
//
// rule: an id is inserted once at most. If the insert arrives late, after the record has been created, granted and
// deleted again, no other request of this attempt still in flight, in particular no first token,
// applies to it. The record it creates is then an orphan like any other, which this Locker takes over
// at once.
func (a *attempt) renewID() {
	a.l.seen.markDead(a.hold.ID)
	a.mu.Lock()
	a.hold.ID = NewHoldID()
	a.mu.Unlock()
	a.inserted, a.tokenless, a.queued = false, false, false
}

const (
	stepDone      step = -1 - iota // the lock is held: wait, or with try give up
	stepHandedOff                  // the lock was handed off to us, or may have been
)

// read reads the record and decides the next step. If the attempt has to wait, read sleeps first.
func (a *attempt) read(wait context.Context) (step, error) {
	if known := a.l.seen.look(a.name); !a.last.known && a.w != nil && known.record.Hold != nil && a.l.holds(known.record.Hold.ID) {
		// A lease of this Locker holds it and will hand it off to us: no need to query the store.
		a.last = known
		var handed bool
		if a.handoff, handed = a.park(wait, a.poll.Next()); handed {
			return stepHandedOff, nil
		}
	}
	got, err := a.look(wait)
	if err != nil {
		return 0, err
	}
	ob := a.l.seen.saw(a.name, got.record, got.found, got.at)
	if !got.found {
		return stepCreate, nil
	}
	for _, h := range got.record.Holds() {
		if h.ID == a.hold.ID {
			return stepConfirm, nil
		}
	}
	a.last = ob
	a.turns.sawFree(got.record)
	v := a.decide()
	switch {
	case v.remove != nil:
		removed, err := v.remove(wait)
		if err == nil && !removed {
			// rule: what cannot be removed is a lost race, with its pauses: stale reads may show it for a long time.
			return a.lostRace(wait)
		}
		return stepRead, err
	case v.next != stepDone || a.try:
		return v.next, nil
	}
	return a.await(wait, got, v.patience), nil
}

// await waits while another has the lock: in the record's queue, if we need a place there, and for at most patience. It returns the
// next step.
func (a *attempt) await(wait context.Context, got sight, patience time.Duration) step {
	a.turns.saw(got.record, a.hold.ID, got.at)
	a.races, a.outage = 0, outage{} // while another has the lock there is nothing to write
	a.adjustPoll(got.record)
	a.enqueue(wait)
	a.l.stats.polls.Add(1)
	var handed bool
	if a.handoff, handed = a.park(wait, min(a.nextPoll(got.at), patience)); handed {
		return stepHandedOff
	}
	if a.probing() {
		a.probes = 1
		return stepFree
	}
	return stepRead
}

// adjustPoll sets the longest pause between two reads, from the holders that the record shows and our position in its queue.
func (a *attempt) adjustPoll(r Record) {
	// The longer this holder has had the lock, the longer the pauses: they stay short compared with the wait so far.
	a.poll.Max = min(max(soonPoll, a.turns.present()/16), maxPoll)
	holder := HoldID{}
	for _, h := range r.Holds() {
		holder = h.ID
		a.poll.Max = min(a.poll.Max, h.Lease/16)
		if !a.l.holds(h.ID) {
			a.l.queues.with(a.name, func(ln *waitQueue, _ *waiter) { ln.contested = true })
		}
	}
	if a.first() {
		// All other waiters are behind us, so poll fast. A holder that was asked to release sees the
		// request when it renews, and will probably release next: then poll fast again.
		if renewed := a.version != r.Version; renewed && r.Hold != nil && r.Hold.Asked != "" {
			a.ahead = 0
		}
		a.version = r.Version
		if a.ahead++; a.ahead <= eagerPolls {
			a.poll.Max = min(a.poll.Max, eagerPoll)
		} else {
			a.poll.Max = min(a.poll.Max, maxPoll/5)
		}
	}
	if a.lastHold != holder {
		a.lastHold = holder
		a.poll.Reset() // a new holder: if holds are short, the lock may be free soon
	}
}

// sight is a reading of the record with the time of the reading, on l.clock.
type sight struct {
	reading
	at time.Duration
}

// look reads the record. If the lock was contended a moment ago, it takes a place in the queue in the
// same operation.
func (a *attempt) look(wait context.Context) (sight, error) {
	a.choosePlace()
	// Not if a write of ours may have been applied: the lock may then be ours already, and the place would stay in its queue.
	if !a.queued && a.place == contendedPlace && a.w != nil && !a.last.known && !a.unclear && !a.inserted {
		got, err := a.join(wait, a.timeout())
		if err != nil || got.found {
			return got, err
		}
		a.queued = false
	}
	return ask(a, wait, a.timeout(), func(ctx context.Context) (sight, error) {
		r, found, err := a.l.store.Read(ctx, a.name)
		return sight{reading{r, found}, a.l.clock()}, err
	}, nil)
}

// probe pauses, then makes the attempt try to acquire again without reading first.
func (a *attempt) probe(wait context.Context) step {
	a.probes++
	var handed bool
	if a.handoff, handed = a.park(wait, a.probePause()); handed {
		return stepHandedOff
	}
	return stepFree
}

// write runs the store operation of a step that may grant us the lock, or confirm that it is ours.
func (a *attempt) write(wait context.Context, now step) (grant, error) {
	if a.inserted && now != stepConfirm {
		a.renewID()
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
		// rule: takeover is a compare-and-swap on the version that did not change.
		a.takingOver, a.displacing = true, !a.l.seen.isDead(a.last.record.Hold.ID)
		seen := a.last.record.Version
		return a.send(wait, func(ctx context.Context, h Hold) (token int64, ok bool, err error) {
			return s.TakeOver(ctx, a.name, seen, h, v)
		})
	}
	// rule: after an unclear answer the lock is ours only if a write bound to our id is acknowledged.
	var floor int64
	if a.tokenless {
		floor = a.firstToken() - 1
	}
	return a.send(wait, func(ctx context.Context, h Hold) (token int64, ok bool, err error) {
		return s.Confirm(ctx, a.name, h, floor, v)
	})
}

// send runs one operation of the attempt. If the grant arrives only after the attempt has ended, it is
// undone, unless the attempt acquired the lock another way and still holds it: then both are the same
// hold.
func (a *attempt) send(wait context.Context, op func(context.Context, Hold) (int64, bool, error)) (grant, error) {
	h := a.hold
	return ask(a, wait, a.timeout(), func(ctx context.Context) (grant, error) {
		token, ok, err := op(ctx, h)
		return grant{token, ok}, err
	}, func(g grant, err error) {
		a.mu.Lock()
		retired := a.hold.ID != h.ID
		ended := a.over && (a.lease == nil || a.lease.ctx.Err() != nil)
		a.mu.Unlock()
		if (retired || ended) && (g.ok || unclearAnswer(err)) {
			a.l.abandon(a.name, h)
		}
	})
}
