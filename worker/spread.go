package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	mrand "math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// ErrPaused is wrapped by the error of a pool that was to drain everything (Config.UntilEmpty), and could not, because types
// with backlog are paused.
var ErrPaused = errors.New("type is paused")

// Spreading. Every replica tells the others about itself, every heartbeatEvery, and computes from what all tell who should
// hold what (balance). It takes free types that fall to it, and asks for types that others hold more than their
// share of, one lock request each; the holder ends its session, and the asker, who waits in the lock's queue, goes on.
//
// rule: nothing but evenness rests on this. Who may write is decided by the lock and the file. Without fresh knowledge of others
// a pool serves whatever it can.
const (
	heartbeatEvery = 2 * time.Second
	lastBeatEvery  = 250 * time.Millisecond // … while stopping, with types that somebody should come for
	deadAfter      = 3 * heartbeatEvery     // a member whose beat stands still for so long is gone
	silentAfter    = 2 * heartbeatEvery     // … and others wait for the locks of what it holds
	firstLook      = time.Second            // a pool that starts waits for its first look at the others, so long at most

	busyFor     = 30 * time.Second       // a session that has seen no message for longer does not count
	apart       = 2                      // types are asked for only from members that hold so many more
	settle      = 5 * time.Second        // … not those that have changed hands just now
	askAgain    = 30 * time.Second       // … nor those that were asked for in vain
	maxAsks     = 6                      // … and only so many at a time
	starveAfter = 3 * time.Second        // a type with backlog that nobody holds for so long is anybody's
	planEvery   = 20 * time.Millisecond  // how often the shares are computed, at most
	notMine     = 100 * time.Millisecond // how often a free type that falls to somebody else is looked at

	// A pool looks at types that it does not hold: those that are free up to every watchMax, those of others every standbyEvery;
	// but all of them together not more often than every lookEvery.
	standbyEvery = time.Second
	lookEvery    = 5 * time.Millisecond

	heirPoll    = 100 * time.Millisecond // a holder that stops looks for who wants its types
	trafficFor  = time.Second            // … if there was a message within this time
	leaveWithin = time.Second
	silentStop  = 400 * time.Millisecond // a stopping pool takes the queue for silent after this long without an answer
)

// turn is what a pool may do about a type.
type turn int

const (
	turnNone    turn = iota // nothing: the pool stops, or there is nothing to do
	turnTake                // wait for the lock
	turnStandBy             // look whether its holder is dead
	turnAsk                 // ask its holder for it
)

// spread is what a pool knows of the other replicas. Safe for concurrent use.
type spread struct {
	p       *Pool
	started time.Time // by the queue's clock; owned by run
	ready   chan struct{}
	giveUp  context.CancelCauseFunc // ends the pool

	mu       sync.Mutex
	types    map[string]*interest
	beat     int64
	news     chan struct{}       // the others should know at once
	heardAt  time.Time           // when the queue last answered a round
	lookedAt time.Time           // when the last round began that is over …
	looked   chan struct{}       // … which closes this
	readAt   time.Time           // when the members were last read; zero: never
	sights   map[string]sighting // by ID
	others   []queue.Member      // as last read, without this pool
	claims   map[string]holding  // by type, as they say
	paused   map[string]bool
	shares   map[string]string // who should hold each active type
	nextPlan time.Time         // not before

	beating, reading, setting outage // owned by run
}

// interest is a type that this pool serves.
type interest struct {
	wake    chan struct{} // something has changed
	session *session
	taking  bool      // on its way to a session
	free    time.Time // since when it has backlog and nobody is known to hold it; zero: it has not
	tryAt   time.Time // when to look next whether its holder is dead
	wanted  int       // for how many rounds in a row this pool should have had it
	ask     bool      // ask its holder now
	asking  bool
	askedAt time.Time
}

// leaving tells that this pool is about to give the type back.
func (it *interest) leaving() bool { return it.session != nil && it.session.leaving }

// sighting is when a member last showed a new beat.
type sighting struct {
	beat int64
	at   time.Time
}

func (s sighting) lives(now time.Time, within time.Duration) bool { return now.Sub(s.at) < within }

// holding is a type that a member says to hold.
type holding struct {
	by    string
	since time.Time // as seen here; zero: since before this pool came
	idle  bool

	leaving bool // it waits for somebody to come for it
}

func newSpread(p *Pool) *spread {
	return &spread{p: p, ready: make(chan struct{}), news: make(chan struct{}, 1), looked: make(chan struct{}), types: map[string]*interest{}, sights: map[string]sighting{}}
}

// begin starts the heartbeats and waits for the first look at the others. giveUp ends the pool. end stops them and leaves.
func (sp *spread) begin(ctx context.Context, giveUp context.CancelCauseFunc) (end func()) {
	sp.giveUp = giveUp
	var done sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	done.Go(func() { sp.run(running) })
	t := time.NewTimer(firstLook)
	defer t.Stop()
	select {
	case <-sp.ready:
	case <-t.C:
	case <-sp.p.stopping:
	case <-ctx.Done():
	}
	return func() {
		stop()
		done.Wait()
		ctx, cancel := sp.p.parting(context.WithoutCancel(ctx), leaveWithin)
		defer cancel()
		if err := sp.p.cfg.Queue.Leave(ctx, sp.p.instance); err != nil {
			sp.p.log.Debug().Err(err).Msg("not taken off the list of workers")
		}
	}
}

func (sp *spread) run(ctx context.Context) {
	stopping := sp.p.stopping
	every := heartbeatEvery
	for first := true; ; first = false {
		sp.round(ctx)
		if first {
			close(sp.ready)
		}
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-sp.news:
		case <-stopping:
			stopping, every = nil, lastBeatEvery
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// round writes one heartbeat and reads what there is to know.
func (sp *spread) round(ctx context.Context) {
	defer sp.noteRound(time.Now())
	ctx, cancel := context.WithTimeout(ctx, heartbeatEvery)
	defer cancel()
	q := sp.p.cfg.Queue
	if sp.started.IsZero() {
		sp.started, _ = q.Now(ctx)
	}
	err := q.Heartbeat(ctx, sp.me(ctx))
	sp.hears(err)
	sp.beating.note(&sp.p.log, err, "tell the other workers about this one")
	members, err := q.Members(ctx)
	sp.hears(err)
	if !sp.reading.note(&sp.p.log, err, "read what other workers do") {
		sp.learn(members)
		for _, id := range sp.gone(members) {
			_ = q.Leave(ctx, id) // if it lives after all, it comes back with its next heartbeat
		}
	}
	settings, err := q.AllSettings(ctx)
	sp.hears(err)
	if !sp.setting.note(&sp.p.log, err, "read which types are paused") {
		sp.setPaused(settings)
	}
	sp.seek()
}

// hears notes that the queue answers.
func (sp *spread) hears(err error) {
	// rule: nothing goes on with a database that was replaced, whatever is in hand: nobody would ever see that it is acknowledged.
	if errors.Is(err, queue.ErrReplaced) {
		sp.giveUp(err)
	}
	if err != nil {
		return
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.heardAt = time.Now()
}

// silent tells whether the queue has answered nothing since then for silentStop. While a pool stops there is a round every lastBeatEvery.
func (sp *spread) silent(since time.Time) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if since.Before(sp.heardAt) {
		since = sp.heardAt
	}
	return time.Since(since) >= silentStop
}

// parting returns a context, of at most so long, for what a pool says when it has finished a type or all of them: how far the file has come,
// that the lock is free, that it leaves. Nothing is lost without it. While the pool stops it ends early if the queue is silent: a server
// that hangs must not hold up the stop of a replica that has nothing in hand.
func (p *Pool) parting(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	go func() {
		defer cancel()
		select {
		case <-p.stopping:
		case <-ctx.Done():
			return
		}
		for !p.spread.silent(p.stoppedAt) {
			if sleep(ctx, lastBeatEvery/10) != nil {
				return
			}
		}
	}()
	return ctx, cancel
}

func (sp *spread) noteRound(began time.Time) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.lookedAt = began
	close(sp.looked)
	sp.looked = make(chan struct{})
}

// exchange tells the others at once what has changed here, and waits until it is known who they are now: for firstLook at most.
//
// rule: told first, and looked then. Of two replicas that do this at the same time, one sees the other.
func (sp *spread) exchange(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	for began := time.Now(); ; {
		sp.mu.Lock()
		at, looked := sp.lookedAt, sp.looked
		sp.mu.Unlock()
		if !at.Before(began) {
			return
		}
		select {
		case sp.news <- struct{}{}:
		default:
		}
		select {
		case <-looked:
		case <-ctx.Done():
			return
		}
	}
}

// me describes this pool.
func (sp *spread) me(ctx context.Context) queue.Member {
	host, _ := os.Hostname()
	troubles := sp.p.troubles()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.beat++
	m := queue.Member{ID: sp.p.instance, Host: host, PID: os.Getpid(), Version: Version(), Started: sp.started, Types: sp.p.cfg.Types,
		MaxTypes: sp.p.cfg.MaxTypes, Beat: sp.beat, Stopping: sp.p.stopped(ctx), Errors: troubles}
	for _, typ := range slices.Sorted(maps.Keys(sp.types)) {
		if s := sp.types[typ].session; s != nil {
			m.Held = append(m.Held, typ)
			if s.quietFor() > busyFor {
				m.Idle = append(m.Idle, typ)
			}
			if s.leaving {
				m.Leaving = append(m.Leaving, typ)
			}
		}
	}
	return m
}

// learn takes note of the members.
func (sp *spread) learn(members []queue.Member) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	now := time.Now()
	sights, claims := map[string]sighting{}, map[string]holding{}
	sp.others = sp.others[:0]
	for _, m := range members {
		if m.ID == sp.p.instance {
			continue
		}
		// rule: a member lives while its beat changes; no clock of another machine is looked at.
		s, ok := sp.sights[m.ID]
		if !ok || s.beat != m.Beat {
			s = sighting{m.Beat, now}
		}
		sights[m.ID] = s
		sp.others = append(sp.others, m)
		if !s.lives(now, silentAfter) {
			continue
		}
		for _, typ := range m.Held {
			h := sp.claims[typ]
			if h.by != m.ID {
				h = holding{by: m.ID}
				if !sp.readAt.IsZero() {
					h.since = now
				}
			}
			h.idle, h.leaving = false, m.Stopping || slices.Contains(m.Leaving, typ)
			claims[typ] = h
		}
		for _, typ := range m.Idle {
			if h := claims[typ]; h.by == m.ID {
				h.idle = true
				claims[typ] = h
			}
		}
	}
	for typ := range sp.claims {
		if _, still := claims[typ]; !still {
			sp.wake(typ)
		}
	}
	sp.sights, sp.claims, sp.readAt = sights, claims, now
	sp.nextPlan = now
}

// gone returns the members that have died long ago, and are to be taken off the list.
//
// rule: two clocks agree on that: a beat has stood still here, and the queue's clock says that it is MemberRetention old. Or it has stood still here
// for all that time. A pool whose clock is ahead would drop the living.
func (sp *spread) gone(members []queue.Member) (ids []string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	i := slices.IndexFunc(members, func(m queue.Member) bool { return m.ID == sp.p.instance })
	if i < 0 {
		return nil
	}
	for _, m := range members {
		s, ok := sp.sights[m.ID]
		if still := time.Since(s.at); ok && (still > queue.MemberRetention || still > deadAfter && members[i].Seen.Sub(m.Seen) > queue.MemberRetention) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// sharing are the live members that may take types, this pool among them unless it stops, sorted by ID; alone tells that no
// other is known. sp.mu is held.
func (sp *spread) sharing(now time.Time) (all []queue.Member, alone bool) {
	alone = true
	if now.Sub(sp.readAt) < deadAfter && !sp.readAt.IsZero() {
		for _, m := range sp.others {
			if sp.sights[m.ID].lives(now, deadAfter) {
				alone = false
				if !m.Stopping {
					all = append(all, m)
				}
			}
		}
	}
	select {
	case <-sp.p.stopping:
	default:
		me := queue.Member{ID: sp.p.instance, Types: sp.p.cfg.Types, MaxTypes: sp.p.cfg.MaxTypes}
		for typ, it := range sp.types {
			if it.leaving() {
				me.Leaving = append(me.Leaving, typ)
			}
		}
		all = append(all, me)
		slices.SortFunc(all, func(a, b queue.Member) int { return strings.Compare(a.ID, b.ID) })
	}
	return all, alone
}

// holder returns who is known to hold a type; ok is false if nobody is. sp.mu is held.
func (sp *spread) holder(typ string, now time.Time) (h holding, ok bool) {
	h, ok = sp.claims[typ]
	return h, ok && now.Sub(sp.readAt) < deadAfter && sp.sights[h.by].lives(now, silentAfter)
}

// leave notes that a type is to be had.
func (sp *spread) leave(s *session) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	s.leaving = true
	sp.nextPlan = time.Time{}
}

// plan computes who should hold which of the active types. sp.mu is held.
func (sp *spread) plan(now time.Time) {
	if now.Before(sp.nextPlan) {
		return
	}
	all, _ := sp.sharing(now)
	members := make([]sharer, len(all))
	index := map[string]int{}
	for i, m := range all {
		members[i] = sharer{func(typ string) bool { return matchesAny(m.Types, typ) && !slices.Contains(m.Leaving, typ) }, m.MaxTypes}
		if m.MaxTypes == 0 {
			members[i].room = math.MaxInt
		}
		index[m.ID] = i
	}
	var claims []claim
	for typ := range sp.claims {
		h, ok := sp.holder(typ, now)
		if it := sp.types[typ]; !ok || h.idle || sp.paused[typ] || it != nil && (it.session != nil || it.taking) {
			continue // or it is counted below
		}
		by := nobody
		if !h.leaving {
			by = index[h.by]
		}
		claims = append(claims, claim{typ, by})
	}
	me, serving := index[sp.p.instance]
	for typ, it := range sp.types {
		switch {
		case sp.paused[typ]:
		case it.session != nil && it.session.quietFor() > busyFor:
		case it.leaving():
			claims = append(claims, claim{typ, nobody})
		case (it.session != nil || it.taking) && serving:
			claims = append(claims, claim{typ, me})
		case !it.free.IsZero():
			claims = append(claims, claim{typ, nobody})
		}
	}
	sp.shares = make(map[string]string, len(claims))
	for i, owner := range balance(members, claims) {
		if owner != nobody {
			sp.shares[claims[i].typ] = all[owner].ID
		}
	}
	// With very many types this takes long; it must not become all that is done.
	done := time.Now()
	sp.nextPlan = done.Add(max(planEvery, 20*done.Sub(now)))
}

// seek decides which types to ask for.
func (sp *spread) seek() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	now := time.Now()
	sp.plan(now)
	asks := 0
	for _, it := range sp.types {
		if it.ask || it.asking {
			asks++
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(sp.types)) {
		it := sp.types[typ]
		h, held := sp.holder(typ, now)
		if !held || sp.shares[typ] != sp.p.instance || it.session != nil || it.taking {
			it.wanted = 0
			continue
		}
		it.wanted++
		// rule: nobody is asked on the ground of one look, which may be an old one, …
		ripe := it.wanted > 1 && asks < maxAsks
		// … nor for a type that has just moved: with what others know of that, it would move on and on.
		ripe = ripe && (h.since.IsZero() || now.Sub(h.since) > settle)
		ripe = ripe && (it.askedAt.IsZero() || now.Sub(it.askedAt) > askAgain)
		if (ripe || h.leaving) && !it.ask && !it.asking { // a holder that leaves waits for us: one look is enough
			it.ask, it.askedAt = true, now
			asks++
			sp.wake(typ)
		}
	}
}

const leftAlone = "the type is paused, leaving it alone until 'fencepost types resume %s'"

// setPaused takes note of what operators say.
func (sp *spread) setPaused(settings map[string]queue.Settings) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	paused := map[string]bool{}
	for typ, s := range settings {
		if s.DrainPaused {
			paused[typ] = true
		}
	}
	before := sp.paused
	sp.paused = paused
	for typ, it := range sp.types {
		if paused[typ] == before[typ] {
			continue
		}
		log := sp.p.log.With().Str("type", typ).Logger()
		if paused[typ] {
			log.Info().Str("why", settings[typ].Why).Msgf(leftAlone, typ)
			if it.session != nil {
				it.session.halt()
			}
		} else {
			log.Info().Msg("the type is resumed")
		}
		sp.wake(typ)
	}
}

func (sp *spread) isPaused(typ string) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.paused[typ]
}

// join adds a type to those that this pool serves.
func (sp *spread) join(typ string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.types[typ] = &interest{wake: make(chan struct{}, 1)}
	if sp.paused[typ] {
		sp.p.log.Info().Str("type", typ).Msgf(leftAlone, typ)
	}
}

// drop is the opposite.
func (sp *spread) drop(typ string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	delete(sp.types, typ)
}

// next tells, before the queue is asked, whether this pool is to ask for the type, or else how long to leave it alone: one that
// somebody else is known to hold is looked at less often.
func (sp *spread) next(typ string) (ask bool, wait time.Duration) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	it, now := sp.types[typ], time.Now()
	if it.ask {
		it.ask, it.asking, it.taking = false, true, true
		return true, 0
	}
	if _, held := sp.holder(typ, now); held {
		it.free = time.Time{}
		return false, it.tryAt.Sub(now)
	}
	return false, 0
}

// turn decides what to do about a type that has backlog; for turnNone: how long to wait before asking again.
func (sp *spread) turn(typ string) (t turn, wait time.Duration) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	it, now := sp.types[typ], time.Now()
	if h, held := sp.holder(typ, now); held {
		if h.leaving && now.Sub(it.askedAt) > standbyEvery {
			if sp.plan(now); sp.shares[typ] == sp.p.instance {
				it.ask, it.askedAt = true, now
				return turnNone, 0
			}
		}
		it.tryAt = now.Add(jittered(max(standbyEvery, sp.stretch())))
		return turnStandBy, 0
	}
	if it.free.IsZero() {
		it.free = now
	}
	_, alone := sp.sharing(now)
	if !alone {
		sp.plan(now)
	}
	// rule: no type with backlog waits for somebody who does not come.
	starves := now.Sub(it.free) > starveAfter
	switch {
	case alone || starves || sp.shares[typ] == sp.p.instance:
		it.taking = true
		return turnTake, 0
	case sp.shares[typ] == "":
		return turnNone, planEvery
	}
	return turnNone, max(notMine, sp.stretch())
}

// empty takes note that a type has no backlog.
func (sp *spread) empty(typ string) (wait time.Duration) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	it, now := sp.types[typ], time.Now()
	it.free = time.Time{}
	if h, held := sp.holder(typ, now); held && !h.leaving {
		it.tryAt = now.Add(jittered(max(standbyEvery, sp.stretch())))
	}
	return sp.stretch()
}

// stretch is how often a type may be looked at, given how many there are. sp.mu is held.
func (sp *spread) stretch() time.Duration { return time.Duration(len(sp.types)) * lookEvery }

// holds and freed tell which session serves a type. freed comes after every turn that was taken.
func (sp *spread) holds(s *session) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	it := sp.types[s.typ]
	it.session, it.asking, it.free = s, false, time.Time{}
	if sp.paused[s.typ] {
		s.halt()
	}
}

func (sp *spread) freed(typ string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	it := sp.types[typ]
	it.session, it.taking, it.asking, it.free = nil, false, false, time.Time{}
}

// hasHeir tells whether another live member could go on with a type.
func (sp *spread) hasHeir(typ string) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	all, _ := sp.sharing(time.Now())
	for _, m := range all {
		busy := len(m.Held) - len(m.Idle)
		if m.ID != sp.p.instance && (m.MaxTypes == 0 || busy < m.MaxTypes) && matchesAny(m.Types, typ) {
			return true
		}
	}
	return false
}

// wake ends a pause of a type. sp.mu is held.
func (sp *spread) wake(typ string) {
	if it := sp.types[typ]; it != nil {
		select {
		case it.wake <- struct{}{}:
		default:
		}
	}
}

// pause waits for d, or until something about the type has changed; false when the pool stopped meanwhile.
func (sp *spread) pause(ctx context.Context, typ string, d time.Duration) bool {
	sp.mu.Lock()
	wake := sp.types[typ].wake
	sp.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-wake:
		return true
	case <-sp.p.stopping:
	case <-ctx.Done():
	}
	return false
}

// why is what the lock's record says about a holder.
func why(instance string) string { return "worker " + instance }

// takeShare asks the holder of a type for it, if it does not leave it anyway, and waits in the lock's queue. It returns ErrHeld if that
// did not work.
func (p *Pool) takeShare(ctx context.Context, typ string) (*lock.Lease, error) {
	p.spread.mu.Lock()
	h := p.spread.claims[typ]
	p.spread.mu.Unlock()
	wait := p.cfg.Lease / 5
	rec, err := p.cfg.Locker.Inspect(ctx, typ)
	if err != nil && !errors.Is(err, lock.ErrUnknown) {
		return nil, err
	}
	if rec.Hold != nil {
		wait = rec.Hold.Lease / 5
		reason := why(p.instance) + " takes its share"
		switch {
		case rec.Hold.Why != why(h.by):
			return nil, lock.ErrHeld // it has moved on
		case h.leaving:
		case rec.Hold.Asked != "" && rec.Hold.Asked != reason:
			return nil, lock.ErrHeld // it is promised to somebody else
		case rec.Hold.Asked == "":
			if err := p.cfg.Locker.RequestRelease(ctx, typ, reason); err != nil && !errors.Is(err, lock.ErrNotHeld) {
				return nil, err
			}
		}
	}
	// The holder sees the request when it renews its lease.
	return p.cfg.Locker.Acquire(ctx, typ, lock.WithLease(p.cfg.Lease), lock.WithWhy(why(p.instance)), lock.WithFair(), lock.WithWait(wait+3*time.Second))
}

// watch decides when the session is to end: when somebody asks for the type, an operator pauses it, or the pool stops.
func (s *session) watch(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.halted:
	case <-s.lease.ReleaseRequested():
		s.pool.spread.leave(s)
		s.awaitHeir(ctx)
	case <-s.pool.stopping:
		s.awaitHeir(ctx)
	}
	close(s.ended)
}

// awaitHeir goes on serving a type with traffic until another replica has come for it, so that its service is not
// interrupted: for Config.HandOver at most.
func (s *session) awaitHeir(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.pool.cfg.HandOver)
	defer cancel()
	serves := func() bool { return s.pool.cfg.HandOver > 0 && s.quietFor() < trafficFor }
	if serves() {
		s.pool.spread.exchange(ctx)
	}
	for serves() && s.pool.spread.hasHeir(s.typ) {
		if rec, err := s.pool.cfg.Locker.Inspect(ctx, s.typ); err == nil && len(rec.Queue) > 0 {
			return
		}
		t := time.NewTimer(jittered(max(heirPoll, s.pool.spread.heldStretch())))
		select {
		case <-t.C:
		case <-s.halted:
			t.Stop()
			return
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// heldStretch is how often a held type may be looked at, given how many there are.
func (sp *spread) heldStretch() time.Duration {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	n := 0
	for _, it := range sp.types {
		if it.session != nil {
			n++
		}
	}
	return time.Duration(n) * lookEvery
}

// ending tells whether the session is to end at the next occasion.
//
// rule: an end is final, also when the type is resumed meanwhile. What a stage has given up on because of it is left to the next session:
// this one's ledger counts it as handled.
func (s *session) ending(ctx context.Context) bool {
	select {
	case <-s.ended:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// untilEnded returns a context that also ends when the session is to end.
func (s *session) untilEnded(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// pause waits for d, or until the session is to end.
func (s *session) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ended:
	case <-ctx.Done():
	}
}

// touch notes that there was a message.
func (s *session) touch() { s.touched.Store(int64(time.Since(s.pool.began))) }

// quietFor is how long there was no message.
func (s *session) quietFor() time.Duration {
	return time.Since(s.pool.began) - time.Duration(s.touched.Load())
}

// pausedError is what a pool with UntilEmpty ends with.
func pausedError(typ string) error {
	return fmt.Errorf("%w: %s has messages that were not drained; resume it with 'fencepost types resume %s'", ErrPaused, typ, typ)
}

func matchesAny(patterns []string, typ string) bool {
	for _, t := range patterns {
		if ok, _ := path.Match(t, typ); ok {
			return true
		}
	}
	return false
}

// jittered is d, give or take a quarter.
func jittered(d time.Duration) time.Duration { return d*3/4 + mrand.N(d/2+1) }
