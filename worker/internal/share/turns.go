package share

import (
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/queue"
)

// A turn is what a pool does now about one of its types. It looks at the types that it does not hold:
// at free ones as often as it polls, at those of others every standbyEvery. With many types it looks at
// each of them less often.
const (
	standbyEvery = time.Second            // between two looks at a type that another replica holds
	lookEvery    = 5 * time.Millisecond   // least average time between two looks, over all types
	notMine      = 100 * time.Millisecond // between two looks at a free type that falls to another replica
	probeEvery   = 16                     // of this many types that fall to this pool alone, it asks about one whether others help
	forgetFree   = 2 * time.Minute        // a type that was not seen free for this long was not free all the time
	spreadOver   = 10                     // with more replicas than this, each looks and sweeps less often
)

// If it is crowded, only the replicas that rank first for a type look at it.
const (
	heirs    = 3 // look at a type whose holder is lost
	reserves = 8 // look at a type with news, one after the other, until one of them takes it
)

// Turn is what a pool should do about a type.
type Turn int

// Turns.
const (
	TurnNone      Turn = iota // nothing: the pool stops, or there is nothing to do
	TurnUndecided             // nothing yet: the next plan says to whom it falls
	TurnTake                  // wait for the lock
	TurnStandBy               // try the lock, which finds out whether its holder is dead
	TurnAsk                   // ask its holder for it
)

// Holder returns the replica that says it holds a type, and whether it is leaving the type.
func (r *Rebalancer) Holder(typ string) (id string, leaving bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.claims[typ]
	return h.by, h.leaving
}

// Next is called before the queue is asked about a type. It returns whether this pool should ask the
// holder for the type, or else how long to wait: a type with a known holder is looked at less often.
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

// Contended records that another replica has the lock of a type, though its heartbeat does not say so
// yet, so that the type is not Sole. It returns false if the pool should wait for the lock: if it has few
// types, or the holder may be dead. With many, waiting would cost more than what it waits for: most are
// drained and released soon.
func (r *Rebalancer) Contended(typ, holder string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.types[typ].sole = false
	// rule: the lock of a dead holder is waited for, whatever the number of types
	if !r.many() || now.Sub(r.readAt) >= blindAfter || !r.sights[holder].lives(now, silentAfter) {
		return false
	}
	r.types[typ].notYet = now.Add(jittered(r.stretch()))
	return true
}

// Turn decides what to do about a type that has backlog. For TurnNone and TurnUndecided, wait is how
// long to wait before the next call. busy means that the pool has as much to do as it can. When it goes on with a TurnTake,
// it calls Take first.
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
		// rule: whoever may need the lock of a dead holder looks at it at once. A lock is taken over only by who has watched it for a
		// lease, and the type may fall to another pool in the meantime.
		it.silent = false
		return TurnStandBy, 0
	}
	// rule: no type with backlog waits for somebody who does not come. A pool that is busy would not come sooner.
	it.helps = it.starves(now, busy)
	switch {
	case it.helps || r.falls(typ, now):
		return TurnTake, 0
	case r.undecided(typ):
		return TurnUndecided, max(planEvery, r.nextPlan.Sub(now))
	}
	return TurnNone, max(notMine, r.stretch())
}

// isFree notes that a type has backlog and no known holder. If that was long ago, it begins anew: others
// have drained the type since.
func (it *interest) isFree(now time.Time) {
	if it.free.IsZero() || now.Sub(it.freeAt) > forgetFree {
		it.free, it.heir = now, false
	}
	it.freeAt = now
}

// starves tells whether a free type has waited for too long for the pool that it falls to, so that this
// one takes it. busy is as in Turn.
//
// rule: a pool whose turn it is to take the type of a lost holder takes it, also when it is busy. Few come for it.
func (it *interest) starves(now time.Time, busy bool) bool {
	return it.heir || !busy && now.Sub(it.free) > StarveAfter
}

// undecided tells whether the plan does not know of a free type yet. r.mu is held.
func (r *Rebalancer) undecided(typ string) bool { return r.shares[typ] == "" && !r.window.partial }

// falls tells whether a free type falls to this pool. r.mu is held.
func (r *Rebalancer) falls(typ string, now time.Time) bool {
	if r.alone(now) {
		return true
	}
	r.plan(now)
	return r.shares[typ] == r.self.Instance
}

// alone tells whether there are no other replicas, as far as this one knows. r.mu is held.
func (r *Rebalancer) alone(now time.Time) bool {
	return !r.window.partial && !slices.ContainsFunc(r.others, func(m queue.Member) bool { return r.isLiving(m, now) })
}

// Take is called when the pool can go on with a TurnTake, which may be a while later. It returns false
// if the type falls to another pool by now.
func (r *Rebalancer) Take(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	it, now := r.types[typ], time.Now()
	if _, held := r.holder(typ, now); held || !it.helps && !r.falls(typ, now) {
		it.told = told{true, 1} // it need not be looked at again
		return false
	}
	it.taking, it.sole = true, r.alone(now) || r.scattered && !it.helps && !r.probe()
	return true
}

// probe decides whether a type that falls to this pool counts as one that others may have wanted, so
// that the pool asks whether it is drained. Others help if it is slow, and it would open all that they
// have drained. r.mu is held.
func (r *Rebalancer) probe() bool {
	if r.unasked++; r.unasked < probeEvery && !r.helped {
		return false
	}
	r.unasked = 0
	return true
}

// Sole tells whether no other replica has wanted the type that this pool takes, as far as is known:
// there is none, or all know that it falls to this one, and none helps.
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

// BusyElsewhere tells whether another replica holds a type that had messages lately.
func (r *Rebalancer) BusyElsewhere(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, held := r.holder(typ, time.Now())
	return held && !h.idle
}

// Empty records that a type has no backlog, and returns how long to wait, at least, before the next
// look.
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

// Stretch is the least time between two looks at the same type, given how many types and replicas there
// are.
func (r *Rebalancer) Stretch() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stretch()
}

// Many tells whether there are so many types, and replicas, that this pool looks at each type once a second at most.
func (r *Rebalancer) Many() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.many()
}

// many is Many with r.mu held.
func (r *Rebalancer) many() bool { return r.stretch() >= standbyEvery }

// Crowded tells whether there are many types and more than spreadOver replicas. If each of them looked at a type that has news, a message
// would cost as many looks as there are replicas.
func (r *Rebalancer) Crowded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.crowded()
}

// crowded is Crowded with r.mu held.
func (r *Rebalancer) crowded() bool { return r.many() && r.replicas > spreadOver }

// LeavesAlone tells whether there is nothing to do about a type where it is crowded, so that this pool need not ask whether it has messages:
// a living replica holds it; or nothing is known of it, and there is no news; or it is free and is known to have messages, but falls to
// another replica, and has not waited for long. In the last case, free, that may change without news. busy is as in Turn.
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

// Spread is d, the time between two questions of this pool to the queue. With more than spreadOver
// replicas it is so much longer that all of them together ask as often as spreadOver would.
func (r *Rebalancer) Spread(d time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spread(d)
}

// Crowd is how many times as many replicas as spreadOver there are, at least 1. When each of them does
// so many times fewer things at the same time, all together do as many as spreadOver would.
func (r *Rebalancer) Crowd() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(1, r.replicas/spreadOver)
}

// spread is Spread with r.mu held.
func (r *Rebalancer) spread(d time.Duration) time.Duration {
	return max(d, d*time.Duration(r.replicas)/spreadOver)
}

// HasSuccessor tells whether another live member serves a type and has room for it.
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

// SuccessorPause is how long a session waits before it looks again for a successor: least, or more if
// this pool holds many types.
func (r *Rebalancer) SuccessorPause(least time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return jittered(max(least, time.Duration(len(r.held))*lookEvery))
}
