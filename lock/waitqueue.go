package lock

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// maxHandoffs is how often in a row a lock goes from hand to hand inside a process: other processes
// may wait, too.
const maxHandoffs = 16

// waitQueues are the goroutines of a Locker that wait, by name. In each line they get the lock in
// the order in which they came, and only the first of them, the front, asks the store. Safe for
// concurrent use.
type waitQueues struct {
	mu    sync.Mutex
	names map[string]*waitQueue
}

type waitQueue struct {
	waiters   []*waiter // the front first
	handoffs  int       // how often in a row the lock went from hand to hand
	contested bool      // other Lockers have been seen with the lock

	// What the last front found when it gave up because the store failed.
	failing      bool
	failingSince time.Duration
	failure      error
}

// waiter is a goroutine in a line.
type waiter struct {
	front   chan struct{}   // closed when it becomes the front
	wake    chan wakeReason // the lock may be free
	handoff chan handoff    // the lock, handed off
	ctx     context.Context

	state waiterState // guarded by lines.mu, as is hold
	hold  Hold        // what it wants
}

type waiterState int

const (
	waiterParked waiterState = iota // sleeps; may be handed the lock when it is the front
	waiterBusy                      // asks the store
	waiterChosen                    // will get a handoff soon
	waiterGone
)

// wakeReason says why the lock may be free.
type wakeReason int

const (
	wakeReleased wakeReason = iota // released in this process
	wakeRest                       // so, too; but it has been in this process for long
	wakeHint                       // a Watcher says so
)

// hintSpread is how far waiters of different processes spread after a hint that all of them get.
const hintSpread = 50 * time.Millisecond

// handoff is the outcome of a handoff.
type handoff struct {
	grant
	sent    time.Duration
	unclear bool
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

// leave takes w out of the queue; who comes next is the front then.
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

// choose picks the front to hand an exclusive lock to; nil if it cannot take it now. Then wake it
// when the lock is free.
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

// wake tells the front that the lock may be free.
//
// rule: after so many handoffs in a row it holds back, for waiters of other processes.
func (ls *waitQueues) wake(name string) {
	ls.with(name, func(ln *waitQueue, front *waiter) {
		r := wakeReleased
		if ln.handoffs >= maxHandoffs {
			r, ln.handoffs = wakeRest, 0
		}
		front.tell(r)
	})
}

// hint is what a Watcher says.
func (ls *waitQueues) hint(name string) {
	ls.with(name, func(_ *waitQueue, front *waiter) { front.tell(wakeHint) })
}

func (w *waiter) tell(r wakeReason) {
	select {
	case w.wake <- r:
	default: // it is about to look anyway
	}
}

// park lets w be handed hold.
func (ls *waitQueues) park(w *waiter, hold Hold) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.state, w.hold = waiterParked, hold
}

// unpark is the end of it; it tells whether w was not chosen meanwhile.
func (ls *waitQueues) unpark(w *waiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.state == waiterChosen {
		return false
	}
	w.state = waiterBusy
	return true
}

// deliver gives a chosen waiter its handoff; it tells whether w was still there.
func (ls *waitQueues) deliver(w *waiter, g handoff) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.state != waiterChosen {
		return false
	}
	w.state = waiterBusy
	w.handoff <- g
	return true
}

// withdraw is the end of a chosen waiter whose context ended; it returns the handoff that came at
// the last moment.
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

// awaitTurn waits until we are the front, or somebody hands the lock off, or wait ends.
func (a *attempt) awaitTurn(wait context.Context) (g handoff, handed bool) {
	select {
	case <-a.w.front:
	case g = <-a.w.handoff:
		return g, true
	case <-wait.Done():
	}
	return a.unpark(wait)
}

// unpark is the end of a pause; if we have been chosen meanwhile it waits for the handoff.
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

// nearFirst tells whether the next release makes us the first in the record's queue, if we are not.
func (a *attempt) nearFirst() bool { i := a.index(); return i == 0 || i == 1 }

// first tells whether we are first in the record's queue.
func (a *attempt) first() bool { return a.index() == 0 }

// park sleeps for d, until somebody rings, hands the lock off, or wait ends.
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
	ls.park(w, a.hold)
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	var r wakeReason
	for parked := true; parked; {
		parked = false
		select {
		case <-t.C:
		case r = <-w.wake:
			parked = r == wakeHint && a.place == contendedPlace && !a.nearFirst() // it is for others
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
		a.poll.Reset()
		d := a.poll.Next()
		ls.with(a.name, func(ln *waitQueue, _ *waiter) {
			if ln.contested {
				d = maxPoll
			}
		})
		pause(wait.Done(), d)
	case wakeHint:
		// The first in the queue need not spread. But a Watcher that cries all the time must not
		// make anybody spin.
		now := a.l.valid()
		switch again := now - a.hinted; {
		case a.place == contendedPlace && a.first():
			pause(wait.Done(), minProbe-again)
		case a.place == contendedPlace:
			pause(wait.Done(), minProbe) // then the one before us has it
		case !a.first() || again < hintSpread:
			pause(wait.Done(), rand.N(hintSpread))
		}
		a.hinted = now
	}
	return g, false
}

// place is a place in the record's queue: how long it lasts, and how often it is renewed. One that
// is renewed rarely costs less, and more if its waiter dies.
type place struct{ lease, every time.Duration }

var (
	fairPlace      = place{time.Second, time.Second / 5}
	contendedPlace = place{2 * time.Second, time.Second}
)

// wantedPlace is the place to take, if any: if the caller wants one, if shared holders could else
// follow one another for ever, if many wait, or if those that have a place never let us pass.
func (a *attempt) wantedPlace() place {
	switch shared := a.hold.Shared(); {
	case a.fair, !shared && len(a.last.record.Shares) > 0, shared && a.turns.passedBy():
		return fairPlace
	case !shared && a.turns.contended():
		return contendedPlace
	}
	return place{}
}

// index is our place in the record's queue, counted from 0; -1 = none.
func (a *attempt) index() int {
	return slices.IndexFunc(a.last.record.Queue, func(e Entry) bool { return e.ID == a.hold.ID })
}

// enqueue takes or keeps a place in the record's queue. A failure costs nothing but the place.
func (a *attempt) enqueue(wait context.Context) {
	now := a.l.valid()
	if !a.queued {
		a.place = a.wantedPlace()
	}
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
	a.queued, a.beat = true, now
	e := Entry{Hold: a.hold, Version: NewVersion()}
	e.Lease = a.place.lease
	_, _ = call(a.l, wait, fairPlace.lease/2, func(ctx context.Context) (bool, error) {
		return a.l.store.Enqueue(ctx, a.name, e)
	}, nil)
}

// dequeue leaves the queue, in the background.
func (a *attempt) dequeue() {
	if !a.queued {
		return
	}
	id := a.hold.ID
	a.l.wg.Add(1)
	go func() {
		defer a.l.wg.Done()
		for range 2 {
			_, err := call(a.l, a.l.base, fairPlace.lease, func(ctx context.Context) (bool, error) {
				return a.l.store.Dequeue(ctx, a.name, id, Version{})
			}, nil)
			if err == nil {
				return
			}
		}
	}()
}
