package worker

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// An idle type costs nothing. One listener per pool reads the notifications of publishers, and
// sweeps: it lists the types that have messages, with one command if there are none. Both wake the
// goroutine that watches a type, or its idle session.
//
//	publisher ──Notify──▶ notifications ──every listenEvery──▶ listener ──▶ watch: check, and take the type
//	                      messages ─────────────sweep────────▶    │     ──▶ idle session: fetch
//	                                                              └─────▶ a type that a glob matches: serve it
//
// Notifications are hints and may be lost. Sweeps find all pending messages, at least once every
// sweepMost. While either of them fails, the pool checks each type individually.
const (
	listenEvery   = 150 * time.Millisecond // how often notifications are read
	listenShare   = 10                     // … or after this many times the duration of the last read, if that is longer, …
	listenMost    = 2 * time.Second        // … but at most this
	listenTimeout = 5 * time.Second        // of one read …
	listenLongest = 30 * time.Second       // … and the longest, after reads that were not answered in time

	// If one read reports more types than this, those that no replica holds are left to a sweep, which needs a few commands instead of a
	// check of each type.
	maxNotified = 100

	// The time between two sweeps is the greatest of the first three, but at most sweepMost.
	sweepLeast   = 500 * time.Millisecond
	sweepPerType = 250 * time.Millisecond // times the pending types of this pool: a sweep may make it check each of them
	sweepShare   = 20                     // times the duration of the last sweep …
	missedShare  = 5                      // … or this, if notifications were missed
	sweepMost    = 30 * time.Second

	blindAfter = 30 * time.Second // a pool with many types that could not read notifications or sweeps for this long checks each type

	// The time between two checks of the types left to drain is leftLeast, or the duration of the last check if that is longer: pools that
	// have finished wait for it.
	leftLeast  = 100 * time.Millisecond
	helpEvery  = time.Second // … and between two that also look for types to help with
	leftSurely = time.Minute // if these checks fail, a type that waits for one is checked individually after this

	// A session without messages stops polling, and waits for the listener, after restAfter, or at once if maxPolling others poll: more
	// polling would delay types with messages, and the listener finds new messages as soon as polling would.
	restAfter  = 5 * time.Second
	maxPolling = 32
)

// listener finds out which types of a pool have messages. Its goroutine owns all fields but the atomic
// ones.
type listener struct {
	pool      *Pool
	serve     serveFunc
	listening atomic.Bool // notifications and sweeps work: types need not be checked individually
	failing   atomic.Bool // the last check of findDrained has failed

	reads, lists wait.Patience // of notifications, and of types with messages

	mark      queue.NotificationMark
	took      time.Duration // how long the last read of notifications took
	missed    bool          // some notifications were missed: sweep soon
	swept     bool          // the last sweep succeeded; otherwise each round sweeps
	soonest   time.Time     // when the next sweep may begin …
	nextSweep time.Time     // … and when it must
	outage    outage
}

// start starts the listener, waits for its first round (share.FirstLook at most), and returns a function
// that stops it. With UntilEmpty the listener only looks for drained types: the pool queries each type.
func (l *listener) start(ctx context.Context) (stop func()) {
	ctx, cancel := l.pool.untilStop(ctx)
	ended, looked := make(chan struct{}), make(chan struct{})
	looking := sync.OnceFunc(func() { close(looked) })
	go func() {
		defer close(ended)
		if l.pool.cfg.UntilEmpty {
			looking()
			l.findDrained(ctx)
		} else {
			l.run(ctx, looking)
		}
	}()
	t := time.NewTimer(share.FirstLook)
	defer t.Stop()
	select {
	case <-looked:
	case <-t.C:
	case <-ended:
	}
	return func() {
		cancel()
		<-ended
	}
}

// findDrained looks for the types left to drain, for a pool that drains many types together with other
// pools and rarely checks each of those that are not its own. It ends the waits for drained types, and
// now and then those for some of the remaining ones, so that a pool that has finished helps the others.
func (l *listener) findDrained(ctx context.Context) {
	p, pause, helped := l.pool, leftLeast, time.Now()
	from := ""        // the first type that was found: it is probably still left
	var told []string // the last types to help with: when all are taken, it is time for more
	for wait.For(ctx, pause) == nil {
		pause = leftLeast
		if p.busy() {
			continue
		}
		types := p.rebalancer.Waiting()
		if len(types) == 0 {
			continue
		}
		began, most := time.Now(), 1 // one is enough to know that the others have not finished
		if began.Sub(helped) >= helpEvery || len(told) == maxOpening && !anyOf(told, types) {
			helped, told = began, nil
			if free := p.rebalancer.Free(types); len(free) > 0 { // those that others drain need no help
				types, most = free, maxOpening
			}
		}
		left, err := l.left(ctx, types, from, most)
		l.failing.Store(err != nil)
		if err == nil {
			if len(left) > 0 {
				from = left[0]
			}
			if most == maxOpening {
				told = left
			}
			p.rebalancer.Tell(left, 1)
			// rule: only a check that found fewer types than its limit shows which are drained. Otherwise there may be more after the last.
			if len(left) < most {
				p.rebalancer.Tell(slices.DeleteFunc(types, func(typ string) bool { return slices.Contains(left, typ) }), 0)
			}
		}
		pause = min(p.rebalancer.Spread(max(leftLeast, time.Since(began))), sweepMost)
	}
}

// anyOf reports whether any of some types is among types, which are sorted.
func anyOf(some, types []string) bool {
	return slices.ContainsFunc(some, func(typ string) bool { _, in := slices.BinarySearch(types, typ); return in })
}

// left returns those of types that have messages or foreign keys, up to most of them. It begins at the
// type from, or at its place in the order if it is not among them. With "" it begins at a place of this
// pool's own, so that helping pools do not all help with the same types.
func (l *listener) left(ctx context.Context, types []string, from string, most int) (left []string, err error) {
	at, _ := slices.BinarySearch(types, from)
	if from == "" {
		at = l.pool.placeAmong(len(types))
	}
	for _, some := range [][]string{types[at:], types[:at]} {
		if len(left) == most {
			break
		}
		book := l.pool.book
		book.noteAsking("")
		err := l.lists.Ask(ctx, func(ctx context.Context) error {
			found, err := l.pool.cfg.Queue.Pending(ctx, some, most-len(left))
			left = append(left, found...)
			return err
		})
		book.noteAnswer(ctx, "", err) // a query that took too long was not cancelled by ctx
		if err != nil {
			return nil, err
		}
	}
	return left, nil
}

// awaitLeft waits until findDrained reports that a type is drained or needs help, or there is other news
// of it. While the checks of findDrained fail, it ends after leftSurely.
func (p *Pool) awaitLeft(ctx context.Context, typ string) {
	for !p.rebalancer.Pause(ctx, typ, leftSurely) && !p.listener.failing.Load() && !p.stopped(ctx) {
	}
}

// pending lists the types that have messages, sorted.
func (l *listener) pending(ctx context.Context) (types []string, err error) {
	book := l.pool.book
	book.noteAsking("")
	err = l.lists.Ask(ctx, func(ctx context.Context) (err error) {
		types, err = l.pool.cfg.Queue.PendingTypes(ctx)
		return err
	})
	book.noteAnswer(ctx, "", err)
	return types, err
}

// run does one round after another, and calls looked after each.
func (l *listener) run(ctx context.Context, looked func()) {
	defer l.listening.Store(false)
	retry := wait.Backoff{Min: listenEvery, Max: discoverEvery}
	var worked time.Time // when the last round without an error ended
	for ctx.Err() == nil {
		err := l.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			worked = time.Now()
		}
		// rule: types go unchecked only while both notifications and sweeps can be read. With many types and replicas, checks of each
		// type begin only after the server has not answered for a long time: they would slow down a slow server even more.
		l.listening.Store(err == nil || l.pool.rebalancer.Many() && time.Since(worked) < blindAfter)
		looked()
		// A busy server is queried less often, and by all pools together no more often than by ten.
		pause := min(max(listenEvery, l.pool.rebalancer.Spread(listenShare*l.took)), listenMost)
		if l.pool.outages.note(ctx, &l.outage, &l.pool.log, err, "read which types have new messages") {
			pause = retry.Next()
		} else {
			retry.Reset()
		}
		if wait.For(ctx, pause) != nil {
			return
		}
	}
}

// round reads the notifications, and sweeps if a sweep is due or notifications cannot be read.
func (l *listener) round(ctx context.Context) error {
	began := time.Now()
	var n queue.Notifications
	err := l.reads.Ask(ctx, func(ctx context.Context) (err error) {
		n, err = l.pool.cfg.Queue.Notifications(ctx, l.mark)
		return err
	})
	l.took = time.Since(began)
	if err == nil {
		l.heard(n)
	}
	// rule: pending messages are found without any notification
	due := !time.Now().Before(l.nextSweep)
	soon := (err != nil || l.missed) && !time.Now().Before(l.soonest)
	if !due && !soon && l.swept {
		return err
	}
	if serr := l.sweep(ctx); serr != nil {
		return serr
	}
	return err
}

// heard reports the types that notifications name.
func (l *listener) heard(n queue.Notifications) {
	l.mark, l.missed = n.Next, l.missed || n.Missed
	if len(n.Types) <= maxNotified {
		l.news(n.Types, l.pool.rebalancer.Notified)
		return
	}
	for _, typ := range n.Types {
		if l.pool.rebalancer.WakeSession(typ) && l.pool.matches(typ) {
			l.missed = true
		}
	}
}

// sweep finds all types that have messages, with or without notifications.
func (l *listener) sweep(ctx context.Context) error {
	p := l.pool
	began := time.Now()
	types, err := l.pending(ctx)
	if l.swept = err == nil; !l.swept {
		return err
	}
	took := time.Since(began)
	l.missed = false
	fresh, before := l.serve(true, types...)
	p.rebalancer.Found(slices.DeleteFunc(before, func(typ string) bool {
		unfit := p.book.unfitOf(typ).any() // the type may have nothing else
		if unfit {
			p.rebalancer.Wake(typ)
		}
		return unfit
	}), p.busy())
	took = p.rebalancer.Spread(took) // or a hundred pools that have missed the same notifications would sweep all the time
	l.soonest = began.Add(min(max(sweepLeast, missedShare*took), sweepMost))
	l.nextSweep = began.Add(min(max(sweepLeast, sweepShare*took, time.Duration(len(fresh)+len(before))*sweepPerType), sweepMost))
	return nil
}

// news reports that types have messages: it starts serving them or, if they are served already, calls tell.
func (l *listener) news(types []string, tell func(types []string)) {
	// rule: only the start itself shows that a type was not served. Discovery may have started it meanwhile, without this news.
	if _, served := l.serve(true, types...); len(served) > 0 {
		tell(served)
	}
}

// awaitNews waits until there is news of a type that has no messages. It returns at once if the listener
// does not work. If the listener fails later, it returns within sweepMost, or the time between two checks
// of a type if that is longer.
func (p *Pool) awaitNews(ctx context.Context, typ string) {
	for p.listener.listening.Load() && !p.stopped(ctx) {
		if p.rebalancer.Pause(ctx, typ, wait.AtLeastHalf(max(sweepMost, p.rebalancer.Stretch()))) {
			return
		}
	}
}
