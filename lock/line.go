package lock

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// maxHandOvers is how often in a row a lock goes from hand to hand inside a process: other processes may wait, too.
const maxHandOvers = 16

// lines are the goroutines of a Locker that wait, by name. In each line they get the lock in the order in which they came,
// and only the first of them, the front, asks the store. Safe for concurrent use.
type lines struct {
	mu    sync.Mutex
	names map[string]*line
}

type line struct {
	waiters []*waiter // the front first
	handed  int       // how often in a row the lock went from hand to hand
	company bool      // other Lockers have been seen with the lock

	// What the last front found when it gave up because the store failed.
	failing      bool
	failingSince time.Duration
	failure      error
}

// waiter is a goroutine in a line.
type waiter struct {
	front chan struct{} // closed when it becomes the front
	ring  chan ring     // the lock may be free
	gift  chan gift     // the lock, handed over
	ctx   context.Context

	state waiterState // guarded by lines.mu, as is hold
	hold  Hold        // what it wants
}

type waiterState int

const (
	waiterParked waiterState = iota // sleeps; may be handed the lock when it is the front
	waiterBusy                      // asks the store
	waiterChosen                    // will get a gift soon
	waiterGone
)

// ring says why the lock may be free.
type ring int

const (
	ringReleased ring = iota // released in this process
	ringRest                 // so, too; but it has been in this process for long
	ringHint                 // a Watcher says so
)

// hintSpread is how far waiters of different processes spread after a hint that all of them get.
const hintSpread = 50 * time.Millisecond

// gift is the outcome of a hand-over.
type gift struct {
	grant
	sent    time.Duration
	unclear bool
}

// join puts a new waiter at the end of the line.
func (ls *lines) join(ctx context.Context, name string, hold Hold) *waiter {
	w := &waiter{front: make(chan struct{}), ring: make(chan ring, 1), gift: make(chan gift, 1), ctx: ctx, hold: hold}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.names[name]
	if ln == nil {
		if ls.names == nil {
			ls.names = make(map[string]*line)
		}
		ln = &line{}
		ls.names[name] = ln
		close(w.front)
	}
	ln.waiters = append(ln.waiters, w)
	return w
}

// leave takes w out of the line; who comes next is the front then.
func (ls *lines) leave(name string, w *waiter) {
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

// with runs f on the line of name, if there is one.
func (ls *lines) with(name string, f func(ln *line, front *waiter)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln := ls.names[name]; ln != nil {
		f(ln, ln.waiters[0])
	}
}

// length is the number of waiters in the line of name.
func (ls *lines) length(name string) (n int) {
	ls.with(name, func(ln *line, _ *waiter) { n = len(ln.waiters) })
	return n
}

// choose picks the front to hand an exclusive lock to; nil if it cannot take it now. Then wake it when the lock is free.
func (ls *lines) choose(name string) (w *waiter) {
	ls.with(name, func(ln *line, front *waiter) {
		if front.state != waiterParked || front.hold.Shared() || front.ctx.Err() != nil || ln.handed >= maxHandOvers {
			return
		}
		ln.handed++
		front.state = waiterChosen
		w = front
	})
	return w
}

// wake tells the front that the lock may be free.
//
// rule: after so many hand-overs in a row it holds back, for waiters of other processes.
func (ls *lines) wake(name string) {
	ls.with(name, func(ln *line, front *waiter) {
		r := ringReleased
		if ln.handed >= maxHandOvers {
			r, ln.handed = ringRest, 0
		}
		front.tell(r)
	})
}

// hint is what a Watcher says.
func (ls *lines) hint(name string) {
	ls.with(name, func(_ *line, front *waiter) { front.tell(ringHint) })
}

func (w *waiter) tell(r ring) {
	select {
	case w.ring <- r:
	default: // it is about to look anyway
	}
}

// park lets w be handed hold.
func (ls *lines) park(w *waiter, hold Hold) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.state, w.hold = waiterParked, hold
}

// unpark is the end of it; it tells whether w was not chosen meanwhile.
func (ls *lines) unpark(w *waiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.state == waiterChosen {
		return false
	}
	w.state = waiterBusy
	return true
}

// deliver gives a chosen waiter its gift; it tells whether w was still there.
func (ls *lines) deliver(w *waiter, g gift) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.state != waiterChosen {
		return false
	}
	w.state = waiterBusy
	w.gift <- g
	return true
}

// desert is the end of a chosen waiter whose context ended; it returns the gift that came at the last moment.
func (ls *lines) desert(w *waiter) (g gift, ok bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.state = waiterGone
	select {
	case g = <-w.gift:
		return g, true
	default:
		return g, false
	}
}

// queueUp waits until we are the front, or somebody hands the lock over, or wait ends.
func (a *attempt) queueUp(wait context.Context) (g gift, handed bool) {
	select {
	case <-a.w.front:
	case g = <-a.w.gift:
		return g, true
	case <-wait.Done():
	}
	return a.unpark(wait)
}

// unpark is the end of a pause; if we have been chosen meanwhile it waits for the gift.
func (a *attempt) unpark(wait context.Context) (g gift, handed bool) {
	if a.l.lines.unpark(a.w) {
		return g, false
	}
	select {
	case g = <-a.w.gift:
		return g, true
	case <-wait.Done():
		return a.l.lines.desert(a.w)
	}
}

// first tells whether we are first in the record's queue.
func (a *attempt) first() bool {
	q := a.last.record.Queue
	return len(q) > 0 && q[0].ID == a.hold.ID
}

// park sleeps for d, until somebody rings, hands the lock over, or wait ends.
func (a *attempt) park(wait context.Context, d time.Duration) (g gift, handed bool) {
	w := a.w
	if w == nil {
		pause(wait.Done(), d)
		return g, false
	}
	if a.inserted {
		a.retire()
	}
	a.l.startWatching()
	ls := &a.l.lines
	ls.park(w, a.hold)
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	var r ring
	select {
	case <-t.C:
	case r = <-w.ring:
	case <-wait.Done():
	case g = <-w.gift:
		return g, true
	}
	if g, handed = a.unpark(wait); handed {
		return g, true
	}
	switch r {
	case ringRest:
		a.poll.reset()
		d := a.poll.next()
		ls.with(a.name, func(ln *line, _ *waiter) {
			if ln.company {
				d = maxPoll
			}
		})
		pause(wait.Done(), d)
	case ringHint:
		// The first in the queue need not spread. But a Watcher that cries all the time must not make anybody spin.
		now := a.l.valid()
		if !a.first() || now-a.hinted < hintSpread {
			pause(wait.Done(), rand.N(hintSpread))
		}
		a.hinted = now
	}
	return g, false
}

// handOver gives an exclusive hold that nobody in this process uses any more to the front of the line, in one round trip.
// unclear: it may have been given away; the front finds out.
//
// rule: bound to the id of the hold, as everything a holder does; the new lease has its own id and a token of its own.
func (l *Locker) handOver(name string, h Hold) (handed, unclear bool) {
	if h.Shared() || l.open.Err() != nil {
		return false, false
	}
	w := l.lines.choose(name)
	if w == nil {
		return false, false
	}
	to, sent := w.hold, l.valid()
	g, err := call(l, l.base, opTimeout(min(h.Lease, to.Lease)), func(ctx context.Context) (grant, error) {
		token, ok, err := l.store.HandOver(ctx, name, h.ID, to, NewVersion())
		return grant{token, ok}, err
	}, nil)
	unclear = unclearAnswer(err)
	if !l.lines.deliver(w, gift{g, sent, unclear}) && (g.ok || unclear) {
		l.abandon(name, to)
	}
	if g.ok {
		l.stats.handedOver.Add(1)
	}
	return g.ok, unclear
}

// giveUp hands the hold of an ended lease over, or releases it. gone is as in release.
func (l *Locker) giveUp(name string, h Hold) (gone bool, err error) {
	handed, unclear := l.handOver(name, h)
	if handed {
		return false, nil
	}
	gone, err = l.release(name, h)
	l.lines.wake(name)
	return gone && !unclear, err
}

// startWatching asks the store for hints, when somebody waits for the first time.
//
// rule: nothing depends on hints: every wait has its poll as a floor.
func (l *Locker) startWatching() {
	w, ok := l.store.(Watcher)
	if !ok {
		return
	}
	l.watchOnce.Do(func() {
		l.wg.Add(1) // by somebody who is counted
		go l.watch(w)
	})
}

func (l *Locker) watch(w Watcher) {
	defer l.wg.Done()
	retry := jitter{ceiling: time.Minute}
	for first := true; l.open.Err() == nil; first = false {
		names, err := w.Watch(l.open)
		if err != nil && first {
			return
		}
		if err == nil {
			begin := l.valid()
			for name := range names {
				l.stats.hints.Add(1)
				l.lines.hint(name)
			}
			if l.valid()-begin > time.Minute {
				retry.reset()
			}
		}
		pause(l.open.Done(), time.Second+retry.next())
	}
}
