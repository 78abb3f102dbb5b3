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
//	publisher ──Notify──▶ notifications ──every listenEvery──▶ listener ──▶ watch: look, and take the type
//	                      messages ─────────────sweep────────▶    │     ──▶ idle session: fetch
//	                                                              └─────▶ a type that a glob matches: serve it
//
// Notifications are hints and may be lost. Sweeps find everything that is pending, at least once in
// sweepMost. While either of them fails, the pool looks at each type by itself.
const (
	listenEvery   = 150 * time.Millisecond // how often notifications are read
	listenShare   = 10                     // … or after so many times the duration of the last read, if that is longer, …
	listenMost    = 2 * time.Second        // … but at most this
	listenTimeout = 5 * time.Second        // of one read …
	listenLongest = 30 * time.Second       // … and the longest, after reads that were not answered in time

	// With more new types in one read, those that nobody holds are left to a sweep: it finds out with a few commands what would take a
	// look at each of them.
	maxNotified = 100

	// The time between two sweeps is the greatest of the first three, but at most sweepMost.
	sweepLeast   = 500 * time.Millisecond
	sweepPerType = 250 * time.Millisecond // times the pending types of this pool: a sweep may make it look at each of them
	sweepShare   = 20                     // times the duration of the last sweep …
	missedShare  = 5                      // … or this, if notifications were missed
	sweepMost    = 30 * time.Second

	blindAfter = 30 * time.Second // a pool with many types that could not read notifications or sweeps for this long looks at each type

	// The time between two looks at what is left to drain is leftLeast, or as long as the last one took, if that is longer: pools that are
	// done wait for it.
	leftLeast  = 100 * time.Millisecond
	helpEvery  = time.Second // … that are also for types to help with
	leftSurely = time.Minute // a type that waits for such a look is looked at by itself after this, if they fail

	// A session without messages stops polling, and waits for the listener, after restAfter, or at once if maxPolling others poll: more
	// polls would hold up those that have messages, and news comes as soon as polls would find them.
	restAfter  = 5 * time.Second
	maxPolling = 32
)

// listener finds out which types of a pool have messages. Its goroutine owns all fields but the atomic
// ones.
type listener struct {
	pool      *Pool
	serve     serveFunc
	listening atomic.Bool // notifications and sweeps work: types need not be looked at one by one
	failing   atomic.Bool // the last look of findDrained has failed

	reads, lists wait.Patience // of notifications, and of types with messages

	mark      queue.NotificationMark
	took      time.Duration // how long the last read of notifications took
	missed    bool          // some notifications were missed: sweep soon
	swept     bool          // the last sweep succeeded; otherwise each round sweeps
	soonest   time.Time     // when the next sweep may begin …
	nextSweep time.Time     // … and when it must
	outage    outage
}

// start starts the listener, waits for its first round (share.FirstLook at most), and returns a
// function that stops it. With UntilEmpty it only looks for drained types: the pool asks about each type.
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

// findDrained looks for what is left, for a pool that drains many types together with others, and looks
// rarely at each of those that are not its own. It ends the waits of drained ones, and now and then
// those of some that are left, so that a pool that is done helps the others.
func (l *listener) findDrained(ctx context.Context) {
	p, pause, helped := l.pool, leftLeast, time.Now()
	from := ""        // the first that was found: it is probably still there
	var told []string // the last ones to help with: when all are taken, it is time for more
	for wait.For(ctx, pause) == nil {
		pause = leftLeast
		if p.busy() {
			continue
		}
		types := p.rebalancer.Waiting()
		if len(types) == 0 {
			continue
		}
		began, most := time.Now(), 1 // one is enough to know that others have not ended
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
			// rule: only a look that has found fewer than it may says what is drained. Behind its last one it has not looked.
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

// left returns up to most of the types that have messages or foreign keys. It begins at a type, or
// behind its place if it is not among them. With "" it begins at a place of this pool's own, so that
// those which help do not all help with the same.
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
		book.noteAnswer(ctx, "", err) // a question that has taken too long was not called off
		if err != nil {
			return nil, err
		}
	}
	return left, nil
}

// awaitLeft waits until findDrained tells that a type is drained or needs help, or there is other news
// of it. While the looks of findDrained fail, it ends after leftSurely.
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
		// rule: types are left alone only while both notifications and sweeps can be read. With many types and replicas looks at each of them
		// are for a server that has not answered for long: one that is slow would have the more to do.
		l.listening.Store(err == nil || l.pool.rebalancer.Many() && time.Since(worked) < blindAfter)
		looked()
		// A server that is busy is asked less often, and by all pools together no more often than by ten.
		pause := min(max(listenEvery, l.pool.rebalancer.Spread(listenShare*l.took)), listenMost)
		if l.outage.note(ctx, &l.pool.log, err, "read which types have new messages") {
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
		l.mark, l.missed = n.Next, l.missed || n.Missed
		if len(n.Types) <= maxNotified {
			l.news(n.Types, l.pool.rebalancer.Notified)
		} else {
			for _, typ := range n.Types {
				if l.pool.rebalancer.WakeSession(typ) && l.pool.matches(typ) {
					l.missed = true
				}
			}
		}
	}
	// rule: what is pending is found without any notification
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
		unfit := p.book.unfitOf(typ).any() // perhaps that is all it has
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

// news passes on that types have messages, by starting to serve them or, if they are served already, by tell.
func (l *listener) news(types []string, tell func(types []string)) {
	// rule: only the start itself shows that a type was not served. Discovery may have begun it meanwhile, without this news.
	if _, served := l.serve(true, types...); len(served) > 0 {
		tell(served)
	}
}

// awaitNews waits until there is news of a type that has no messages. It returns at once if the listener
// does not work, and within sweepMost, or the time between two looks at a type, after it has failed.
func (p *Pool) awaitNews(ctx context.Context, typ string) {
	for p.listener.listening.Load() && !p.stopped(ctx) {
		if p.rebalancer.Pause(ctx, typ, wait.AtLeastHalf(max(sweepMost, p.rebalancer.Stretch()))) {
			return
		}
	}
}
