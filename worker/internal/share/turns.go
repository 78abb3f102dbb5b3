package share

import (
	"time"
)

// Turns: what a pool does about one of its types, now. It looks at types that it does not hold: at
// free ones as often as the pool polls, at those of others every standbyEvery; but at all of them
// together not more often than every lookEvery.
const (
	standbyEvery = time.Second
	lookEvery    = 5 * time.Millisecond
	notMine      = 100 * time.Millisecond // how often a free type that falls to another replica is looked at
)

// Turn is what a pool may do about a type.
type Turn int

// Turns.
const (
	TurnNone    Turn = iota // nothing: the pool stops, or there is nothing to do
	TurnTake                // wait for the lock
	TurnStandBy             // look whether its holder is dead
	TurnAsk                 // ask its holder for it
)

// Holder returns who says to hold a type, and whether that holder waits for a successor.
func (r *Rebalancer) Holder(typ string) (id string, leaving bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.claims[typ]
	return h.by, h.leaving
}

// Next tells, before the queue is asked, whether this pool is to ask for the type, or else how long
// to leave it alone: one with a known holder is looked at less often.
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
	return false, 0
}

// Turn decides what to do about a type that has backlog; for TurnNone: how long to wait before
// asking again.
func (r *Rebalancer) Turn(typ string) (t Turn, wait time.Duration) {
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
		it.tryAt = now.Add(jittered(max(standbyEvery, r.stretch())))
		return TurnStandBy, 0
	}
	if it.free.IsZero() {
		it.free = now
	}
	alone := len(r.living(now)) == 0
	if !alone {
		r.plan(now)
	}
	// rule: no type with backlog waits for somebody who does not come.
	starves := now.Sub(it.free) > StarveAfter
	switch {
	case alone || starves || r.shares[typ] == r.self.Instance:
		it.taking = true
		return TurnTake, 0
	case r.shares[typ] == "":
		return TurnNone, planEvery
	}
	return TurnNone, max(notMine, r.stretch())
}

// BusyElsewhere tells whether another replica holds a type, and has had messages of it lately.
func (r *Rebalancer) BusyElsewhere(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, held := r.holder(typ, time.Now())
	return held && !h.idle
}

// Empty records that a type has no backlog.
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

// stretch is how often a type may be looked at, given how many there are. r.mu is held.
func (r *Rebalancer) stretch() time.Duration { return time.Duration(len(r.types)) * lookEvery }

// HasSuccessor tells whether another live member could go on with a type.
func (r *Rebalancer) HasSuccessor(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.candidates(time.Now())
	for _, m := range all {
		busy := len(m.Held) - len(m.Idle)
		if m.Instance != r.self.Instance && (m.MaxTypes == 0 || busy < m.MaxTypes) && Matches(m.Types, typ) {
			return true
		}
	}
	return false
}

// SuccessorPause is how long a session waits before it looks again for a successor, given how many
// types are held: least or more.
func (r *Rebalancer) SuccessorPause(least time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, it := range r.types {
		if it.session != nil {
			n++
		}
	}
	return jittered(max(least, time.Duration(n)*lookEvery))
}
