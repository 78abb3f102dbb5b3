package worker

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
)

// Sweeps. The fetch stage walks forward over the pending messages in ID order. Messages of a slow
// producer can appear behind its position, so it regularly goes back: near the end of the queue by a
// second's and by a minute's worth of IDs, and now and then, from any position, to the very start.
// Going back far each time would make the server scan the index entries of everything that was
// deleted lately. The newest ID may come from a clock that is ahead; then a minute before it says
// nothing about the other messages. So if the newest ID has not changed since the last time, the walk
// goes back to the very start instead of by a minute.
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
	heldAt   time.Time // messages behind a gap are not read again before this
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
	asking, done := f.untilEnded(ctx) // for questions whose answers nobody needs once the session is ending
	defer done()
	defer f.stopPolling()
	for !f.ending(ctx) {
		if err := f.goBack(ctx); err != nil {
			return false, err
		}
		msgs, memory, err := f.fetch(ctx, asking)
		switch {
		case f.outage.note(asking, &f.log, err, "fetch"):
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

// passOn gives a batch to the append stage, and waits for more messages where that is worthwhile. all
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
		f.lastFull = time.Time{} // the next fetch, from the start, shows what is left
	case f.short:
		f.pause(ctx, f.linger())
	}
	f.first = false
	return false, nil
}

// foundNothing waits until what was fetched is settled, and then until it is time to fetch again. The
// session may rest instead (session.resting), or end: drained.
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
		pause = 0 // look once more from the start at once, and end if that finds nothing
	}
	f.await(ctx, pause, f.pool.rebalancer.News(f.typ))
	return false, nil
}

// canRest reports whether the listener would hear of everything that the session has to do.
func (f *fetcher) canRest() bool {
	p := f.pool
	return f.held.Load() == nil && !f.unfit.any() && p.waiting.Load() == 0 && p.listener.listening.Load()
}

// mayPoll reports whether the session is one of the maxPolling that look again after they have found nothing.
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

// rest waits until the listener has news of the type, or the session is to end. It does not wait longer
// than a part of Retention, so that silent producers are forgotten in time.
func (f *fetcher) rest(ctx context.Context) {
	cfg := &f.pool.cfg
	most := min(wait.AtLeastHalf(cfg.Retention/4), cfg.IdleTimeout-time.Since(f.lastSeen))
	for end := time.Now().Add(max(most, f.poll.Next())); ; f.pool.book.noteAlive(f.typ) {
		t := time.NewTimer(min(time.Until(end), sweepMost))
		select {
		case <-t.C:
			if time.Now().Before(end) && f.canRest() { // rule: a session rests only while somebody listens
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

// walked moves the position of the walk behind msgs.
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

// sizeOf is the size of messages as Config.BatchBytes and the memory of the pool count it.
func sizeOf(msgs []queue.Message) (size int64) {
	for i := range msgs {
		size += int64(msgs[i].Size())
	}
	return size
}

// wasAll decides whether a session that is only there to drain may end with its first fetch, which was from the very start, has
// returned less than a full batch, and can be appended as a whole: so there was nothing else when it was sent. That saves many
// small types one of their reads.
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

// emptied decides, at the end of a sweep with everything acknowledged, whether the session may end:
// a full sweep has found nothing that can be appended, and the session is idle, in the way of another
// type, or only there to drain (UntilEmpty).
func (f *fetcher) emptied(ctx context.Context) bool {
	if f.full { // everything in flight is acknowledged, so the ledger, which the append stage owns, is idle
		f.ledger.SweepEnded()
		f.tellHeld()
	}
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
		f.lastFull = time.Time{} // makes the next sweep a full one, which may show that the session can end
	}
	ends := unwanted && (nothing || onlyIncomplete)
	if f.full {
		f.reviewUnfit(ends)
	}
	return ends
}

// goBack moves the position of the walk back if that is due. It waits until all batches in flight are
// acknowledged, because they would be fetched again. (The ledger would refuse them; it only saves
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
	// rule: back never means forward. The walk would jump over what is between, and take that for gone: what everybody else publishes, if
	// the newest ID is that of a clock that is ahead.
	if to = lower(to, f.after); to == f.after && !again {
		return nil
	}
	// Messages behind a missing one are read again less and less often while it stays missing.
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

// forgetSilent makes the ledger forget silent producers. It may use the ledger, which the append
// stage owns, because that is idle: everything in flight is acknowledged and nothing is pending.
func (f *fetcher) forgetSilent(ctx context.Context) {
	now, err := f.seenAt(ctx)
	if err != nil || !f.ledger.AnySilent(now, f.pool.cfg.Retention) {
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

// earlierBy returns the smallest ID with a time d before that of id.
func earlierBy(id queue.ID, d time.Duration) queue.ID {
	t := id.Time()
	if t.UnixMilli() <= d.Milliseconds() {
		return queue.ID{}
	}
	return queue.NewID(t.Add(-d), 0, 0)
}
