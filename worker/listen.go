package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// Idle types cost nothing each. One listener per pool reads what publishers tell, and sweeps: it
// lists the types that have messages, with one command when there are none. Both wake the watch
// over a type, or its idle session.
//
//	publisher ──Notify──▶ notifications ──every listenEvery──▶ listener ──▶ watch: look, and take the type
//	                      messages ─────────────sweep────────▶    │     ──▶ idle session: fetch
//	                                                              └─────▶ a type that a glob matches: serve it
//
// Neither is relied on alone. What is told is a hint, which may be lost. A sweep finds all that is
// pending, every sweepMost at least. While the listener cannot do both, each type is looked at by
// itself.
const (
	listenEvery   = 150 * time.Millisecond // how often notifications are read
	listenTimeout = 5 * time.Second        // of one read

	sweepLeast   = 500 * time.Millisecond // how often is swept: this often if little is pending …
	sweepPerType = 250 * time.Millisecond // … rarely if many types are pending, each of which may be looked at then …
	sweepShare   = 20                     // … or if a sweep takes long …
	sweepMost    = 30 * time.Second       // … and at least this often

	restAfter = 5 * time.Second // a session without messages for so long waits for news
)

// listener finds out which types of a pool have messages. Its goroutine owns all but listening.
type listener struct {
	pool      *Pool
	serve     func(typ string, pending bool)
	listening atomic.Bool // what is read is complete: types need not be looked at one by one

	mark      queue.NotificationMark
	missed    bool // some notifications were not read: the next sweep is to come soon
	swept     bool // the last sweep succeeded
	lastSweep time.Time
	nextSweep time.Time
	outage    outage
}

// start starts the listener, waits for its first round, for share.FirstLook at most, and returns what
// stops it. A pool that is to drain everything has none: it asks about each type.
func (l *listener) start(ctx context.Context) (stop func()) {
	if l.pool.cfg.UntilEmpty {
		return func() {}
	}
	ctx, cancel := l.pool.untilStop(ctx)
	ended, looked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		l.run(ctx, sync.OnceFunc(func() { close(looked) }))
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

// run does one round after the other, and calls looked after each.
func (l *listener) run(ctx context.Context, looked func()) {
	defer l.listening.Store(false)
	retry := wait.Backoff{Min: listenEvery, Max: discoverEvery}
	for ctx.Err() == nil {
		err := l.round(ctx)
		if ctx.Err() != nil {
			return
		}
		// rule: types are left alone only while both notifications and sweeps can be read
		l.listening.Store(err == nil)
		looked()
		pause := listenEvery
		if l.outage.note(&l.pool.log, err, "read which types have new messages, so each type is looked at by itself") {
			pause = retry.Next()
		} else {
			retry.Reset()
		}
		if wait.For(ctx, pause) != nil {
			return
		}
	}
}

// round reads the notifications, and sweeps if it is time for that, or if they cannot be read.
func (l *listener) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	n, err := l.pool.cfg.Queue.Notifications(ctx, l.mark)
	if err == nil {
		l.mark, l.missed = n.Next, l.missed || n.Missed
		for _, typ := range n.Types {
			l.news(typ, l.pool.rebalancer.Notified)
		}
	}
	// rule: what is pending is found without any notification
	due := !time.Now().Before(l.nextSweep)
	soon := err != nil || l.missed || !l.swept
	if !due && !(soon && time.Since(l.lastSweep) >= sweepLeast) {
		return err
	}
	if serr := l.sweep(ctx); serr != nil {
		return serr
	}
	return err
}

// sweep finds the types that have messages, whatever was told.
func (l *listener) sweep(ctx context.Context) error {
	p := l.pool
	l.lastSweep = time.Now()
	p.book.noteAsking("")
	types, err := p.cfg.Queue.PendingTypes(ctx)
	p.book.noteAnswer("", err)
	if l.swept = err == nil; !l.swept {
		return err
	}
	l.missed = false
	mine := 0
	for _, typ := range types {
		if l.news(typ, p.rebalancer.Wake) {
			mine++
		}
	}
	pause := max(sweepLeast, time.Duration(mine)*sweepPerType, sweepShare*time.Since(l.lastSweep))
	l.nextSweep = l.lastSweep.Add(min(pause, sweepMost))
	return nil
}

// news tells that a type has messages, and returns whether it is one of this pool's.
func (l *listener) news(typ string, tell func(typ string)) bool {
	switch {
	case l.pool.isServed(typ):
		tell(typ)
	case l.pool.matches(typ):
		l.serve(typ, true)
	default:
		return false
	}
	return true
}

// awaitNews waits until there is news of a type that has no messages. It returns at once if nobody
// listens, and soon after the listener has failed.
func (p *Pool) awaitNews(ctx context.Context, typ string) {
	for p.listener.listening.Load() && !p.stopped(ctx) {
		if p.rebalancer.Pause(ctx, typ, wait.AtLeastHalf(sweepMost)) {
			return
		}
	}
}
