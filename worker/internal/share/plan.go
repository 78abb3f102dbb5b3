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

// The plan says who should hold which of the active types, and which of them this pool asks for.
//
// A type is active if it has backlog, or if somebody holds it and it had messages lately. Idle and
// paused types do not count, so a replica that holds many of them still gets its share of the active
// ones. A type that its holder is leaving is already free in the plan, so that a successor can wait for
// the lock in time.
const (
	settle    = 5 * time.Second       // do not ask for a type that changed hands more recently
	askAgain  = 30 * time.Second      // pause before asking again for the same type
	maxAsks   = 6                     // ask for this many types at a time
	planEvery = 20 * time.Millisecond // least time between two computations of the plan
)

// candidates returns the live members that may take types, including this pool unless it stops, sorted
// by Instance. alone means that no other member is known to be alive. r.mu is held.
func (r *Rebalancer) candidates(now time.Time) (all []queue.Member, alone bool) {
	alone = true
	if now.Sub(r.readAt) < deadAfter && !r.readAt.IsZero() {
		for _, m := range r.others {
			if r.sights[m.Instance].lives(now, deadAfter) {
				alone = false
				if !m.Stopping {
					all = append(all, m)
				}
			}
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
	return all, alone
}

// holder returns the holder of a type, if another live member says that it holds it. r.mu is held.
func (r *Rebalancer) holder(typ string, now time.Time) (h holding, ok bool) {
	h, ok = r.claims[typ]
	return h, ok && now.Sub(r.readAt) < deadAfter && r.sights[h.by].lives(now, silentAfter)
}

// plan computes who should hold which of the active types. r.mu is held.
func (r *Rebalancer) plan(now time.Time) {
	if now.Before(r.nextPlan) {
		return
	}
	all, _ := r.candidates(now)
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
			continue // types with a session here are counted below
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
	// With very many types this takes long: spend at most about a twentieth of the time on it.
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

// Matches tells whether one of the patterns (path.Match) matches a type.
func Matches(patterns []string, typ string) bool {
	for _, t := range patterns {
		if ok, _ := path.Match(t, typ); ok {
			return true
		}
	}
	return false
}
