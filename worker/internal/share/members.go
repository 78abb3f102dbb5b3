package share

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Heartbeats. A replica writes a heartbeat every HeartbeatEvery, or at once when a change concerns the
// other replicas, and reads theirs. A heartbeat counts as long as its beat, a number, keeps changing.
const (
	lastBeatEvery = 250 * time.Millisecond // between heartbeats of a pool that stops and waits for successors
	deadAfter     = 3 * HeartbeatEvery     // a member whose beat has not changed for this long is dead
	silentAfter   = 2 * HeartbeatEvery     // … and after this long others try to take over the types that it holds
	blindAfter    = 30 * time.Second       // a pool that could not read heartbeats for this long knows nothing about other members
	busyFor       = 30 * time.Second       // a type without messages for longer is idle, and not balanced
	leaveWithin   = time.Second            // timeout for removing itself from the list
	mostPatience  = blindAfter / 2         // longest timeout for writing a heartbeat, and for reading those of others
	silentStop    = 400 * time.Millisecond // a stopping pool considers the queue unreachable after this long without an answer
)

// Directory is the part of queue.Queue through which replicas learn about each other and about the
// types that an operator has paused.
type Directory interface {
	Now(ctx context.Context) (time.Time, error)
	Heartbeat(ctx context.Context, m queue.Member) error
	Members(ctx context.Context, after string, most int) ([]queue.Member, error)
	Leave(ctx context.Context, id string) error
	AllSettings(ctx context.Context) (map[string]queue.Settings, error)
}

// sighting is when a member last showed a new beat.
type sighting struct {
	beat int64
	at   time.Time
	read time.Time // when its heartbeat was last read
}

// lives reports whether a member has shown a new beat within the last within.
//
// rule: a beat counts as unchanged only if a later read has shown that. When the queue answers late, reads are rare, and all
// other members would look dead: each replica would then try to take over their types.
func (s sighting) lives(now time.Time, within time.Duration) bool {
	return now.Sub(s.at) < within || !s.at.IsZero() && s.read.Sub(s.at) < within-HeartbeatEvery
}

// lived reports whether the member was alive when it was last read.
func (s sighting) lived() bool { return s.lives(s.read, deadAfter) }

// recalled is lives for a member outside the window: it reports whether the member was alive when last
// read, less than remembered ago.
func (s sighting) recalled(now time.Time, remembered time.Duration) bool {
	return s.lived() && now.Sub(s.read) < remembered
}

// holding describes a type that a member holds according to its heartbeat.
type holding struct {
	by    string    // the member's Instance
	since time.Time // when this pool first saw it; zero: this pool did not see when the member got the type
	idle  bool      // no messages lately

	leaving bool // its holder waits for a successor
}

// Begin starts the heartbeats and waits until the others' have been read once (FirstLook at most).
// giveUp ends the pool; it is called if the database was replaced or the queue closed. end stops the heartbeats and removes
// this pool from the list of members.
func (r *Rebalancer) Begin(ctx context.Context, giveUp context.CancelCauseFunc) (end func()) {
	r.giveUp = giveUp
	var done sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	done.Go(func() { r.run(running) })
	t := time.NewTimer(FirstLook)
	defer t.Stop()
	select {
	case <-r.ready:
	case <-t.C:
	case <-r.view.Stopping():
	case <-ctx.Done():
	}
	return func() {
		stop()
		done.Wait()
		ctx, cancel := r.view.Parting(context.WithoutCancel(ctx), leaveWithin)
		defer cancel()
		if err := r.queue.Leave(ctx, r.self.Instance); err != nil {
			r.log.Debug().Err(err).Msg("not removed from the list of workers")
		}
	}
}

// run does one round after another, early if a change concerns the other replicas. A stopping pool
// does them more often, because it waits for others to take over its types.
func (r *Rebalancer) run(ctx context.Context) {
	stopping := r.view.Stopping()
	every := HeartbeatEvery
	for first := true; ; first = false {
		began := time.Now()
		r.round(ctx)
		pause := every
		if first {
			close(r.ready)
			pause = lastBeatEvery // pools that start together do not see each other in the first round
		}
		// The time between two heartbeats includes the round, but a slow server gets at least a quarter of the pause.
		t := time.NewTimer(max(pause-time.Since(began), pause/4))
		select {
		case <-t.C:
		case <-r.news:
		case <-stopping:
			stopping, every = nil, lastBeatEvery
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// round writes one heartbeat, then reads those of the others and, concurrently, the settings, and decides which types to ask
// for.
func (r *Rebalancer) round(ctx context.Context) {
	defer r.noteRound(time.Now())
	q := r.queue
	err := r.telling.Ask(ctx, func(ctx context.Context) error {
		if r.self.Started.IsZero() {
			r.self.Started, _ = q.Now(ctx)
		}
		return q.Heartbeat(ctx, r.me(ctx))
	})
	r.hears(err)
	r.view.Report(ctx, "tell the other workers about this one", err)
	var settings map[string]queue.Settings
	var unset error
	_ = r.reading.Ask(ctx, func(reading context.Context) error {
		var asked sync.WaitGroup
		asked.Go(func() {
			settings, unset = q.AllSettings(reading)
			r.hears(unset)
		})
		w := r.window
		members, err := w.look(reading, q.Members)
		r.hears(err)
		if !r.view.Report(ctx, "read the heartbeats of the other workers", err) {
			r.learn(members, w)
			for _, id := range r.gone(members) {
				_ = q.Leave(ctx, id) // if it is alive after all, its next heartbeat adds it again
			}
		}
		asked.Wait()
		return errors.Join(err, unset)
	})
	if !r.view.Report(ctx, "read which types are paused", unset) {
		r.setPaused(settings)
	}
	r.seek()
	r.wakeReserves()
	r.wakeSleepers() // rule: a type with backlog never waits indefinitely for a replica that does not take it
}

// hears records an answer of the queue.
func (r *Rebalancer) hears(err error) {
	// rule: the pool stops all work on a database that was replaced, whatever is in progress: its acknowledgements would go unseen.
	// A closed queue will never answer again.
	if errors.Is(err, queue.ErrReplaced) || errors.Is(err, queue.ErrClosed) {
		r.giveUp(err)
	}
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heardAt = time.Now()
}

// Silent reports whether the queue has not answered for silentStop, counted from since at the earliest.
// It is for a stopping pool, which does a round every lastBeatEvery.
func (r *Rebalancer) Silent(since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since.Before(r.heardAt) {
		since = r.heardAt
	}
	return time.Since(since) >= silentStop
}

// noteRound records a finished round and wakes the waiters in Exchange. The start of the round counts,
// not its end: the data it read may be as old as its start.
func (r *Rebalancer) noteRound(began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookedAt = began
	close(r.looked)
	r.looked = make(chan struct{})
}

// Exchange requests a heartbeat round now, and waits, for FirstLook at most, for a round that began
// after the call. Then the other replicas can see what has changed here, and this pool knows their
// current state.
//
// rule: a round writes its own heartbeat first and reads the others' after that. Of two replicas that do this concurrently, at least one
// sees the other.
func (r *Rebalancer) Exchange(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, FirstLook)
	defer cancel()
	for began := time.Now(); ; {
		r.mu.Lock()
		at, looked := r.lookedAt, r.looked
		r.mu.Unlock()
		if !at.Before(began) {
			return
		}
		select {
		case r.news <- struct{}{}:
		default:
		}
		select {
		case <-looked:
		case <-ctx.Done():
			return
		}
	}
}

// me returns the next heartbeat of this pool.
func (r *Rebalancer) me(ctx context.Context) queue.Member {
	troubles := r.view.Troubles()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beat++
	m := r.self
	m.Beat, m.Stopping, m.Errors = r.beat, r.stopping() || ctx.Err() != nil, troubles
	for typ := range r.held {
		m.Held = append(m.Held, typ)
	}
	slices.Sort(m.Held)
	for _, typ := range m.Held {
		it := r.held[typ]
		if it.session.QuietFor() > busyFor {
			m.Idle = append(m.Idle, typ)
		}
		if it.leaving {
			m.Leaving = append(m.Leaving, typ)
		}
	}
	return m
}

// learn updates the state of the members in the window from their heartbeats. The state of the other
// members stays.
func (r *Rebalancer) learn(members []queue.Member, w window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	sights, claims := r.recall(now, w)
	r.others = r.others[:0]
	for _, m := range members {
		if m.Instance == r.self.Instance {
			continue
		}
		r.others = append(r.others, m)
		s, watched := r.sight(m, now, w)
		sights[m.Instance] = s
		if s.lives(now, silentAfter) {
			r.claim(m, now, watched, claims)
			r.compare(m)
		}
	}
	lost := r.lost(now, sights, claims)
	r.sights, r.claims, r.readAt, r.window, r.replicas, r.nextPlan = sights, claims, now, w, 1, now
	for _, s := range sights {
		if s.lived() {
			r.replicas++
		}
	}
	r.wakeHeirs(lost, now)
}

// recall returns the remembered state of the members outside the window. r.mu is held.
func (r *Rebalancer) recall(now time.Time, w window) (sights map[string]sighting, claims map[string]holding) {
	sights, claims = map[string]sighting{}, map[string]holding{}
	for id, s := range r.sights {
		if !w.covers(id) {
			sights[id] = s
		}
	}
	for typ, h := range r.claims {
		if s, ok := sights[h.by]; ok && s.recalled(now, w.remembered(now)) {
			claims[typ] = h
		}
	}
	return sights, claims
}

// sight records that the heartbeat m was read. watched means that it was also read in the previous round: only then is it known when
// the member got a type. r.mu is held.
//
// rule: a member is alive while its beat changes; no other machine's clock counts.
func (r *Rebalancer) sight(m queue.Member, now time.Time, w window) (s sighting, watched bool) {
	s, ok := r.sights[m.Instance]
	if !ok || s.beat != m.Beat {
		s.beat, s.at = m.Beat, now
	}
	watched = !r.readAt.IsZero() && (!w.partial || s.read.Equal(r.readAt))
	s.read = now
	return s, watched
}

// claim adds the types that the living member m holds. r.mu is held.
func (r *Rebalancer) claim(m queue.Member, now time.Time, watched bool, claims map[string]holding) {
	for _, typ := range m.Held {
		h := r.claims[typ]
		if h.by != m.Instance {
			h = holding{by: m.Instance}
			if watched {
				h.since = now
			}
		}
		h.idle, h.leaving = false, m.Stopping || slices.Contains(m.Leaving, typ)
		claims[typ] = h
		if it := r.types[typ]; it != nil {
			it.heir, it.free = false, time.Time{}
		}
	}
	for _, typ := range m.Idle {
		if h := claims[typ]; h.by == m.Instance {
			h.idle = true
			claims[typ] = h
		}
	}
}

// compare logs, once, each type whose messages the living member m puts elsewhere than this pool. r.mu is held.
func (r *Rebalancer) compare(m queue.Member) {
	if m.To == r.self.To || m.To == "" {
		return
	}
	for _, typ := range slices.Concat(m.Types, m.Held) {
		it := r.types[typ]
		if it == nil || it.divided {
			continue
		}
		it.divided = true
		r.log.Error().Str("type", typ).Str("to", r.self.To).Str("other_to", m.To).Str("other_worker", m.Instance).Str("other_host", m.Host).Int("other_pid", m.PID).
			Msg("another worker serves this type, and puts its messages elsewhere: each message reaches only one of the two; give them different types")
	}
}

// lost returns the types that had a holder, have none according to claims, and should be checked. r.mu is held.
func (r *Rebalancer) lost(now time.Time, sights map[string]sighting, claims map[string]holding) (types []string) {
	for typ, h := range r.claims {
		if _, still := claims[typ]; still {
			continue
		}
		s, listed := sights[h.by]
		lives := s.lives(now, silentAfter)
		if it := r.types[typ]; it != nil {
			it.silent = listed && !lives
		}
		// A living holder that ended without waiting for a successor has drained the type. With many types, a check by each replica costs too much.
		if lives && !h.leaving && r.many() {
			continue
		}
		types = append(types, typ)
	}
	return types
}

// wakeHeirs wakes those of the lost types for which this pool is among the first in rank. r.mu is held.
func (r *Rebalancer) wakeHeirs(lost []string, now time.Time) {
	for typ, before := range r.ranks(lost, now) {
		it := r.types[typ]
		if before >= heirs {
			it.silent = false
			continue
		}
		r.wakeUp(typ)
		if it.silent && r.crowded() { // the silent holder is still a member, and the type is usually assigned to it
			r.lookLater(typ, now, deadAfter-silentAfter+time.Duration(before)*HeartbeatEvery-HeartbeatEvery/2, true) // in the middle between two rounds
		}
	}
}

// gone returns the members that died long ago and should be removed from the list.
//
// rule: two clocks must agree before a member is removed: by this pool's clock its beat no longer changes, and by the queue's clock its last
// heartbeat is MemberRetention old. Or by this pool's clock its beat has not changed for all of MemberRetention. Otherwise a pool whose clock is
// ahead would drop living members.
func (r *Rebalancer) gone(members []queue.Member) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(members, func(m queue.Member) bool { return m.Instance == r.self.Instance })
	if i < 0 {
		return nil
	}
	for _, m := range members {
		s, ok := r.sights[m.Instance]
		if still := time.Since(s.at); ok && (still > queue.MemberRetention || still > deadAfter && members[i].Seen.Sub(m.Seen) > queue.MemberRetention) {
			ids = append(ids, m.Instance)
		}
	}
	return ids
}

// stopping reports whether the pool is stopping.
func (r *Rebalancer) stopping() bool {
	select {
	case <-r.view.Stopping():
		return true
	default:
		return false
	}
}
