package worker

import (
	"context"
	"math"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
	"github.com/rs/zerolog"
)

// Before a session, a pool watches a type: does it have messages, and should this pool take it? Package
// share answers the second question. An empty type costs nothing: its watch waits for the listener.

const knownFor = 2 * time.Second // a pool that waits to learn which replica a type is assigned to does not check the type again for this long

// watch waits until this pool should act on one type.
type watch struct {
	pool   *Pool
	typ    string
	poll   wait.Backoff
	outage outage
	looked time.Time // when it last queried for messages; zero if the listener reported them
	known  time.Time // when the type was found to have messages, while this pool waits to learn which replica it is assigned to
	news   bool      // something may have changed since the last check
}

// awaitTurn waits until this pool should act on the type, usually because the type has messages and
// is assigned to this pool. It returns share.TurnNone when the pool stops or, with UntilEmpty, when the type
// has no messages. looked is when it last queried for messages, zero if the listener reported them. An
// error means that waiting does not help.
func (p *Pool) awaitTurn(ctx context.Context, typ string) (t share.Turn, looked time.Time, err error) {
	w := watch{pool: p, typ: typ, poll: wait.Backoff{Min: watchMin, Max: watchMax}, news: true}
	for !p.stopped(ctx) {
		ask, pause := p.rebalancer.Next(typ)
		paused := p.rebalancer.Paused(typ)
		p.book.notePaused(typ, paused)
		switch {
		case paused && !p.cfg.UntilEmpty:
			pause = math.MaxInt64 // the rebalancer wakes it when the type is resumed
		case ask:
			return share.TurnAsk, w.looked, nil
		}
		if pause > 0 {
			w.news = p.rebalancer.Pause(ctx, typ, pause)
		} else if t, over, err := w.look(ctx, paused); over {
			return t, w.looked, err
		}
	}
	return share.TurnNone, w.looked, nil
}

// look checks whether the type has messages, and whether it is assigned to this pool. over means that
// there is nothing more to wait for. Otherwise look has waited until the next check is due.
func (w *watch) look(ctx context.Context, paused bool) (t share.Turn, over bool, err error) {
	p := w.pool
	d, waited, err := w.depth(ctx)
	if waited {
		return share.TurnNone, false, nil
	}
	if err == nil && d.Pending == 0 {
		p.book.wantsNoMore(w.typ)
		if err = w.lookAtForeign(ctx, d.Foreign); err == nil {
			p.noteNothing(w.typ)
		}
	}
	switch {
	case p.stopped(ctx):
		return share.TurnNone, true, nil
	case fatal(err):
		return share.TurnNone, true, err
	case p.outages.note(ctx, &w.outage, w.log(), err, "look for messages"):
		w.pause(ctx, w.poll.Next())
		w.news = true
	case d.Pending > 0 && paused:
		return share.TurnNone, true, &PausedError{w.typ}
	case d.Pending > 0:
		t = w.turn(ctx)
	case p.cfg.UntilEmpty:
		return share.TurnNone, true, nil
	default:
		w.whileEmpty(ctx)
	}
	return t, t != share.TurnNone, nil
}

// depth returns how many messages the type has: as the listener has found, as was found a moment ago, or
// as the queue answers. If other replicas take care of the type, it waits for news instead.
func (w *watch) depth(ctx context.Context) (d queue.Depth, waited bool, err error) {
	p := w.pool
	if pending, told := p.rebalancer.Told(w.typ); told {
		w.looked = time.Time{}
		return queue.Depth{Pending: pending}, false, nil
	}
	if time.Since(w.known) < knownFor {
		return queue.Depth{Pending: 1}, false, nil
	}
	if free, alone := p.rebalancer.LeavesAlone(w.typ, p.busy(), w.news); alone && !p.cfg.UntilEmpty && p.listener.listening.Load() {
		if free {
			w.news = p.rebalancer.Pause(ctx, w.typ, p.rebalancer.Stretch())
		} else {
			p.noteNothing(w.typ)
			p.awaitNews(ctx, w.typ)
			w.news = true
		}
		return d, true, nil
	}
	w.looked = time.Now()
	d, err = p.depth(ctx, w.typ)
	return d, false, err
}

// turn returns what this pool should do about the messages of the type. If that is nothing, turn waits
// until it should be called again.
func (w *watch) turn(ctx context.Context) share.Turn {
	p := w.pool
	t, pause := p.rebalancer.Turn(w.typ, p.busy())
	switch t {
	case share.TurnUndecided:
		if time.Since(w.known) >= knownFor {
			w.known = time.Now()
		}
	case share.TurnNone:
		w.known = time.Time{}
		if p.cfg.UntilEmpty && pause > helpEvery { // there are many types: the listener checks all of them together
			p.awaitLeft(ctx, w.typ)
			return share.TurnNone
		}
	default:
		return t
	}
	w.pause(ctx, pause)
	return share.TurnNone
}

// whileEmpty waits until the type may have messages again.
func (w *watch) whileEmpty(ctx context.Context) {
	p := w.pool
	pause := max(w.poll.Next(), p.rebalancer.Empty(w.typ))
	switch {
	case !p.listener.listening.Load() || p.book.unfitOf(w.typ).any():
	case p.rebalancer.BusyElsewhere(w.typ) && !p.rebalancer.Crowded():
		pause = max(pause, standbyLook)
	default:
		p.awaitNews(ctx, w.typ)
		w.poll.Reset()
		return
	}
	w.pause(ctx, pause)
}

// log returns a log that is created where it is used: see logOf.
func (w *watch) log() *zerolog.Logger {
	log := w.pool.logOf(w.typ)
	return &log
}

// pause waits for d, or for news of the type.
func (w *watch) pause(ctx context.Context, d time.Duration) {
	w.news = w.pool.rebalancer.Pause(ctx, w.typ, d) || w.pool.book.unfitOf(w.typ).any()
}

// lookAtForeign reviews the foreign keys of a type without messages. seen is how many of them the
// query for messages has skipped; 0 means that there are none. It lists them at most once every
// foreignEvery.
func (w *watch) lookAtForeign(ctx context.Context, seen int) error {
	p := w.pool
	u := p.book.unfitOf(w.typ)
	if seen > 0 {
		u.mu.Lock()
		due := u.listed.IsZero() || time.Since(u.listed) >= foreignEvery
		u.mu.Unlock()
		if !due {
			return nil
		}
	}
	u.begin()
	if seen > 0 {
		keys, err := p.cfg.Queue.ForeignKeys(ctx, w.typ, "", foreignMost)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if k := (unfitKey{key: key}); u.note(k, whyForeign, 0) {
				warnUnfit(w.log(), k, whyForeign)
			}
		}
		u.mu.Lock()
		u.listed = time.Now()
		u.mu.Unlock()
	}
	u.end(false)
	p.book.reviewUnfit(w.typ, u, w.log())
	return nil
}
