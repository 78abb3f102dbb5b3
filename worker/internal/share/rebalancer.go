// Package share decides which replica serves which type, so that all of them have about as many
// busy types as the others.
//
// Every replica tells the others about itself in a heartbeat, and computes from what all say who
// should hold what:
//
//	heartbeats ──▶ members ──▶ plan (balance) ──▶ Turn of each type: take it · stand by · ask its holder · leave it alone
//
// All replicas that know the same compute the same plan, so nobody has to agree on it. A replica
// takes free types that fall to it, and asks for types that others hold more than their share of,
// one lock request each. The holder ends its session, and the replica that asked, which waits in
// the lock's queue, goes on.
//
// rule: nothing but evenness rests on this. Who may write is decided by the lock and the file. Without fresh knowledge of others
// a pool serves whatever it can.
package share

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// Times of a Rebalancer.
const (
	HeartbeatEvery = 2 * time.Second
	FirstLook      = time.Second     // a pool that starts waits for its first look at the others, so long at most
	StarveAfter    = 3 * time.Second // any replica may take a type with backlog that was free for so long
)

// View is what a Rebalancer sees of its pool.
type View interface {
	// Stopping returns a channel that is closed when the pool stops.
	Stopping() <-chan struct{}
	// Troubles returns what keeps the pool from draining types now, by type.
	Troubles() map[string]string
	// Report logs the beginning and the end of failures to do something, and returns whether err is
	// one.
	Report(what string, err error) (failed bool)
	// Parting returns a context for what the pool says when it has finished, of at most so long.
	Parting(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc)
}

// Session is what a Rebalancer sees of a session of its pool.
type Session interface {
	QuietFor() time.Duration // for how long there was no message
	Halt()                   // ends it soon
}

// Rebalancer is what a pool knows of the other replicas, and what it does about it. Safe for
// concurrent use.
type Rebalancer struct {
	view   View
	queue  Directory
	log    zerolog.Logger
	self   queue.Member  // of it what does not change
	ready  chan struct{} // closed after the first round
	giveUp context.CancelCauseFunc

	mu       sync.Mutex
	types    map[string]*interest
	beat     int64
	news     chan struct{}       // the others should know at once
	heardAt  time.Time           // when the queue last answered a round
	lookedAt time.Time           // when the last round began that is over …
	looked   chan struct{}       // … which closes this
	readAt   time.Time           // when the members were last read; zero: never
	sights   map[string]sighting // by ID
	window   window              // which members are looked at
	others   []queue.Member      // those in the window, as last read, without this pool
	claims   map[string]holding  // by type, as they say
	paused   map[string]bool
	shares   map[string]string // who should hold each active type
	nextPlan time.Time         // not before
}

// interest is a type that this pool serves.
type interest struct {
	wake    chan struct{} // something has changed
	session Session
	leaving bool      // session is about to give the type back
	taking  bool      // on its way to a session
	free    time.Time // since when it has backlog and no known holder; zero: it has none
	tryAt   time.Time // when to look next whether its holder is dead
	wanted  int       // for how many rounds in a row this pool should have had it
	ask     bool      // ask its holder now
	asking  bool
	askedAt time.Time
}

// New returns the Rebalancer of a pool. Of self the fields count that do not change: ID, Host, PID,
// Version, Types, MaxTypes.
func New(view View, directory Directory, self queue.Member, log zerolog.Logger) *Rebalancer {
	return &Rebalancer{view: view, queue: directory, self: self, log: log, ready: make(chan struct{}), news: make(chan struct{}, 1),
		looked: make(chan struct{}), types: map[string]*interest{}, sights: map[string]sighting{}}
}

// Join adds a type to those that this pool serves.
func (r *Rebalancer) Join(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.types[typ] = &interest{wake: make(chan struct{}, 1)}
	if r.paused[typ] {
		r.log.Info().Str("type", typ).Msg(leftAlone)
	}
}

// Drop is the opposite.
func (r *Rebalancer) Drop(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.types, typ)
}

// Holds and Freed tell which session serves a type. Freed comes after every turn that was taken.
func (r *Rebalancer) Holds(typ string, s Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it := r.types[typ]
	it.session, it.leaving, it.asking, it.free = s, false, false, time.Time{}
	if r.paused[typ] {
		s.Halt()
	}
}

// Freed is the opposite of Holds.
func (r *Rebalancer) Freed(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it := r.types[typ]
	it.session, it.leaving, it.taking, it.asking, it.free = nil, false, false, false, time.Time{}
}

// Leave notes that a type which this pool holds is up for handoff.
func (r *Rebalancer) Leave(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it := r.types[typ]; it != nil && it.session != nil {
		it.leaving = true
	}
	r.nextPlan = time.Time{}
}

// Wake ends a pause of a type: it has messages.
func (r *Rebalancer) Wake(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeUp(typ)
}

// WakeSessions ends the pauses of all types that this pool holds.
func (r *Rebalancer) WakeSessions() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for typ, it := range r.types {
		if it.session != nil {
			r.wakeUp(typ)
		}
	}
}

// Notified is Wake for new messages. What another replica holds is left to that.
func (r *Rebalancer) Notified(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h, held := r.holder(typ, time.Now()); held && !h.leaving {
		return
	}
	r.wakeUp(typ)
}

// News returns the channel by which a session that holds a type is woken. It is also that of Pause:
// a type has a session, or a watch that pauses.
func (r *Rebalancer) News(typ string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.types[typ].wake
}

// wakeUp ends a pause of a type. r.mu is held.
func (r *Rebalancer) wakeUp(typ string) {
	if it := r.types[typ]; it != nil {
		select {
		case it.wake <- struct{}{}:
		default:
		}
	}
}

// Pause waits for d, or until something about the type has changed, or the pool stops; woken tells
// that something has changed.
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

const leftAlone = "the type is paused; it is left alone until it is resumed"

// setPaused takes in what operators say.
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

// Paused tells whether an operator has paused a type.
func (r *Rebalancer) Paused(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused[typ]
}

// jittered is d, give or take a quarter.
func jittered(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
