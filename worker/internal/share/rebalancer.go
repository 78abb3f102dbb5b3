// Package share decides which replica serves which type, so that all replicas have about the same
// number of busy types.
//
// Every replica describes itself in a heartbeat, and computes from all heartbeats which replica should
// hold which type:
//
//	heartbeats ──▶ members ──▶ plan (balance) ──▶ Turn of each type: take it · stand by · ask its holder · skip it
//
// Replicas with the same knowledge compute the same plan, so they need not negotiate. A replica takes
// the free types that the plan assigns to it. If others hold more than their share, it asks for a type
// by requesting the release of its lock: the holder ends its session, and the requesting replica, which
// waits in the lock's queue, takes over.
//
// rule: only evenness depends on this package. The lock and the file decide which replica may write. Without recent heartbeats of
// other replicas a pool serves every type it can.
package share

import (
	"context"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// Times of a Rebalancer.
const (
	HeartbeatEvery = 2 * time.Second
	FirstLook      = time.Second     // how long a starting pool waits, at most, to read the other replicas' heartbeats
	StarveAfter    = 3 * time.Second // any replica may take a type with backlog that has been free for this long
)

// View is a Rebalancer's view of its pool.
type View interface {
	// Stopping returns a channel that is closed when the pool stops.
	Stopping() <-chan struct{}
	// Troubles returns the errors that currently keep the pool from draining types, by type.
	Troubles() map[string]string
	// Report logs when the operation what begins to fail and when it works again, and returns
	// whether err is an error. An operation that was cancelled because ctx ended has not failed.
	Report(ctx context.Context, what string, err error) (failed bool)
	// Parting returns a context with timeout most for the last writes of a pool. It ends early if
	// the pool stops and the queue does not answer.
	Parting(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc)
}

// Session is a Rebalancer's view of a session of its pool.
type Session interface {
	QuietFor() time.Duration // time since the last message was fetched
	Halt()                   // makes it end soon
}

// Rebalancer decides for one pool which of its types to take, stand by for, or ask for, based on the
// heartbeats of the other replicas. Safe for concurrent use.
type Rebalancer struct {
	view   View
	queue  Directory
	log    zerolog.Logger
	self   queue.Member  // the constant part of this pool's heartbeat
	ready  chan struct{} // closed after the first round
	giveUp context.CancelCauseFunc

	telling, reading wait.Patience // timeouts of a round

	mu        sync.Mutex
	types     map[string]*interest // the types that this pool serves …
	held      map[string]*interest // … and those of them with a session
	beat      int64                // number of the last heartbeat
	news      chan struct{}        // requests a round now
	heardAt   time.Time            // when the queue last answered
	lookedAt  time.Time            // when the last finished round began …
	looked    chan struct{}        // … which has closed this channel and made a new one
	readAt    time.Time            // when the members were last read; zero: never
	sights    map[string]sighting  // by Instance: when its beat last changed
	window    window               // which members are read
	replicas  int                  // number of replicas that were alive when last read, plus this one; 0: none was read yet
	others    []queue.Member       // the members in the window, as last read, without this pool
	claims    map[string]holding   // by type: its holder according to the others' heartbeats
	paused    map[string]bool      // by type
	shares    map[string]string    // the plan: for each active type the Instance that should hold it
	scattered bool                 // free types are assigned to members by hashing
	asleep    sleepers
	reserve   map[string]reserve // by type
	unasked   int                // sole types taken since the last type that was not sole, see probeEvery
	helped    bool               // the last type that was queried under its lock was drained
	nextPlan  time.Time          // the plan is not computed again before this time
}

// interest is the state of a type that this pool serves.
type interest struct {
	wake    chan struct{} // ends a pause: something has changed
	session Session       // nil if this pool does not hold the type
	leaving bool          // session is about to release the type
	taking  bool          // this pool is taking it, but has no session yet
	helps   bool          // it is assigned to another pool, which has not taken it
	sole    bool          // no other pool wanted it when it was taken
	told    told          // what the pool has learned about it since its last check
	free    time.Time     // since when it has backlog and no known holder; zero: it has no backlog, or a holder …
	freeAt  time.Time     // … and when it was last seen free
	silent  bool          // its holder has fallen silent, and this pool has not checked the lock since
	heir    bool          // its holder is lost, and this pool, one of few, is to take it
	tryAt   time.Time     // when to check next whether its holder is dead
	notYet  time.Time     // no check before this time: another replica had its lock, which no heartbeat has shown yet
	wanted  int           // for how many rounds in a row the plan has assigned it to this pool
	ask     bool          // the pool should ask its holder now
	asking  bool          // the pool is asking
	askedAt time.Time     // when the pool last asked
	divided bool          // it was logged that a member puts its messages elsewhere
}

// New returns the Rebalancer of a pool. self must have the fields that do not change: Instance, Host,
// PID, Version, Types, MaxTypes, To.
func New(view View, directory Directory, self queue.Member, log zerolog.Logger) *Rebalancer {
	return &Rebalancer{view: view, queue: directory, self: self, log: log, ready: make(chan struct{}), news: make(chan struct{}, 1),
		telling: wait.Patience{Min: HeartbeatEvery, Max: mostPatience}, reading: wait.Patience{Min: 2 * HeartbeatEvery, Max: mostPatience},
		looked: make(chan struct{}), types: map[string]*interest{}, held: map[string]*interest{}, sights: map[string]sighting{}, reserve: map[string]reserve{}}
}

// sleepers are the free types in the last list of pending types that are assigned to other replicas.
type sleepers struct {
	types []string
	since time.Time // when the list was read
}

// told says, if it is known without a query, how many messages a type has at least; 0: none.
type told struct {
	known   bool
	pending int
}

// Join adds types to those that this pool serves. pending means that they are known to have messages,
// so that all replicas that join them at about the same time plan with the same types.
func (r *Rebalancer) Join(pending bool, types ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, typ := range types {
		it := &interest{wake: make(chan struct{}, 1)}
		if pending {
			it.told = told{true, 1}
			it.isFree(now)
		}
		r.types[typ] = it
		if r.paused[typ] {
			r.log.Info().Str("type", typ).Msg(leftAlone)
		}
	}
}

// Drop is the opposite of Join.
func (r *Rebalancer) Drop(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.types, typ)
	delete(r.held, typ)
}

// Holds records that a session of this pool serves a type. If the type is paused, it halts the session.
func (r *Rebalancer) Holds(typ string, s Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it := r.types[typ]
	it.session, it.leaving, it.asking, it.heir, it.free = s, false, false, false, time.Time{}
	r.held[typ] = it
	if r.paused[typ] {
		s.Halt()
	}
}

// Freed records that no session of this pool serves a type any more. Call it after every turn, even
// one that did not lead to a session; the type then keeps the time since which it has been free.
func (r *Rebalancer) Freed(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it := r.types[typ]
	it.session, it.leaving, it.taking, it.asking, it.sole = nil, false, false, false, false
	delete(r.held, typ)
}

// Leave records that a type that this pool holds is up for handoff.
func (r *Rebalancer) Leave(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it := r.types[typ]; it != nil && it.session != nil {
		it.leaving = true
	}
	r.nextPlan = time.Time{}
}

// Wake ends a pause of a type, so that the pool checks it.
func (r *Rebalancer) Wake(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeUp(typ)
}

// Found records the types with messages, from a list of all pending types, and ends their pauses. So they need no
// query, unless another replica holds them and may have drained them since. busy is as in Turn.
//
// If there are many, those assigned to other replicas stay asleep: see wakeSleepers. Otherwise each replica would
// wake for every type, only to find that most are not its own.
func (r *Rebalancer) Found(types []string, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	few := !r.many() || r.alone(now)
	var free []string
	for _, typ := range types {
		it := r.types[typ]
		if it == nil {
			continue
		}
		if _, held := r.holder(typ, now); !held && it.waits() {
			it.told = told{true, 1}
			if !few {
				it.isFree(now)
				free = append(free, typ)
				continue
			}
		}
		r.wakeUp(typ)
	}
	if len(free) > 0 {
		r.nextPlan = now // it must include all of them
		r.plan(now)
	}
	r.asleep = sleepers{r.asleep.types[:0], now}
	for _, typ := range free {
		it := r.types[typ]
		if r.shares[typ] == r.self.Instance || r.undecided(typ) || it.silent || it.starves(now, busy) {
			r.wakeUp(typ)
		} else {
			r.asleep.types = append(r.asleep.types, typ)
		}
	}
}

// wakeSleepers wakes, once, the types that Found left asleep, if they are still free after they have waited so long
// that this pool helps.
func (r *Rebalancer) wakeSleepers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.asleep.since) <= max(StarveAfter, r.stretch()) {
		return
	}
	for _, typ := range r.asleep.types {
		it := r.types[typ]
		if _, held := r.holder(typ, now); it != nil && it.waits() && !held {
			r.wakeUp(typ)
		}
	}
	r.asleep.types = nil
}

// Waiting returns, sorted, the types that this pool serves but neither holds nor is about to hold.
func (r *Rebalancer) Waiting() (types []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for typ, it := range r.types {
		if it.waits() {
			types = append(types, typ)
		}
	}
	slices.Sort(types)
	return types
}

// Free returns those of types that no living replica is known to hold.
func (r *Rebalancer) Free(types []string) (free []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, typ := range types {
		if _, held := r.holder(typ, now); !held {
			free = append(free, typ)
		}
	}
	return free
}

// Tell ends the pauses of types that this pool waits for. pending is the least number of messages they
// are known to have; 0 means that they are known to have none.
func (r *Rebalancer) Tell(types []string, pending int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, typ := range types {
		if it := r.types[typ]; it != nil && it.waits() {
			it.told, it.tryAt = told{true, pending}, time.Time{}
			r.wakeUp(typ)
		}
	}
}

// Told returns what was recorded about the messages of a type since the last call, if anything: see told.
func (r *Rebalancer) Told(typ string) (pending int, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it := r.types[typ]
	t := it.told
	it.told = told{}
	return t.pending, t.known
}

// waits reports whether the pool pauses for the type, or is about to.
func (it *interest) waits() bool { return it.session == nil && !it.taking && !it.asking }

// WakeSessions wakes the sessions of all types that this pool holds.
func (r *Rebalancer) WakeSessions() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for typ := range r.held {
		r.wakeUp(typ)
	}
}

// WakeSession wakes the session of a type, if this pool holds it. free means that no replica does.
func (r *Rebalancer) WakeSession(typ string) (free bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it := r.types[typ]; it != nil && it.session != nil {
		r.wakeUp(typ)
		return false
	}
	return !r.kept(typ)
}

// Notified is Wake for types that have new messages, except that it ignores those that another replica holds. All replicas receive the
// notification. If the pool is Crowded, one replica checks each type at once. As long as no heartbeat shows a holder, another one checks
// it after StarveAfter, then two more, then four: see wakeReserves. A sweep finds the messages that they miss.
func (r *Rebalancer) Notified(types []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var free []string
	for _, typ := range types {
		switch it := r.types[typ]; {
		case it == nil || r.kept(typ):
		case it.waits():
			free = append(free, typ)
		default:
			r.wakeUp(typ)
		}
	}
	for typ, before := range r.ranks(free, now) {
		switch {
		case before == 0:
			r.wakeUp(typ)
		case before < reserves:
			r.lookLater(typ, now, time.Duration(bits.Len(uint(before)))*StarveAfter, false)
		}
	}
}

// reserve is a type with news, or with a lost holder, that this pool checks unless another replica takes it first.
type reserve struct {
	since time.Time // when the pool learned of it
	until time.Time // when this pool checks it
	heir  bool      // its holder is lost
}

// lookLater makes this pool check a type after d unless another replica takes it by then. heir means that its holder is lost. r.mu is held.
func (r *Rebalancer) lookLater(typ string, now time.Time, d time.Duration, heir bool) {
	e, known := r.reserve[typ]
	if !known || now.Add(d).Before(e.until) {
		e.since, e.until = now, now.Add(d)
	}
	e.heir = e.heir || heir
	r.reserve[typ] = e
}

// wakeReserves wakes the types that no replica has taken in time.
func (r *Rebalancer) wakeReserves() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for typ, e := range r.reserve {
		switch it := r.types[typ]; {
		case it == nil || !it.waits() || r.kept(typ):
		case now.Before(e.until):
			continue
		default:
			if it.free.IsZero() {
				it.free = e.since // so it starves
			}
			it.freeAt, it.heir = now, it.heir || e.heir
			r.wakeUp(typ)
		}
		delete(r.reserve, typ)
	}
}

// kept reports whether another replica holds a type and is not about to leave it. r.mu is held.
func (r *Rebalancer) kept(typ string) bool {
	h, held := r.holder(typ, time.Now())
	return held && !h.leaving
}

// News returns the channel that wakes the session of a type. The same channel ends a Pause, because a
// type has either a session or a pausing goroutine.
func (r *Rebalancer) News(typ string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.types[typ].wake
}

// wakeUp ends a pause of a type. r.mu is held.
func (r *Rebalancer) wakeUp(typ string) {
	if it := r.types[typ]; it != nil {
		it.notYet = time.Time{} // the replica with the lock may be done
		select {
		case it.wake <- struct{}{}:
		default:
		}
	}
}

// Pause waits for d, or until the type is woken or the pool stops. woken means that something about the
// type has changed.
func (r *Rebalancer) Pause(ctx context.Context, typ string, d time.Duration) (woken bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.News(typ):
		return true
	case <-r.view.Stopping():
	case <-ctx.Done():
	}
	return false
}

const leftAlone = "the type is paused; it is not drained until it is resumed"

// setPaused applies the settings: it halts the sessions of newly paused types, and wakes resumed ones.
func (r *Rebalancer) setPaused(settings map[string]queue.Settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	paused := map[string]bool{}
	for typ, s := range settings {
		if s.DrainPaused {
			paused[typ] = true
		}
	}
	before := r.paused
	r.paused = paused
	if maps.Equal(paused, before) {
		return
	}
	for typ, it := range r.types {
		if paused[typ] == before[typ] {
			continue
		}
		log := r.log.With().Str("type", typ).Logger()
		if paused[typ] {
			log.Info().Str("why", settings[typ].Why).Msg(leftAlone)
			if it.session != nil {
				it.session.Halt()
			}
		} else {
			log.Info().Msg("the type is resumed")
		}
		r.wakeUp(typ)
	}
}

// Paused reports whether an operator has paused a type.
func (r *Rebalancer) Paused(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused[typ]
}

// jittered returns d plus or minus up to a quarter.
func jittered(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
