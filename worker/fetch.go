package worker

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
)

// Sweeps. Fetching walks forward over the pending messages in ID order. Messages of a slow producer
// may turn up behind the walker, so it goes back: a second's worth of IDs and a minute's worth when
// it is near the end of the queue, and to the very start whatever its position. Going back far each
// time would make the server walk over the index entries of everything deleted lately. But one ID
// of a clock that is ahead says nothing about where the others are: when the newest ID stays the
// same, the walk goes back to the very start instead of a minute.
//
// rule: a fetch never begins longer than fullSweepEvery after the start of the last full sweep. A publisher that has to take
// a new producer number after a failure waits for longer than that, so the messages under its old
// number are read first.
const (
	fullSweepEvery = 30 * time.Second
	longRewind     = time.Minute
	longEvery      = 2 * time.Second
	shortRewind    = time.Second
	shortEvery     = 250 * time.Millisecond
	heldRetryMax   = 2 * time.Second
)

// fetcher is the fetch stage.
type fetcher struct {
	*session
	after   queue.ID // position of the walk
	newest  queue.ID // highest ID seen since the last full sweep began
	farMark queue.ID // what newest was when the walk last went far back
	short   bool     // the last fetch came back short: the walk is near the end of the queue
	nothing bool     // the last fetch brought nothing
	full    bool     // the current sweep started at the very start …
	clean   bool     // … and has found nothing pending so far

	lastFull, lastLong, lastShort time.Time // when sweeps of these kinds started
	lastAged                      time.Time // when the ledger was last aged

	lastSeen time.Time // when a message was last fetched
	heldPoll wait.Backoff
	heldAt   time.Time // what is held back is not read again before
}

// run fetches until there is a reason to end the session; drained tells that a whole sweep found
// nothing pending.
func (f *fetcher) run(ctx context.Context, out chan<- batch) (drained bool, err error) {
	cfg := &f.pool.cfg
	poll := wait.Backoff{Min: watchMin, Max: watchMax}
	f.heldPoll = wait.Backoff{Min: watchMin, Max: heldRetryMax}
	f.lastSeen = time.Now()
	first := true // nothing was fetched yet
	var outage outage
	asking, done := f.untilEnded(ctx) // what nothing depends on any more when the session is to end
	defer done()
	for !f.ending(ctx) {
		if err := f.goBack(ctx); err != nil {
			return false, err
		}
		msgs, memory, err := f.fetch(ctx, asking)
		switch {
		case outage.note(&f.log, err, "fetch"):
			if fatal(err) || ctx.Err() != nil {
				return false, err
			}
			f.pause(ctx, poll.Next())
		case len(msgs) > 0:
			f.walked(msgs)
			f.nothing = false
			f.inflight.add(1)
			select {
			case out <- batch{msgs, memory}:
			case <-ctx.Done():
				memory.give()
				return false, ctx.Err()
			}
			poll.Reset()
			switch {
			case first && f.short && cfg.UntilEmpty:
				f.lastFull = time.Time{} // that may have been all: the next look, from the start, tells
			case f.short:
				f.pause(ctx, f.linger())
			}
			first = false
		default:
			f.short, f.nothing = true, true
			if err := f.inflight.wait(ctx); err != nil {
				return false, err
			}
			wait := poll.Next()
			switch {
			case f.emptied(asking):
				return true, nil
			case f.held.Load() != nil:
				wait = min(wait, max(time.Until(f.heldAt), 0))
			case cfg.UntilEmpty:
				wait = 0 // no reason to wait: look once more from the start, and be done if that finds nothing
			}
			f.rest(ctx, wait)
		}
	}
	return false, nil
}

// rest waits for messages: for d, or, when the type has been quiet for a while, until there is news
// of it. It never rests for so long that the ledger would keep a silent producer much longer than it
// has to.
func (f *fetcher) rest(ctx context.Context, d time.Duration) {
	p := f.pool
	resting := func() bool {
		return time.Since(f.lastSeen) >= restAfter && f.held.Load() == nil && !f.unfit.any() && p.waiting.Load() == 0 && p.listener.listening.Load()
	}
	if resting() {
		d = max(d, min(wait.AtLeastHalf(p.cfg.Retention/4), p.cfg.IdleTimeout-time.Since(f.lastSeen)))
	}
	for end := time.Now().Add(d); ; p.book.noteAlive(f.typ) {
		t := time.NewTimer(min(time.Until(end), sweepMost))
		select {
		case <-t.C:
			if time.Now().Before(end) && resting() { // rule: a session rests only while somebody listens
				continue
			}
		case <-p.rebalancer.News(f.typ):
		case <-f.ended:
		case <-ctx.Done():
		}
		t.Stop()
		return
	}
}

// linger is how long messages may wait in the queue for more of them. What was fetched never waits: it takes memory, and a
// stop would wait for it.
func (f *fetcher) linger() time.Duration {
	if f.pool.cfg.UntilEmpty {
		return min(f.pool.cfg.Linger, DefaultLinger)
	}
	return f.pool.cfg.Linger
}

// fetch takes memory for what comes, and fetches. asking may end before ctx, when the session is to
// end.
func (f *fetcher) fetch(ctx, asking context.Context) ([]queue.Message, *grant, error) {
	cfg, m := &f.pool.cfg, f.pool.memory
	memory := m.try(m.fetch)
	if memory == nil && f.nothing {
		// rule: a type that has nothing does not stand in line. Keys take no memory.
		if d, err := cfg.Queue.Depth(asking, f.typ, 1); err != nil || d.Pending+d.Foreign == 0 {
			return nil, nil, err
		}
	}
	if memory == nil {
		var err error
		if memory, err = m.take(asking, m.fetch, f.inflight.zero()); err != nil {
			return nil, nil, err
		}
		if err := f.goBack(ctx); err != nil { // the wait may have been long
			memory.give()
			return nil, nil, err
		}
	}
	began := time.Now()
	f.pool.book.noteAsking(f.typ)
	msgs, err := cfg.Queue.Fetch(asking, f.typ, f.after, queue.Limit{Messages: cfg.Batch, Bytes: cfg.BatchBytes, Foreign: f.noteForeign})
	f.observe(StepFetch, began, len(msgs), err)
	if err != nil || len(msgs) == 0 {
		memory.give()
		return nil, nil, err
	}
	memory.keep(sizeOf(msgs))
	return msgs, memory, nil
}

// walked moves the walk behind msgs.
func (f *fetcher) walked(msgs []queue.Message) {
	f.lastSeen = time.Now()
	f.touch()
	f.clean = false
	f.after = msgs[len(msgs)-1].ID
	if f.newest.Compare(f.after) < 0 {
		f.newest = f.after
	}
	f.short = len(msgs) < f.pool.cfg.Batch && sizeOf(msgs) < f.pool.cfg.BatchBytes
}

// sizeOf counts as Config.BatchBytes and the memory of the pool do.
func sizeOf(msgs []queue.Message) (size int64) {
	for i := range msgs {
		size += int64(msgs[i].Size())
	}
	return size
}

// emptied decides, at the end of a sweep with everything acknowledged, whether the session may end:
// a full sweep has found nothing that can be appended, and there is a reason not to stay.
func (f *fetcher) emptied(ctx context.Context) bool {
	held := f.held.Load()
	nothing := f.full && f.clean
	onlyIncomplete := f.full && held != nil && held.Overdue
	// rule: nobody is forgotten while anything is pending: it may be a copy of what is in the file, and only the ledger can tell.
	if now := time.Now(); nothing && now.Sub(f.lastAged) >= fullSweepEvery {
		f.lastAged = now
		f.forgetSilent(ctx)
	}
	idle := time.Since(f.lastSeen)
	cfg := &f.pool.cfg
	unwanted := cfg.UntilEmpty || idle > cfg.IdleTimeout || f.pool.waiting.Load() > 0 && idle > watchMax
	if unwanted && !nothing && !onlyIncomplete {
		f.lastFull = time.Time{} // so the next sweep is a full one, and may answer the question
	}
	ends := unwanted && (nothing || onlyIncomplete)
	if f.full {
		f.reviewUnfit(ends)
	}
	return ends
}

// goBack sets the walk back if it is time for that. In-flight batches are acknowledged first, or
// they would be fetched a second time (which the ledger would refuse: it would only be work for
// nothing).
func (f *fetcher) goBack(ctx context.Context) error {
	now := time.Now()
	held := f.held.Load()
	var to queue.ID
	again := true // also if the walk is not behind to
	switch {
	case now.Sub(f.lastFull) > fullSweepEvery, f.sweepNow.Swap(false):
		f.lastFull, f.lastLong, f.lastShort = now, now, now
	case held != nil && !now.Before(f.heldAt):
		if !held.FromStart {
			to = earlierBy(held.First, longRewind)
		}
	case f.short && now.Sub(f.lastLong) > longEvery:
		f.lastLong, f.lastShort = now, now
		if again = false; f.farMark.Compare(f.newest) < 0 {
			f.farMark, to = f.newest, earlierBy(f.newest, longRewind)
		} // else it may be of a clock that is ahead, and nobody knows where the others are
	case f.short && now.Sub(f.lastShort) > shortEvery:
		f.lastShort = now
		to, again = earlierBy(f.newest, shortRewind), false
	default:
		return nil
	}
	// rule: back never means forward. The walk would jump over what is between, and take that for gone: what everybody else publishes, if
	// the newest ID is that of a clock that is ahead.
	if to = lower(to, f.after); to == f.after && !again {
		return nil
	}
	// What waits behind a missing message is read again less and less often while that stays
	// missing.
	if held == nil {
		f.heldPoll.Reset()
	}
	f.heldAt = now.Add(f.heldPoll.Next())
	if err := f.inflight.wait(ctx); err != nil {
		return err
	}
	f.after = to
	f.full, f.clean = to.IsZero(), true
	if f.full {
		f.lastFull = now
		f.farMark, f.newest = f.newest, queue.ID{}
		f.sweeps.Add(1)
		f.unfit.begin()
	}
	return nil
}

// forgetSilent ages the ledger. The append stage is idle: everything in flight is acknowledged and
// nothing is pending.
func (f *fetcher) forgetSilent(ctx context.Context) {
	now, err := f.seenAt(ctx)
	if err != nil {
		return
	}
	// rule: a delayed message that is being promoted counts as pending. One that has been due for so long may have been promoted and
	// appended by somebody who died before it was removed, and who goes on with it would insert it
	// once more.
	if f.pool.promotesLate(ctx, f.pool.cfg.Retention) {
		return
	}
	if n := f.ledger.Forget(now, f.pool.cfg.Retention); n > 0 {
		f.log.Debug().Int("producers", n).Msg("forgot silent producers")
	}
}

// lower returns the smaller ID.
func lower(a, b queue.ID) queue.ID {
	if a.Compare(b) < 0 {
		return a
	}
	return b
}

// earlierBy returns the smallest ID of the time d before id's.
func earlierBy(id queue.ID, d time.Duration) queue.ID {
	t := id.Time()
	if t.UnixMilli() <= d.Milliseconds() {
		return queue.ID{}
	}
	return queue.NewID(t.Add(-d), 0, 0)
}
