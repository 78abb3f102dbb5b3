package lock

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// maxHandoffs bounds how many handoffs in a row keep a lock inside this process, because other
// processes may be waiting, too.
const maxHandoffs = 16

// waitQueues has the waiting goroutines of a Locker, by the name of the lock. They get the lock in
// order of arrival, and only the first of them, the front, queries the store. Safe for concurrent use.
//
// This is the queue inside one process. The other queue is in the lock's record ([Record].Queue),
// where the fronts of different processes take places.
type waitQueues struct {
	mu    sync.Mutex
	names map[string]*waitQueue
}

// waitQueue is the queue of one name. It exists while it has waiters.
type waitQueue struct {
	waiters   []*waiter // the front first
	handoffs  int       // handoffs in a row
	contested bool      // another Locker has been seen holding the lock

	outage outage // that the last front met, for the next one: see carryFailure
}

// waiter is one goroutine in a waitQueue.
type waiter struct {
	front   chan struct{}   // closed when it becomes the front
	wake    chan wakeReason // the lock may be free
	handoff chan handoff    // the lock, handed off
	ctx     context.Context

	state waiterState // guarded by waitQueues.mu, as is hold
	hold  Hold        // the hold it wants to acquire
}

// waiterState says whether a waiter can get a handoff. A handoff takes a round trip to the store: the
// waiter is chosen first, so that it does not acquire or leave meanwhile.
type waiterState int

const (
	waiterParked waiterState = iota // sleeps; can get a handoff when it is the front
	waiterBusy                      // queries the store
	waiterChosen                    // a handoff to it is under way, or has just been delivered
	waiterGone                      // stopped waiting for that handoff: its context ended
)

// wakeReason says why the lock may be free.
type wakeReason int

const (
	wakeReleased wakeReason = iota // released in this process
	wakeRest                       // the same, but other processes should go first: see maxHandoffs
	wakeHint                       // a Watcher reported it
)

// hintSpread spreads the reads of waiters of different processes after a hint, which they all receive
// at the same time.
const hintSpread = 50 * time.Millisecond

// handoff is the outcome of a handoff, delivered to the chosen waiter.
type handoff struct {
	grant
	sent    time.Duration // when it was sent, on l.valid: the new lease counts from here
	unclear bool          // no answer: the waiter may have the lock, and must confirm that with the store
}

// join puts a new waiter at the end of the queue.
func (ls *waitQueues) join(ctx context.Context, name string, hold Hold) *waiter {
	w := &waiter{front: make(chan struct{}), wake: make(chan wakeReason, 1), handoff: make(chan handoff, 1), ctx: ctx, hold: hold}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.names[name]
	if ln == nil {
		if ls.names == nil {
			ls.names = make(map[string]*waitQueue)
		}
		ln = &waitQueue{}
		ls.names[name] = ln
		close(w.front)
	}
	ln.waiters = append(ln.waiters, w)
	return w
}

// leave takes w out of the queue. If it was the front, the next waiter becomes the front.
func (ls *waitQueues) leave(name string, w *waiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.names[name]
	i := slices.Index(ln.waiters, w)
	ln.waiters = slices.Delete(ln.waiters, i, i+1)
	switch {
	case len(ln.waiters) == 0:
		delete(ls.names, name)
	case i == 0:
		close(ln.waiters[0].front)
	}
}

// with runs f on the queue of name, if there is one.
func (ls *waitQueues) with(name string, f func(ln *waitQueue, front *waiter)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln := ls.names[name]; ln != nil {
		f(ln, ln.waiters[0])
	}
}

// length is the number of waiters in the queue of name.
func (ls *waitQueues) length(name string) (n int) {
	ls.with(name, func(ln *waitQueue, _ *waiter) { n = len(ln.waiters) })
	return n
}

// choose picks the front for a handoff of an exclusive lock, or returns nil if the front cannot take it
// now. After nil, call wake when the lock is free.
func (ls *waitQueues) choose(name string) (w *waiter) {
	ls.with(name, func(ln *waitQueue, front *waiter) {
		if front.state != waiterParked || front.hold.Shared() || front.ctx.Err() != nil || ln.handoffs >= maxHandoffs {
			return
		}
		ln.handoffs++
		front.state = waiterChosen
		w = front
	})
	return w
}

// wake notifies the front that the lock may be free.
//
// rule: after maxHandoffs in a row the front holds back, so that waiters of other processes get a chance.
func (ls *waitQueues) wake(name string) {
	ls.with(name, func(ln *waitQueue, front *waiter) {
		r := wakeReleased
		if ln.handoffs >= maxHandoffs {
			r, ln.handoffs = wakeRest, 0
		}
		front.tell(r)
	})
}

// hint notifies the front that a Watcher reported the lock as free.
func (ls *waitQueues) hint(name string) {
	ls.with(name, func(_ *waitQueue, front *waiter) { front.tell(wakeHint) })
}

// tell wakes w, unless a wake-up is already pending.
func (w *waiter) tell(r wakeReason) {
	select {
	case w.wake <- r:
	default: // it is about to read the record anyway
	}
}

// park allows handoffs to w, which then gets hold.
func (ls *waitQueues) park(w *waiter, hold Hold) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.state, w.hold = waiterParked, hold
}

// unpark ends park. It returns false if w has been chosen meanwhile: then a handoff is under way, and
// w must wait for it.
func (ls *waitQueues) unpark(w *waiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.state == waiterChosen {
		return false
	}
	w.state = waiterBusy
	return true
}

// deliver gives a chosen waiter its handoff. It returns false if w has stopped waiting: then the
// caller must undo the handoff.
func (ls *waitQueues) deliver(w *waiter, g handoff) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.state != waiterChosen {
		return false
	}
	w.handoff <- g // w stays chosen, so that unpark does not miss a handoff that arrives just as its wait ends
	return true
}

// withdraw ends the wait of a chosen waiter whose context ended. ok is true if the handoff had just
// arrived; later ones are refused by deliver.
func (ls *waitQueues) withdraw(w *waiter) (g handoff, ok bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.state = waiterGone
	select {
	case g = <-w.handoff:
		return g, true
	default:
		return g, false
	}
}

// awaitTurn waits until we are the front, we get a handoff, or wait ends.
func (a *attempt) awaitTurn(wait context.Context) (g handoff, handed bool) {
	select {
	case <-a.w.front:
	case g = <-a.w.handoff:
		return g, true
	case <-wait.Done():
	}
	return a.unpark(wait)
}

// unpark ends a pause. If we have been chosen meanwhile, it waits for that handoff.
func (a *attempt) unpark(wait context.Context) (g handoff, handed bool) {
	if a.l.queues.unpark(a.w) {
		return g, false
	}
	select {
	case g = <-a.w.handoff:
		return g, true
	case <-wait.Done():
		return a.l.queues.withdraw(a.w)
	}
}

// nearFirst reports whether we are first in the record's queue, or will be after the next grant.
func (a *attempt) nearFirst() bool { i := a.index(); return i == 0 || i == 1 }

// first reports whether we are first in the record's queue.
func (a *attempt) first() bool { return a.index() == 0 }

// park sleeps for d, or until we are woken, the lock is handed off to us, or wait ends.
func (a *attempt) park(wait context.Context, d time.Duration) (g handoff, handed bool) {
	w := a.w
	if w == nil {
		pause(wait.Done(), d)
		return g, false
	}
	if a.inserted {
		a.renewID()
	}
	a.l.startWatching()
	ls := &a.l.queues
	// From here until unpark, a goroutine of this process that releases the lock may hand it off to us.
	ls.park(w, a.hold)
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	var r wakeReason
	for parked := true; parked; {
		parked = false
		select {
		case <-t.C:
		case r = <-w.wake:
			parked = r == wakeHint && a.place == contendedPlace && !a.nearFirst() // not our turn yet
		case <-wait.Done():
		case g = <-w.handoff:
			return g, true
		}
	}
	if g, handed = a.unpark(wait); handed {
		return g, true
	}
	switch r {
	case wakeRest:
		a.rest(wait)
	case wakeHint:
		a.spread(wait)
	}
	return g, false
}

// rest lets the waiters of other processes go first, if there are any: see maxHandoffs.
func (a *attempt) rest(wait context.Context) {
	a.poll.Reset()
	d := a.poll.Next()
	a.l.queues.with(a.name, func(ln *waitQueue, _ *waiter) {
		if ln.contested {
			d = maxPoll
		}
	})
	pause(wait.Done(), d)
}

// spread pauses after a Watcher's hint, which the waiters of all processes receive at the same time. The first in the record's
// queue has no competitors, so it need not spread its reads. The pauses also keep a Watcher that sends hints continuously from
// making a waiter spin.
func (a *attempt) spread(wait context.Context) {
	now := a.l.valid()
	switch again := now - a.hinted; {
	case a.place == contendedPlace && a.first():
		pause(wait.Done(), minProbe-again)
	case a.place == contendedPlace:
		pause(wait.Done(), minProbe) // let the waiter before us take it
	case !a.first() || again < hintSpread:
		pause(wait.Done(), rand.N(hintSpread))
	}
	a.hinted = now
}

// place is a kind of place in the record's queue: how long it lasts without a renewal, and how often
// it is renewed. Rare renewals cost fewer writes, but a waiter that dies blocks the queue for longer.
type place struct{ lease, every time.Duration }

var (
	fairPlace      = place{time.Second, time.Second / 5}
	contendedPlace = place{2 * time.Second, time.Second}
)

// choosePlace chooses the kind of place to take, unless we have one; the zero place means none. We take one if the caller
// requested it (WithFair), if an endless succession of shared holders could otherwise keep us out, if
// waiters with places keep passing us, or if the lock is contended.
func (a *attempt) choosePlace() {
	shared := a.hold.Shared()
	switch {
	case a.queued:
	case a.fair, !shared && len(a.last.record.Shares) > 0, shared && a.turns.passedBy():
		a.place = fairPlace
	case !shared && a.turns.contended():
		a.place = contendedPlace
	default:
		a.place = place{}
	}
}

// index is our position in the record's queue, from 0, when the record was last read; -1 = not in it.
func (a *attempt) index() int {
	return slices.IndexFunc(a.last.record.Queue, func(e Entry) bool { return e.ID == a.hold.ID })
}

// enqueue takes a place in the record's queue, or renews ours. It ignores failures: they cost at most
// the place.
func (a *attempt) enqueue(wait context.Context) {
	now := a.l.valid()
	a.choosePlace()
	every := a.place.every
	if a.place == contendedPlace && a.index() < 0 {
		every /= 4 // the place was lost
	}
	if a.place == (place{}) || a.queued && now-a.beat < every {
		return
	}
	if a.inserted {
		a.renewID()
	}
	const timeout = time.Second / 2 // a place is not worth more: meanwhile we do not read the record
	if a.index() < 0 {
		if got, err := a.join(wait, timeout); err == nil && got.found {
			a.last = a.l.seen.saw(a.name, got.record, true, got.at)
		}
		return
	}
	a.beat = now
	e := a.entry()
	_, _ = call(a.l, wait, timeout, func(ctx context.Context) (bool, error) {
		return a.l.store.RenewPlace(ctx, a.name, e)
	}, nil)
}

// join takes a place in the record's queue, and returns the record if it succeeds. If the answer comes only after the attempt
// has ended, the place may have been taken after the attempt gave it up: then it is given up again.
func (a *attempt) join(wait context.Context, timeout time.Duration) (sight, error) {
	a.queued, a.beat = true, a.l.valid()
	e := a.entry()
	return ask(a, wait, timeout, func(ctx context.Context) (sight, error) {
		r, ok, err := a.l.store.Enqueue(ctx, a.name, e)
		return sight{reading{r, ok}, a.l.clock()}, err
	}, func(sight, error) {
		a.mu.Lock()
		gone := a.over || a.hold.ID != e.ID
		a.mu.Unlock()
		if gone {
			a.leave(e.ID)
		}
	})
}

// entry is our place in the record's queue.
func (a *attempt) entry() Entry {
	e := Entry{Hold: a.hold, Version: NewVersion()}
	e.Lease = a.place.lease
	return e
}

// dequeue leaves the record's queue if we may have a place in it.
func (a *attempt) dequeue() {
	if a.queued {
		a.leave(a.hold.ID)
	}
}

// leave removes a place from the record's queue, in the background. If it fails, other waiters remove the place when it
// expires. The caller is counted in l.wg.
func (a *attempt) leave(id HoldID) {
	a.l.inBackground(func() {
		for range 2 {
			_, err := call(a.l, a.l.base, fairPlace.lease, func(ctx context.Context) (bool, error) {
				return a.l.store.Dequeue(ctx, a.name, id, Version{})
			}, nil)
			if err == nil {
				return
			}
		}
	})
}
