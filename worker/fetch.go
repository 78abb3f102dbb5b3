package worker

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
)

// Sweeps. The fetch stage walks forward over the pending messages in ID order. Messages of a slow
// producer can appear behind its position, so it regularly goes back: near the end of the queue by a
// second's and by a minute's worth of IDs, and periodically, from any position, to the very start.
// Going back far each time would make the server scan the index entries of all recently deleted
// messages. The newest ID may come from a clock that is ahead; then the minute before it says
// nothing about the other messages. So if the newest ID has not changed since the last time, the walk
// goes back to the very start instead of by a minute.
//
// rule: a fetch never begins later than fullSweepEvery after the start of the last full sweep. A publisher that has to take
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

// fetcher is the fetch stage: it decides where to read next, and whether the session may end.
type fetcher struct {
	*session
	after   queue.ID // position of the walk
	newest  queue.ID // highest ID seen since the last full sweep began
	farMark queue.ID // newest when the walk last went back by longRewind
	short   bool     // the last fetch returned less than a full batch: the walk is near the end of the queue
	nothing bool     // the last fetch returned nothing
	full    bool     // the current sweep started at the very start …
	clean   bool     // … and has found nothing pending so far

	lastFull, lastLong, lastShort time.Time // when sweeps of these kinds started
	lastAged                      time.Time // when the ledger was last aged

	lastSeen time.Time // when a message was last fetched
	first    bool      // nothing was fetched yet
	polls    bool      // has one of the maxPolling places
	poll     wait.Backoff
	outage   outage
	heldPoll wait.Backoff
	heldAt   time.Time // messages that a gap holds back are not read again before this
}

func newFetcher(s *session) *fetcher {
	return &fetcher{
		session: s, lastSeen: time.Now(), first: true,
		poll:     wait.Backoff{Min: watchMin, Max: watchMax},
		heldPoll: wait.Backoff{Min: watchMin, Max: heldRetryMax},
	}
}

// run fetches until there is a reason to end the session, or the type has been quiet for so long that
// the session can rest (session.resting). drained means that a full sweep found nothing that can be
// appended.
func (f *fetcher) run(ctx context.Context, out chan<- batch) (drained bool, err error) {
	asking, done := f.untilEnded(ctx) // for queries whose answers are useless once the session is ending
	defer done()
	defer f.stopPolling()
	for !f.ending(ctx) {
		if err := f.goBack(ctx); err != nil {
			return false, err
		}
		msgs, memory, err := f.fetch(ctx, asking)
		switch {
		case f.pool.outages.note(asking, &f.outage, &f.log, err, "fetch"):
			if fatal(err) || ctx.Err() != nil {
				return false, err
			}
			f.pause(ctx, f.poll.Next())
		case len(msgs) > 0:
			if all, err := f.passOn(ctx, asking, batch{msgs, memory}, out); all || err != nil {
				return all, err
			}
		default:
			if drained, err := f.foundNothing(ctx, asking); drained || err != nil || f.resting {
				return drained, err
			}
		}
	}
	return false, nil
}

// passOn sends a batch to the append stage, and waits for more messages where that is worthwhile. all
// means that the batch had all messages of the type.
func (f *fetcher) passOn(ctx, asking context.Context, b batch, out chan<- batch) (all bool, err error) {
	f.walked(b.msgs)
	f.nothing = false
	f.inflight.add(1)
	select {
	case out <- b:
	case <-ctx.Done():
		b.memory.give()
		return false, ctx.Err()
	}
	f.poll.Reset()
	switch {
	case f.first && f.short && f.pool.cfg.UntilEmpty:
		if all, err := f.wasAll(ctx, asking); all || err != nil {
			return all, err
		}
		f.lastFull = time.Time{} // the next fetch, from the start, shows which messages are left
	case f.short:
		f.pause(ctx, f.linger())
	}
	f.first = false
	return false, nil
}

// foundNothing waits until all fetched messages are settled, and then until it is time to fetch again.
// Instead the session may rest (session.resting) or end (drained).
func (f *fetcher) foundNothing(ctx, asking context.Context) (drained bool, err error) {
	f.short, f.nothing = true, true
	if err := f.inflight.wait(ctx); err != nil {
		return false, err
	}
	pause := f.poll.Next()
	switch {
	case f.emptied(asking):
		return true, nil
	case f.canRest() && (time.Since(f.lastSeen) >= restAfter || !f.mayPoll()):
		f.resting = true
		return false, nil
	case f.held.Load() != nil:
		pause = min(pause, max(time.Until(f.heldAt), 0))
	case f.pool.cfg.UntilEmpty:
		pause = 0 // sweep once more from the start at once, and end if that finds nothing
	}
	f.await(ctx, pause, f.pool.rebalancer.News(f.typ))
	return false, nil
}

// canRest reports whether the listener would notice everything that the session has to do.
func (f *fetcher) canRest() bool {
	p := f.pool
	return f.held.Load() == nil && !f.unfit.any() && p.waiting.Load() == 0 && p.listener.listening.Load()
}

// mayPoll reports whether the session is one of the maxPolling that keep polling after they have found
// nothing. If there is a free place, it takes it.
func (f *fetcher) mayPoll() bool {
	if !f.polls {
		select {
		case f.pool.polling <- struct{}{}:
			f.polls = true
		default:
		}
	}
	return f.polls
}

// stopPolling lets another session poll in place of this one.
func (f *fetcher) stopPolling() {
	if f.polls {
		<-f.pool.polling
		f.polls = false
	}
}

// rest waits until the listener has news of the type, or the session is to end. It waits no longer than
// a fraction of Retention, so that silent producers are forgotten in time.
func (f *fetcher) rest(ctx context.Context) {
	cfg := &f.pool.cfg
	most := min(wait.AtLeastHalf(cfg.Retention/4), cfg.IdleTimeout-time.Since(f.lastSeen))
	for end := time.Now().Add(max(most, f.poll.Next())); ; f.pool.book.noteAlive(f.typ) {
		t := time.NewTimer(min(time.Until(end), sweepMost))
		select {
		case <-t.C:
			if time.Now().Before(end) && f.canRest() { // rule: a session rests only while the listener works
				continue
			}
		case <-f.pool.rebalancer.News(f.typ):
		case <-f.halted:
			f.watch(ctx)
		case <-f.lease.ReleaseRequested():
			f.watch(ctx)
		case <-f.pool.stopping.Done():
			f.watch(ctx)
		case <-ctx.Done():
		}
		t.Stop()
		return
	}
}

// linger is how long messages may wait in the queue for more of them to share an fsync. Fetched
// messages never wait: they take memory, and a stop would have to wait for them.
func (f *fetcher) linger() time.Duration {
	if f.pool.cfg.UntilEmpty {
		return min(f.pool.cfg.Linger, DefaultLinger)
	}
	return f.pool.cfg.Linger
}

// fetch reserves memory for a batch and fetches it. asking may end before ctx, when the session is to
// end.
func (f *fetcher) fetch(ctx, asking context.Context) ([]queue.Message, *grant, error) {
	cfg, m := &f.pool.cfg, f.pool.memory
	memory := m.try(m.fetch)
	if memory == nil && f.nothing {
		// rule: a type without messages does not queue up for memory. Depth reads only keys, which take none.
		if d, err := cfg.Queue.Depth(asking, f.typ, 1); err != nil || d.Pending+d.Foreign == 0 {
			return nil, nil, err
		}
	}
	if memory == nil {
		var err error
		if memory, err = m.take(asking, m.fetch, f.inflight.zero()); err != nil {
			return nil, nil, err
		}
		if err := f.goBack(ctx); err != nil { // the wait may have been long, and a sweep may be due
			memory.give()
			return nil, nil, err
		}
	}
	began := time.Now()
	f.pool.book.noteAsking(f.typ)
	msgs, err := cfg.Queue.Fetch(asking, f.typ, f.after, queue.Limit{Messages: cfg.Batch, Bytes: cfg.BatchBytes, Foreign: f.noteForeign})
	f.pool.book.noteAnswer(asking, f.typ, err)
	f.observe(StepFetch, began, len(msgs), err)
	if err != nil || len(msgs) == 0 {
		memory.give()
		return nil, nil, err
	}
	memory.keep(sizeOf(msgs))
	return msgs, memory, nil
}

// walked moves the position of the walk past msgs.
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

// sizeOf returns the size of messages as Config.BatchBytes and the memory of the pool count it.
func sizeOf(msgs []queue.Message) (size int64) {
	for i := range msgs {
		size += int64(msgs[i].Size())
	}
	return size
}

// wasAll decides whether a session that only drains (UntilEmpty) may end after its first fetch. It may if the fetch started at the
// very start, returned less than a full batch, and all of it can be appended: then the queue had nothing else when the fetch was
// sent. This saves one read for each of many small types.
func (f *fetcher) wasAll(ctx, asking context.Context) (bool, error) {
	if err := f.inflight.wait(ctx); err != nil {
		return false, err
	}
	// rule: a type with messages that wait, or cannot be appended, is read once more.
	if !f.full || f.ending(ctx) || f.held.Load() != nil || f.unfit.any() || f.sweepNow.Load() {
		return false, nil
	}
	f.clean = true
	return f.emptied(asking), nil
}

// emptied decides, at the end of a sweep with everything acknowledged, whether the session may end. It
// may if a full sweep has found nothing that can be appended, and the session is idle, occupies a slot
// that another type waits for, or only drains (UntilEmpty).
func (f *fetcher) emptied(ctx context.Context) bool {
	if f.full { // everything in flight is acknowledged, so the ledger, which the append stage owns, is idle
		f.ledger.SweepEnded()
		f.tellHeld()
	}
	held := f.held.Load()
	nothing := f.full && f.clean
	onlyIncomplete := f.full && held != nil && held.Overdue
	// rule: no producer is forgotten while anything is pending: it may be a copy of a message in the file, and only the ledger can tell.
	if now := time.Now(); nothing && now.Sub(f.lastAged) >= fullSweepEvery {
		f.lastAged = now
		f.forgetSilent(ctx)
	}
	idle := time.Since(f.lastSeen)
	cfg := &f.pool.cfg
	unwanted := cfg.UntilEmpty || idle > cfg.IdleTimeout || f.pool.waiting.Load() > 0 && idle > watchMax
	if unwanted && !nothing && !onlyIncomplete {
		f.lastFull = time.Time{} // makes the next sweep a full one, which may show that the session can end
	}
	ends := unwanted && (nothing || onlyIncomplete)
	if f.full {
		f.reviewUnfit(ends)
	}
	return ends
}

// goBack moves the position of the walk back if that is due. It waits until all batches in flight are
// acknowledged, because they would be fetched again. (The ledger would refuse them; waiting only saves
// work.)
func (f *fetcher) goBack(ctx context.Context) error {
	now := time.Now()
	held := f.held.Load()
	var to queue.ID
	again := true // start a sweep even if the position is already before to
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
		} // else newest may come from a clock that is ahead: go to the very start
	case f.short && now.Sub(f.lastShort) > shortEvery:
		f.lastShort = now
		to, again = earlierBy(f.newest, shortRewind), false
	default:
		return nil
	}
	// rule: going back never moves the walk forward. It would jump over the messages in between and take them for gone: those of all
	// other producers, if the newest ID comes from a clock that is ahead.
	if to = lower(to, f.after); to == f.after && !again {
		return nil
	}
	// Messages that a missing one holds back are read again less and less often while it stays missing.
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

// forgetSilent makes the ledger forget silent producers. It may use the ledger, which the append stage
// owns, because that stage is idle: everything in flight is acknowledged and nothing is pending.
func (f *fetcher) forgetSilent(ctx context.Context) {
	now, err := f.seenAt(ctx)
	if err != nil || !f.ledger.AnySilent(now, f.pool.cfg.Retention) {
		return
	}
	// rule: a delayed message that is being promoted counts as pending. One that has been due for this long may have been promoted by a
	// pool that died before it removed it, and have been appended. The pool that resumes the promotion
	// would insert it once more.
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

// earlierBy returns the smallest ID with a time d before that of id.
func earlierBy(id queue.ID, d time.Duration) queue.ID {
	t := id.Time()
	if t.UnixMilli() <= d.Milliseconds() {
		return queue.ID{}
	}
	return queue.NewID(t.Add(-d), 0, 0)
}
