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

// The plan assigns each active type to the replica that should hold it. From the plan follows which
// types this pool asks for.
//
// A type is active if it has backlog, or if it has a holder and had messages lately. Idle and paused
// types do not count, so a replica that holds many of them still gets its share of the active ones. A
// type that its holder is leaving is already free in the plan, so that a successor can wait for the
// lock in time.
const (
	settle    = 5 * time.Second       // do not ask for a type that changed hands more recently
	askAgain  = 30 * time.Second      // pause before asking again for the same type
	maxAsks   = 6                     // ask for at most this many types at a time
	planEvery = 20 * time.Millisecond // least time between two computations of the plan
	manyFree  = 8                     // with this many free types per member, or more, scatter assigns them
)

// isLiving reports whether another member in the window is alive. r.mu is held.
func (r *Rebalancer) isLiving(m queue.Member, now time.Time) bool {
	return now.Sub(r.readAt) < blindAfter && r.sights[m.Instance].lives(now, deadAfter)
}

// candidates returns the live members in the window that may take types, including this pool unless it
// is stopping. Every replica sorts them in the same order. r.mu is held.
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

// byTurn orders members independently of the windows, which are ranges of Instances. The first member
// gets a type first, and must not always be the planning one.
func byTurn(a, b queue.Member) int {
	return cmp.Or(cmp.Compare(turnOf(a), turnOf(b)), strings.Compare(a.Instance, b.Instance))
}

func turnOf(m queue.Member) uint32 { return crc32.ChecksumIEEE([]byte(m.Instance)) }

// holder returns the known holder of a type; ok is false if there is none. r.mu is held.
func (r *Rebalancer) holder(typ string, now time.Time) (h holding, ok bool) {
	h, ok = r.claims[typ]
	return h, ok && now.Sub(r.readAt) < blindAfter && (!r.inWindow(h.by) || r.sights[h.by].lives(now, silentAfter))
}

// inWindow reports whether a member was read in the last round. r.mu is held.
func (r *Rebalancer) inWindow(id string) bool { return r.sights[id].read.Equal(r.readAt) }

// planners returns the candidates, both as members and in the form that balance and scatter take. r.mu is held.
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

// plan computes which member should hold each active type. r.mu is held.
func (r *Rebalancer) plan(now time.Time) {
	if now.Before(r.nextPlan) {
		return
	}
	all, members := r.planners(now)
	claims, free := r.active(all, now)
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
	// With very many types this takes long, so spend at most about a twentieth of the time on it, or less
	// with many replicas, which may share a machine.
	done := time.Now()
	r.nextPlan = done.Add(max(planEvery, r.spread(20*done.Sub(now))))
}

// active returns the active types: as claims those that a member holds, takes or leaves, and the others, which have backlog, as free.
// r.mu is held.
func (r *Rebalancer) active(members []queue.Member, now time.Time) (claims []claim, free []string) {
	index := map[string]int{}
	for i, m := range members {
		index[m.Instance] = i
	}
	for typ := range r.claims {
		h, ok := r.holder(typ, now)
		if it := r.types[typ]; !ok || h.idle || !r.inWindow(h.by) || r.paused[typ] || it != nil && (it.session != nil || it.taking) {
			continue // the type does not count, or this pool has or is taking it: then it is counted below
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
		case !it.free.IsZero() && minds(r.self.Instance, typ, now.Sub(it.free), len(r.sights)):
			free = append(free, typ)
		}
	}
	return claims, free
}

// scatter decides, like balance, which members should take free types. It returns nil if there are few free types and the pool is not
// Crowded, or if any member limits its number of types or a partial window is read.
//
// Members learn at different moments which types are free and which have been drained. If they counted
// types, their plans would differ, and some types would be assigned to two members and others to none.
// Rendezvous hashing (Thaler and Ravishankar 1998) assigns a type to the same member, whatever is known
// of the other types; the numbers are even enough if there are many types.
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

// hashable reports whether hashing may assign types to members: each has room for all types, and knows all other members. r.mu is held.
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

// first returns the member to which a type is assigned, or nobody if no member serves it.
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

// rank returns how many members precede the given one, which serves the type.
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

// ranks yields those of types that this pool serves, each with the number of members that precede this pool in rendezvous hashing. The
// number is 0 for all types if the pool is not Crowded or types are not hashable. r.mu is held.
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

// hashOf returns the FNV-1a hash of s.
func hashOf(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// weight returns the weight of a member for a type in rendezvous hashing, given their hashes. It applies the last step of MurmurHash3,
// because the ends of the names alone would not change the high bits.
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
		if (ripe(it.wanted, asks, h.since, it.askedAt, now) || h.leaving) && !it.ask && !it.asking { // a leaving holder waits for a successor: one observation is enough
			it.ask, it.askedAt = true, now
			asks++
			r.wakeUp(typ)
		}
	}
}

// minds reports whether a replica includes a free type in its plan. All replicas see the free types,
// but each plans as if there were no members outside its window. So it includes its window's share of
// the free types, and twice as much with every second that they stay free.
func minds(instance, typ string, free time.Duration, members int) bool {
	share := windowSize << min(free/time.Second, 10)
	return members <= share || int(crc32.ChecksumIEEE([]byte(instance+typ)))%members < share
}

// ripe reports whether to ask the holder of a type that the plan assigns to this pool. wanted is the
// number of consecutive rounds in which it did, asks the number of types being asked for; the type last
// moved at moved and was last asked for at asked (zero: never).
func ripe(wanted, asks int, moved, asked, now time.Time) bool {
	// rule: no holder is asked because of a single observation, which may be stale, …
	ripe := wanted > 1 && asks < maxAsks
	// … nor for a type that has just moved: before all replicas know of the move, the type would keep
	// moving.
	ripe = ripe && (moved.IsZero() || now.Sub(moved) > settle)
	return ripe && (asked.IsZero() || now.Sub(asked) > askAgain)
}
