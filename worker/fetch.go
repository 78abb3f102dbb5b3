package worker

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Sweeps. Fetching walks forward over the pending messages in ID order. Because a slow producer's messages may turn up
// behind the walker, it goes back whenever it has caught up: a little way every time, a minute every few seconds, to the
// very start every half minute. Going back far each time would make the server walk over the index entries of everything
// deleted lately.
const (
	fullSweepEvery = 30 * time.Second
	longRewind     = time.Minute
	longEvery      = 2 * time.Second
	shortRewind    = time.Second
	heldRetryMax   = 2 * time.Second
)

// fetcher is the fetch stage.
type fetcher struct {
	*session
	after    queue.ID  // position of the walk
	newest   queue.ID  // highest ID seen in this session
	full     bool      // the current sweep started at the very start …
	clean    bool      // … and has found nothing pending so far
	lastFull time.Time // when the last full sweep started
	lastLong time.Time
	lastSeen time.Time // when a message was last fetched

	heldPoll backoff
	heldAt   time.Time // not to be re-read before
}

// run fetches until there is a reason to end the session; drained tells that a whole sweep found nothing pending.
func (f *fetcher) run(ctx context.Context, out chan<- []queue.Message) (drained bool, err error) {
	cfg := &f.pool.cfg
	poll := backoff{min: cfg.Linger, max: watchMax}
	f.heldPoll = backoff{min: watchMin, max: heldRetryMax}
	f.lastSeen = time.Now()
	f.rewind(queue.ID{})
	var outage outage
	for {
		if f.pool.stopped(ctx) {
			return false, nil
		}
		msgs, err := cfg.Queue.Fetch(ctx, f.typ, f.after, queue.Limit{Messages: cfg.Batch, Bytes: cfg.BatchBytes})
		if outage.note(&f.log, err, "fetch") {
			if fatal(err) || ctx.Err() != nil {
				return false, err
			}
			f.pool.pause(ctx, poll.next())
			continue
		}
		if len(msgs) > 0 {
			f.lastSeen = time.Now()
			f.clean = false
			f.after = msgs[len(msgs)-1].ID
			if f.newest.Compare(f.after) < 0 {
				f.newest = f.after
			}
			f.inflight.add(1)
			select {
			case out <- msgs:
			case <-ctx.Done():
				return false, ctx.Err()
			}
			poll.reset()
			if err := f.rereadHeld(ctx); err != nil {
				return false, err
			}
			if len(msgs) < cfg.Batch && !f.pool.pause(ctx, cfg.Linger) {
				return false, nil
			}
			if time.Since(f.lastFull) > fullSweepEvery {
				if err := f.startOver(ctx, queue.ID{}); err != nil {
					return false, err
				}
			}
			continue
		}

		// Caught up: the sweep is over.
		if err := f.inflight.wait(ctx); err != nil {
			return false, err
		}
		held := f.held.Load()
		nothing := f.full && f.clean
		onlyIncomplete := f.full && held != nil && held.overdue
		if nothing || onlyIncomplete {
			if nothing {
				f.forgetSilent(ctx)
			}
			if cfg.UntilEmpty {
				return true, nil
			}
			if time.Since(f.lastSeen) > cfg.IdleTimeout || f.pool.waiting.Load() > 0 && time.Since(f.lastSeen) > watchMax {
				return true, nil
			}
		}
		switch now := time.Now(); {
		case cfg.UntilEmpty, now.Sub(f.lastFull) > fullSweepEvery, f.pool.waiting.Load() > 0, now.Sub(f.lastSeen) > cfg.IdleTimeout:
			f.rewind(queue.ID{})
		case held != nil:
			f.rewind(before(held.first, longRewind))
		case now.Sub(f.lastLong) > longEvery:
			f.lastLong = now
			f.rewind(before(f.newest, longRewind))
		default:
			f.rewind(before(f.newest, shortRewind))
		}
		wait := poll.next()
		switch {
		case held != nil:
			wait = f.heldPoll.next() // what is held is fetched every time and must not keep the polling busy
		case cfg.UntilEmpty:
			continue // no reason to wait: look once more from the start, and be done if that finds nothing
		}
		if !f.pool.pause(ctx, wait) {
			return false, nil
		}
	}
}

// rewind sets the walk back. In-flight batches must be acknowledged by now, or they would be fetched a second time
// (which the ledger would refuse: it would only be work for nothing).
func (f *fetcher) rewind(to queue.ID) {
	f.after = to
	f.full = to == queue.ID{}
	if f.full {
		f.clean = true
		f.lastFull = time.Now()
		f.lastLong = f.lastFull
	}
}

// startOver waits until the pipeline has acknowledged everything fetched, then sets the walk back.
func (f *fetcher) startOver(ctx context.Context, to queue.ID) error {
	if err := f.inflight.wait(ctx); err != nil {
		return err
	}
	f.rewind(to)
	return nil
}

// rereadHeld goes back for a missing message in the middle of a walk, less and less often while it stays missing.
func (f *fetcher) rereadHeld(ctx context.Context) error {
	held := f.held.Load()
	if held == nil {
		f.heldPoll.reset()
		return nil
	}
	if time.Now().Before(f.heldAt) {
		return nil
	}
	f.heldAt = time.Now().Add(f.heldPoll.next())
	return f.startOver(ctx, before(held.first, longRewind))
}

// forgetSilent ages the ledger. The append stage is idle: everything in flight is acknowledged and nothing is pending.
func (f *fetcher) forgetSilent(ctx context.Context) {
	now, err := f.seenAt(ctx)
	if err != nil {
		return
	}
	if n := f.ledger.forget(now, f.pool.cfg.Retention); n > 0 {
		f.log.Debug().Int("producers", n).Msg("forgot producers that have gone silent")
	}
}

// before returns the smallest ID of the time d before id's.
func before(id queue.ID, d time.Duration) queue.ID {
	t := id.Time()
	if t.UnixMilli() <= d.Milliseconds() {
		return queue.ID{}
	}
	return queue.NewID(t.Add(-d), 0, 0)
}

// inflight counts batches between fetch and ack.
type inflight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n drops to 0; nil when nobody waits
}

func (i *inflight) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n += n
	if i.n == 0 && i.idle != nil {
		close(i.idle)
		i.idle = nil
	}
}

func (i *inflight) wait(ctx context.Context) error {
	i.mu.Lock()
	if i.n == 0 {
		i.mu.Unlock()
		return nil
	}
	if i.idle == nil {
		i.idle = make(chan struct{})
	}
	idle := i.idle
	i.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
