package share

import (
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/queue"
)

// A turn is a pool's next action for one of its types. A pool checks the types that it does not hold:
// free ones as often as it polls, those that others hold every standbyEvery. With many types it checks
// each of them less often.
const (
	standbyEvery = time.Second            // between two checks of a type that another replica holds
	lookEvery    = 5 * time.Millisecond   // least average time between two checks, over all types
	notMine      = 100 * time.Millisecond // between two checks of a free type that is assigned to another replica
	probeEvery   = 16                     // of this many types that are assigned to this pool alone, it queries one to learn whether others help
	forgetFree   = 2 * time.Minute        // a type that was not seen free for this long was not free all the time
	spreadOver   = 10                     // with more replicas than this, each checks and sweeps less often
)

// If a pool is Crowded, only the replicas that rank first for a type check it.
const (
	heirs    = 3 // this many check a type whose holder is lost
	reserves = 8 // this many check a type with news, one after the other, until one of them takes it
)

// Turn is the action a pool should take for a type.
type Turn int

// Turns.
const (
	TurnNone      Turn = iota // nothing: the pool stops, or there is nothing to do
	TurnUndecided             // nothing yet: the next plan will assign the type
	TurnTake                  // wait for the lock
	TurnStandBy               // try the lock, which shows whether its holder is dead
	TurnAsk                   // ask its holder for it
)

// Holder returns the replica that holds a type according to its heartbeat, and whether it is leaving the
// type.
func (r *Rebalancer) Holder(typ string) (id string, leaving bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.claims[typ]
	return h.by, h.leaving
}

// Next is called before the pool queries the queue about a type. It returns whether this pool should ask
// the holder for the type, or else how long to wait: a type with a known holder is checked less often.
func (r *Rebalancer) Next(typ string) (ask bool, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it, now := r.types[typ], time.Now()
	if it.ask {
		it.ask, it.asking, it.taking = false, true, true
		return true, 0
	}
	if _, held := r.holder(typ, now); held {
		it.free = time.Time{}
		return false, it.tryAt.Sub(now)
	}
	return false, it.notYet.Sub(now)
}

// Contended records that another replica has the lock of a type, although its heartbeat does not show it
// yet, so that the type is not Sole. It returns false if the pool should wait for the lock: if the pool
// has few types, or the holder may be dead. With many types, waiting costs more than it gains: most are
// drained and released soon.
func (r *Rebalancer) Contended(typ, holder string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.types[typ].sole = false
	// rule: a pool waits for the lock of a dead holder, whatever the number of types
	if !r.many() || now.Sub(r.readAt) >= blindAfter || !r.sights[holder].lives(now, silentAfter) {
		return false
	}
	r.types[typ].notYet = now.Add(jittered(r.stretch()))
	return true
}

// Turn decides what to do about a type that has backlog. For TurnNone and TurnUndecided, wait is the time
// to wait before the next call. busy means that the pool is working at capacity. Before acting on a
// TurnTake, the pool calls Take.
func (r *Rebalancer) Turn(typ string, busy bool) (t Turn, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it, now := r.types[typ], time.Now()
	if h, held := r.holder(typ, now); held {
		if h.leaving && now.Sub(it.askedAt) > standbyEvery {
			if r.plan(now); r.shares[typ] == r.self.Instance {
				it.ask, it.askedAt = true, now
				return TurnNone, 0
			}
		}
		it.tryAt, it.silent = now.Add(jittered(max(standbyEvery, r.stretch()))), false
		return TurnStandBy, 0
	}
	it.isFree(now)
	if it.silent {
		// rule: a pool that may need the lock of a dead holder checks it at once. A replica takes over a lock only after observing it
		// unchanged for a full lease, and the plan may assign the type to another pool in the meantime.
		it.silent = false
		return TurnStandBy, 0
	}
	// rule: a type with backlog never waits indefinitely for a replica that does not take it. A busy pool would not take it sooner.
	it.helps = it.starves(now, busy)
	switch {
	case it.helps || r.falls(typ, now):
		return TurnTake, 0
	case r.undecided(typ):
		return TurnUndecided, max(planEvery, r.nextPlan.Sub(now))
	}
	return TurnNone, max(notMine, r.stretch())
}

// isFree records that a type has backlog and no known holder. If it was last seen free long ago, the
// time starts anew: others have drained the type since.
func (it *interest) isFree(now time.Time) {
	if it.free.IsZero() || now.Sub(it.freeAt) > forgetFree {
		it.free, it.heir = now, false
	}
	it.freeAt = now
}

// starves reports whether a free type has waited too long for the pool that it is assigned to, so that
// this pool takes it. busy is as in Turn.
//
// rule: a pool that is to take the type of a lost holder takes it even when busy. Only a few pools try.
func (it *interest) starves(now time.Time, busy bool) bool {
	return it.heir || !busy && now.Sub(it.free) > StarveAfter
}

// undecided reports whether the plan does not include a free type yet. r.mu is held.
func (r *Rebalancer) undecided(typ string) bool { return r.shares[typ] == "" && !r.window.partial }

// falls reports whether a free type is assigned to this pool. r.mu is held.
func (r *Rebalancer) falls(typ string, now time.Time) bool {
	if r.alone(now) {
		return true
	}
	r.plan(now)
	return r.shares[typ] == r.self.Instance
}

// alone reports whether this replica knows of no others. r.mu is held.
func (r *Rebalancer) alone(now time.Time) bool {
	return !r.window.partial && !slices.ContainsFunc(r.others, func(m queue.Member) bool { return r.isLiving(m, now) })
}

// Take is called when the pool can act on a TurnTake, which may be a while later. It returns false if
// the type has been assigned to another pool since.
func (r *Rebalancer) Take(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	it, now := r.types[typ], time.Now()
	if _, held := r.holder(typ, now); held || !it.helps && !r.falls(typ, now) {
		it.told = told{true, 1} // no need to query it again
		return false
	}
	it.taking, it.sole = true, r.alone(now) || r.scattered && !it.helps && !r.probe()
	return true
}

// probe decides whether a type assigned to this pool counts as one that others may have wanted, so that
// the pool queries whether it is drained. If this pool is slow, others help, and without the query it
// would open every type that they have drained. r.mu is held.
func (r *Rebalancer) probe() bool {
	if r.unasked++; r.unasked < probeEvery && !r.helped {
		return false
	}
	r.unasked = 0
	return true
}

// Sole reports whether, as far as is known, no other replica has wanted the type that this pool takes:
// there is no other replica, or all know that it is assigned to this one, and none helps.
func (r *Rebalancer) Sole(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.types[typ].sole
}

// Asked records whether a type that was not Sole was drained when this pool had its lock.
func (r *Rebalancer) Asked(drained bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helped = drained
}

// BusyElsewhere reports whether another replica holds the type and it had messages lately.
func (r *Rebalancer) BusyElsewhere(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, held := r.holder(typ, time.Now())
	return held && !h.idle
}

// Empty records that a type has no backlog, and returns the least time to wait before the next check.
func (r *Rebalancer) Empty(typ string) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it, now := r.types[typ], time.Now()
	it.free = time.Time{}
	if h, held := r.holder(typ, now); held && !h.leaving {
		it.tryAt = now.Add(jittered(max(standbyEvery, r.stretch())))
	}
	return r.stretch()
}

// Stretch returns the least time between two checks of the same type, given the numbers of types and
// replicas.
func (r *Rebalancer) Stretch() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stretch()
}

// Many reports whether there are so many types, and replicas, that this pool checks each type at most once a second.
func (r *Rebalancer) Many() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.many()
}

// many is Many with r.mu held.
func (r *Rebalancer) many() bool { return r.stretch() >= standbyEvery }

// Crowded reports whether there are many types and more than spreadOver replicas. If every replica checked each type that has news, a
// message would cost as many checks as there are replicas.
func (r *Rebalancer) Crowded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.crowded()
}

// crowded is Crowded with r.mu held.
func (r *Rebalancer) crowded() bool { return r.many() && r.replicas > spreadOver }

// LeavesAlone reports whether a Crowded pool has nothing to do about a type, so that it need not query whether the type has messages: a
// living replica holds it and is not leaving it; or nothing is known about it, and there is no news; or it is free and known to have
// messages, but is assigned to another replica, and has not waited long. In the last case free is true, and the answer may change without
// news. busy is as in Turn.
func (r *Rebalancer) LeavesAlone(typ string, busy, news bool) (free, alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it, now := r.types[typ], time.Now()
	switch {
	case !r.crowded() || it.silent:
		return false, false
	case r.kept(typ):
		return false, true
	case it.free.IsZero():
		return false, !news
	}
	return true, !it.starves(now, busy) && !r.falls(typ, now) && !r.undecided(typ)
}

// stretch is Stretch with r.mu held.
func (r *Rebalancer) stretch() time.Duration {
	return r.spread(time.Duration(len(r.types)) * lookEvery)
}

// Spread stretches d, the time between two queries of this pool to the queue. With more than spreadOver
// replicas it is lengthened so that all of them together query as often as spreadOver would.
func (r *Rebalancer) Spread(d time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spread(d)
}

// Crowd returns the number of replicas divided by spreadOver, at least 1. If each replica divides the
// number of things that it does concurrently by that, all replicas together do as many as spreadOver would.
func (r *Rebalancer) Crowd() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(1, r.replicas/spreadOver)
}

// spread is Spread with r.mu held.
func (r *Rebalancer) spread(d time.Duration) time.Duration {
	return max(d, d*time.Duration(r.replicas)/spreadOver)
}

// HasSuccessor reports whether another live member serves a type and has room for it.
func (r *Rebalancer) HasSuccessor(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.candidates(time.Now())
	for _, m := range all {
		busy := len(m.Held) - len(m.Idle)
		if m.Instance != r.self.Instance && (m.MaxTypes == 0 || busy < m.MaxTypes) && globs.Match(m.Types, typ) {
			return true
		}
	}
	return false
}

// SuccessorPause returns how long a session waits before it looks again for a successor: least, or more
// if this pool holds many types, with jitter.
func (r *Rebalancer) SuccessorPause(least time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return jittered(max(least, time.Duration(len(r.held))*lookEvery))
}
