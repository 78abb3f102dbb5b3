package share

import (
	"cmp"
	"hash/crc32"
	"hash/fnv"
	"iter"
	"math"
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
	manyFree  = 8                     // with this many free types per member, or more, they are scattered
)

// isLiving tells whether another member in the window is alive. r.mu is held.
func (r *Rebalancer) isLiving(m queue.Member, now time.Time) bool {
	return now.Sub(r.readAt) < blindAfter && r.sights[m.Instance].lives(now, deadAfter)
}

// candidates are the live members in the window that may take types, this pool among them unless it
// stops, in an order that is the same everywhere. r.mu is held.
func (r *Rebalancer) candidates(now time.Time) (all []queue.Member) {
	for _, m := range r.others {
		if r.isLiving(m, now) && !m.Stopping {
			all = append(all, m)
		}
	}
	if !r.stopping() {
		me := queue.Member{Instance: r.self.Instance, Types: r.self.Types, MaxTypes: r.self.MaxTypes}
		for typ, it := range r.held {
			if it.leaving {
				me.Leaving = append(me.Leaving, typ)
			}
		}
		all = append(all, me)
		slices.SortFunc(all, func(a, b queue.Member) int { return strings.Compare(a.Instance, b.Instance) })
		if r.window.partial {
			slices.SortFunc(all, byTurn)
		}
	}
	return all
}

// byTurn is an order of members that does not depend on the windows, which are ranges of Instances. The
// first member gets a type first, and that must not always be the one that plans.
func byTurn(a, b queue.Member) int {
	return cmp.Or(cmp.Compare(turnOf(a), turnOf(b)), strings.Compare(a.Instance, b.Instance))
}

func turnOf(m queue.Member) uint32 { return crc32.ChecksumIEEE([]byte(m.Instance)) }

// holder returns the known holder of a type; ok is false if there is none. r.mu is held.
func (r *Rebalancer) holder(typ string, now time.Time) (h holding, ok bool) {
	h, ok = r.claims[typ]
	return h, ok && now.Sub(r.readAt) < blindAfter && (!r.inWindow(h.by) || r.sights[h.by].lives(now, silentAfter))
}

// inWindow tells whether a member was read in the last round. r.mu is held.
func (r *Rebalancer) inWindow(id string) bool { return r.sights[id].read.Equal(r.readAt) }

// planners are the candidates, and what balance and scatter need to know of them. r.mu is held.
func (r *Rebalancer) planners(now time.Time) (all []queue.Member, members []candidate) {
	all = r.candidates(now)
	members = make([]candidate, len(all))
	for i, m := range all {
		members[i] = candidate{m.Instance, m.Types, m.Leaving, m.MaxTypes}
		if m.MaxTypes == 0 {
			members[i].room = math.MaxInt
		}
	}
	return all, members
}

// plan computes who should hold which of the active types. r.mu is held.
func (r *Rebalancer) plan(now time.Time) {
	if now.Before(r.nextPlan) {
		return
	}
	all, members := r.planners(now)
	index := map[string]int{}
	for i, m := range all {
		index[m.Instance] = i
	}
	var claims []claim
	for typ := range r.claims {
		h, ok := r.holder(typ, now)
		if it := r.types[typ]; !ok || h.idle || !r.inWindow(h.by) || r.paused[typ] || it != nil && (it.session != nil || it.taking) {
			continue // or it is counted below
		}
		by := nobody
		if !h.leaving {
			by = index[h.by]
		}
		claims = append(claims, claim{typ, by})
	}
	me, serving := index[r.self.Instance]
	var free []string
	for typ, it := range r.types {
		switch {
		case r.paused[typ]:
		case it.session != nil && it.session.QuietFor() > busyFor:
		case it.leaving:
			claims = append(claims, claim{typ, nobody})
		case (it.session != nil || it.taking) && serving:
			claims = append(claims, claim{typ, me})
		case !it.free.IsZero() && minds(r.self.Instance, typ, now.Sub(it.free), len(r.sights)):
			free = append(free, typ)
		}
	}
	scattered := r.scatter(members, free)
	if r.scattered = scattered != nil; !r.scattered {
		for _, typ := range free {
			claims = append(claims, claim{typ, nobody})
		}
	}
	r.shares = make(map[string]string, len(claims))
	load := make([]int, len(members))
	for _, c := range claims {
		if c.by != nobody {
			load[c.by]++
		}
	}
	for i, owner := range balance(members, claims) {
		if owner != nobody && (claims[i].by != nobody || !r.window.partial || load[owner] == slices.Min(load)) {
			r.shares[claims[i].typ] = all[owner].Instance
		}
	}
	for i, owner := range scattered {
		if owner != nobody {
			r.shares[free[i]] = all[owner].Instance
		}
	}
	// With very many types this takes long: spend at most about a twentieth of the time on it, or less
	// with many replicas, which may share a machine.
	done := time.Now()
	r.nextPlan = done.Add(max(planEvery, r.spread(20*done.Sub(now))))
}

// scatter decides, like balance, who should take free types. It returns nil if there are few of them, unless it is crowded, or if members
// have bounds.
//
// Members learn at different moments which types are free and which are drained by now. Each would count
// out something else, so that some types fell to two and others to none. By rendezvous hashing (Thaler
// and Ravishankar 1998) a type falls to the same member, whatever is known of the others; the numbers
// are even enough if there are many.
func (r *Rebalancer) scatter(members []candidate, free []string) (owners []int) {
	few := len(free) < manyFree*len(members) && !r.crowded()
	if few || !r.hashable(members) {
		return nil
	}
	ranks := newRendezvous(members)
	owners = make([]int, len(free))
	for i, typ := range free {
		owners[i] = ranks.first(typ)
	}
	return owners
}

// hashable tells whether types may fall to members by hashing: each has room for all, and knows the others. r.mu is held.
func (r *Rebalancer) hashable(members []candidate) bool {
	return !r.window.partial && !slices.ContainsFunc(members, func(m candidate) bool { return m.room < math.MaxInt })
}

// rendezvous ranks members for a type, by rendezvous hashing.
type rendezvous struct {
	classes *classifier
	hashes  []uint64
}

func newRendezvous(members []candidate) *rendezvous {
	r := &rendezvous{newClassifier(members), make([]uint64, len(members))}
	for m := range members {
		r.hashes[m] = hashOf(members[m].instance)
	}
	return r
}

// first returns the member to which a type falls, nobody if no member serves it.
func (r *rendezvous) first(typ string) (owner int) {
	owner = nobody
	hash, highest := hashOf(typ), uint64(0)
	for _, m := range r.classes.members[r.classes.of(typ)] {
		if w := weight(r.hashes[m], hash); owner == nobody || w > highest {
			owner, highest = m, w
		}
	}
	return owner
}

// rank returns how many members come before one that serves the type.
func (r *rendezvous) rank(member int, typ string) (before int) {
	hash := hashOf(typ)
	own := weight(r.hashes[member], hash)
	for _, m := range r.classes.members[r.classes.of(typ)] {
		if m != member && weight(r.hashes[m], hash) > own {
			before++
		}
	}
	return before
}

// ranks yields those of types that this pool serves, with the number of members that come before it when they fall to somebody by
// hashing. That is 0 for all if it is not crowded. r.mu is held.
func (r *Rebalancer) ranks(types []string, now time.Time) iter.Seq2[string, int] {
	rank := func(string) int { return 0 }
	if len(types) > 0 && r.crowded() {
		all, members := r.planners(now)
		me := slices.IndexFunc(all, func(m queue.Member) bool { return m.Instance == r.self.Instance })
		if me >= 0 && r.hashable(members) {
			order := newRendezvous(members)
			rank = func(typ string) int { return order.rank(me, typ) }
		}
	}
	return func(yield func(string, int) bool) {
		for _, typ := range types {
			if r.types[typ] != nil && !yield(typ, rank(typ)) {
				return
			}
		}
	}
}

// hashOf is FNV-1a.
func hashOf(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// weight is the weight of a member for a type in rendezvous hashing, by their hashes: the last step of MurmurHash3, as the ends of
// the names alone would not change the high bits.
func weight(member, typ uint64) uint64 {
	w := member ^ typ
	w = (w ^ w>>33) * 0xff51afd7ed558ccd
	w = (w ^ w>>33) * 0xc4ceb9fe1a85ec53
	return w ^ w>>33
}

// seek decides which types to ask for.
func (r *Rebalancer) seek() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.plan(now)
	asks := 0
	var mine []string // held by others
	for typ, it := range r.types {
		if it.ask || it.asking {
			asks++
		}
		if _, held := r.holder(typ, now); !held || r.shares[typ] != r.self.Instance || it.session != nil || it.taking {
			it.wanted = 0
		} else {
			mine = append(mine, typ)
		}
	}
	slices.Sort(mine)
	for _, typ := range mine {
		it := r.types[typ]
		h, _ := r.holder(typ, now)
		it.wanted++
		if (ripe(it.wanted, asks, h.since, it.askedAt, now) || h.leaving) && !it.ask && !it.asking { // a holder that leaves waits for us: one look is enough
			it.ask, it.askedAt = true, now
			asks++
			r.wakeUp(typ)
		}
	}
}

// minds tells whether a replica includes a free type in its plan. All replicas see the free types, but
// each plans as if there were no members outside its window. So it includes the share of the free
// types that falls to its window, and twice as much with every second that they stay free.
func minds(instance, typ string, free time.Duration, members int) bool {
	share := windowSize << min(free/time.Second, 10)
	return members <= share || int(crc32.ChecksumIEEE([]byte(instance+typ)))%members < share
}

// ripe tells whether to ask the holder of a type that the plan gives to this pool. wanted counts the
// rounds in a row in which it did, asks the types that are asked for now; the type last moved at moved
// and was last asked for at asked (zero: never).
func ripe(wanted, asks int, moved, asked, now time.Time) bool {
	// rule: nobody is asked on the ground of one look, which may be an old one, …
	ripe := wanted > 1 && asks < maxAsks
	// … nor for a type that has just moved: with what others know of that, it would move on and
	// on.
	ripe = ripe && (moved.IsZero() || now.Sub(moved) > settle)
	return ripe && (asked.IsZero() || now.Sub(asked) > askAgain)
}
