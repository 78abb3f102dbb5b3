package share

import (
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// The plan: who should hold which of the active types, and which of them this pool asks for.
//
// A type is active if somebody holds it and it had messages lately, or if it has backlog. Idle
// types and paused ones count for nobody, so a replica that holds many of them is not spared its
// share of the others. A type whose holder leaves is free in the plan before it is free in fact:
// its successor can be waiting for the lock by then.
const (
	settle    = 5 * time.Second       // types that have changed hands just now are not asked for
	askAgain  = 30 * time.Second      // … nor those that were asked for in vain
	maxAsks   = 6                     // … and only so many at a time
	planEvery = 20 * time.Millisecond // how often the plan is computed, at most
)

// living are the other members that are known to live. r.mu is held.
func (r *Rebalancer) living(now time.Time) (all []queue.Member) {
	if now.Sub(r.readAt) >= deadAfter || r.readAt.IsZero() {
		return nil
	}
	for _, m := range r.others {
		if r.sights[m.Instance].lives(now, deadAfter) {
			all = append(all, m)
		}
	}
	return all
}

// candidates are the live members that may take types, this pool among them unless it stops, sorted
// by ID. r.mu is held.
func (r *Rebalancer) candidates(now time.Time) (all []queue.Member) {
	for _, m := range r.living(now) {
		if !m.Stopping {
			all = append(all, m)
		}
	}
	if !r.stopping() {
		me := queue.Member{Instance: r.self.Instance, Types: r.self.Types, MaxTypes: r.self.MaxTypes}
		for typ, it := range r.types {
			if it.leaving {
				me.Leaving = append(me.Leaving, typ)
			}
		}
		all = append(all, me)
		slices.SortFunc(all, func(a, b queue.Member) int { return strings.Compare(a.Instance, b.Instance) })
	}
	return all
}

// holder returns the known holder of a type; ok is false if there is none. r.mu is held.
func (r *Rebalancer) holder(typ string, now time.Time) (h holding, ok bool) {
	h, ok = r.claims[typ]
	return h, ok && now.Sub(r.readAt) < deadAfter && r.sights[h.by].lives(now, silentAfter)
}

// plan computes who should hold which of the active types. r.mu is held.
func (r *Rebalancer) plan(now time.Time) {
	if now.Before(r.nextPlan) {
		return
	}
	all := r.candidates(now)
	members := make([]candidate, len(all))
	index := map[string]int{}
	for i, m := range all {
		members[i] = candidate{func(typ string) bool { return Matches(m.Types, typ) && !slices.Contains(m.Leaving, typ) }, m.MaxTypes}
		if m.MaxTypes == 0 {
			members[i].room = math.MaxInt
		}
		index[m.Instance] = i
	}
	var claims []claim
	for typ := range r.claims {
		h, ok := r.holder(typ, now)
		if it := r.types[typ]; !ok || h.idle || r.paused[typ] || it != nil && (it.session != nil || it.taking) {
			continue // or it is counted below
		}
		by := nobody
		if !h.leaving {
			by = index[h.by]
		}
		claims = append(claims, claim{typ, by})
	}
	me, serving := index[r.self.Instance]
	for typ, it := range r.types {
		switch {
		case r.paused[typ]:
		case it.session != nil && it.session.QuietFor() > busyFor:
		case it.leaving:
			claims = append(claims, claim{typ, nobody})
		case (it.session != nil || it.taking) && serving:
			claims = append(claims, claim{typ, me})
		case !it.free.IsZero():
			claims = append(claims, claim{typ, nobody})
		}
	}
	r.shares = make(map[string]string, len(claims))
	for i, owner := range balance(members, claims) {
		if owner != nobody {
			r.shares[claims[i].typ] = all[owner].Instance
		}
	}
	// With very many types this takes long; it must not become all that is done.
	done := time.Now()
	r.nextPlan = done.Add(max(planEvery, 20*done.Sub(now)))
}

// seek decides which types to ask for.
func (r *Rebalancer) seek() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.plan(now)
	asks := 0
	for _, it := range r.types {
		if it.ask || it.asking {
			asks++
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(r.types)) {
		it := r.types[typ]
		h, held := r.holder(typ, now)
		if !held || r.shares[typ] != r.self.Instance || it.session != nil || it.taking {
			it.wanted = 0
			continue
		}
		it.wanted++
		// rule: nobody is asked on the ground of one look, which may be an old one, …
		ripe := it.wanted > 1 && asks < maxAsks
		// … nor for a type that has just moved: with what others know of that, it would move on and
		// on.
		ripe = ripe && (h.since.IsZero() || now.Sub(h.since) > settle)
		ripe = ripe && (it.askedAt.IsZero() || now.Sub(it.askedAt) > askAgain)
		if (ripe || h.leaving) && !it.ask && !it.asking { // a holder that leaves waits for us: one look is enough
			it.ask, it.askedAt = true, now
			asks++
			r.wakeUp(typ)
		}
	}
}

// Matches tells whether a type is one of those that patterns name.
func Matches(patterns []string, typ string) bool {
	for _, t := range patterns {
		if ok, _ := path.Match(t, typ); ok {
			return true
		}
	}
	return false
}
