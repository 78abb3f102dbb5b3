package share

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
)

// A fleet consists of replicas as placement sees them, in rounds of HeartbeatEvery. The product's code
// decides which members each replica reads, what it plans, and which types it asks for. The rest is
// simulated: heartbeats, locks, and the time until a holder sees a request.
type fleet struct {
	t      *testing.T
	rnd    *rand.Rand
	types  []string
	stored []queue.Member       // as they are read in this round
	all    []*replica           // sorted by ID
	locks  map[string]*fact     // by type
	free   map[string]time.Time // types without a holder: since when
	lost   float64              // share of lost heartbeats and reads
	moves  int
	reads  int // members read in all rounds
}

// fact is the actual state of a type, whatever the replicas know.
type fact struct {
	by      *replica
	moved   time.Time
	asker   *replica  // the first one that asks …
	answers time.Time // … gets the type then
}

type replica struct {
	id     string
	held   map[string]bool
	stored queue.Member // its last heartbeat that was not lost
	dead   time.Time    // when its locks expire
	leaves time.Time

	window window
	others []queue.Member
	sights []sighting // of others
	still  map[string]sighting
	began  time.Time // when the window was first read, …
	looked time.Time // … and last
	wanted map[string]int
	asked  map[string]time.Time
	asking int
}

const (
	leaseOfFleet  = 20 * time.Second
	answerOfFleet = leaseOfFleet / 5 // a holder sees a request with its next renewal
	handOver      = 5 * time.Second
)

func newFleet(t *testing.T, seed uint64, replicas, types int) *fleet {
	f := &fleet{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), locks: map[string]*fact{}, free: map[string]time.Time{}, lost: 0.1}
	f.join(replicas)
	for i := range types {
		typ := fmt.Sprintf("customer-%05d", i)
		f.types = append(f.types, typ)
		f.locks[typ] = &fact{}
		f.take(typ, f.all[i%replicas])
	}
	for _, r := range f.all { // all have sent a heartbeat already
		r.store()
	}
	f.moves = 0
	return f
}

// store stores a heartbeat.
func (r *replica) store() {
	held := slices.Sorted(maps.Keys(r.held))
	r.stored = queue.Member{Instance: r.id, Types: []string{"*"}, Held: held, Beat: r.stored.Beat + 1, Stopping: !r.leaves.IsZero()}
}

func (f *fleet) join(n int) {
	now := time.Now()
	for range n {
		// A window starts at a random position. Here it comes from the seed, so that all runs are the same.
		w := window{partial: true, after: fmt.Sprintf("%012x", f.rnd.Int64N(1<<48)), passes: [2]time.Time{now, now}}
		f.all = append(f.all, &replica{id: fmt.Sprintf("%012x", f.rnd.Int64N(1<<48)), window: w, held: map[string]bool{}, still: map[string]sighting{}, wanted: map[string]int{}, asked: map[string]time.Time{}})
	}
	slices.SortFunc(f.all, func(a, b *replica) int { return strings.Compare(a.id, b.id) })
}

// some returns n replicas of those that neither leave nor are dead.
func (f *fleet) some(n int) (some []*replica) {
	for _, i := range f.rnd.Perm(len(f.all)) {
		if r := f.all[i]; len(some) < n && r.dead.IsZero() && r.leaves.IsZero() {
			some = append(some, r)
		}
	}
	return some
}

func (f *fleet) take(typ string, r *replica) {
	l := f.locks[typ]
	if l.by != nil {
		delete(l.by.held, typ)
	}
	l.by, l.moved = r, time.Now()
	r.held[typ] = true
	delete(f.free, typ)
	f.moves++
}

func (f *fleet) drop(typ string) {
	delete(f.locks[typ].by.held, typ)
	f.locks[typ].by = nil
	f.free[typ] = time.Now()
}

// list is Directory.Members.
func (f *fleet) list(_ context.Context, after string, most int) (members []queue.Member, err error) {
	i, found := slices.BinarySearchFunc(f.stored, after, func(m queue.Member, id string) int { return strings.Compare(m.Instance, id) })
	if found {
		i++
	}
	end := min(i+most, len(f.stored))
	f.reads += end - i
	return f.stored[i:end:end], nil
}

// round lets every replica do a round, in any order.
func (f *fleet) round() {
	time.Sleep(HeartbeatEvery)
	now := time.Now()
	for _, typ := range f.types {
		if l := f.locks[typ]; l.asker != nil && !now.Before(l.answers) {
			asker := l.asker
			l.asker = nil
			asker.asking--
			if !asker.gone() {
				f.take(typ, asker)
			}
		}
	}
	f.all = slices.DeleteFunc(f.all, func(r *replica) bool {
		over := !r.dead.IsZero() && now.After(r.dead) || !r.leaves.IsZero() && now.After(r.leaves)
		if over {
			for _, typ := range slices.Sorted(maps.Keys(r.held)) {
				f.drop(typ)
			}
		}
		return over && !r.leaves.IsZero() || over && now.Sub(r.dead) > queue.MemberRetention
	})
	f.stored = make([]queue.Member, 0, len(f.all))
	for _, r := range f.all {
		if r.stored.Beat > 0 {
			f.stored = append(f.stored, r.stored)
		}
	}
	for _, i := range f.rnd.Perm(len(f.all)) {
		if r := f.all[i]; r.dead.IsZero() {
			f.do(r, now)
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(f.free)) { // no type waits indefinitely for a replica that does not take it
		if now.Sub(f.free[typ]) > StarveAfter {
			f.take(typ, f.some(1)[0])
		}
	}
}

func (r *replica) gone() bool { return !r.dead.IsZero() || !r.leaves.IsZero() }

// do does a round of one replica.
func (f *fleet) do(r *replica, now time.Time) {
	if f.rnd.Float64() >= f.lost || r.stored.Beat == 0 {
		r.store()
	}
	if r.gone() {
		return
	}
	if f.rnd.Float64() >= f.lost {
		r.learn(f, now)
	}
	r.seek(f, now)
}

// learn is Rebalancer.learn for those in the window.
func (r *replica) learn(f *fleet, now time.Time) {
	before, sights := r.others, r.sights
	r.others, _ = r.window.look(f.t.Context(), f.list)
	r.sights = make([]sighting, len(r.others))
	if r.window.rounds == 1 {
		for i, s := range sights { // of those that did not change: the product remembers all
			if delete(r.still, before[i].Instance); s.at.Before(r.looked) {
				r.still[before[i].Instance] = s
			}
		}
		r.began, before = now, nil
	}
	r.looked = now
	at := 0
	for i := range r.others {
		m := &r.others[i]
		r.sights[i] = sighting{beat: m.Beat, at: now}
		if s, ok := r.still[m.Instance]; ok && r.began.Equal(now) && s.beat == m.Beat {
			r.sights[i] = s
		}
		for at < len(before) && before[at].Instance != m.Instance && r.window.covers(before[at].Instance) { // in the same order
			if slices.ContainsFunc(before[at+1:], func(b queue.Member) bool { return b.Instance == m.Instance }) {
				at++ // that one has left
				continue
			}
			break // m has come
		}
		if at < len(before) && before[at].Instance == m.Instance {
			if sights[at].beat == m.Beat {
				r.sights[i] = sights[at]
			}
			at++
		}
	}
}

// seek is Rebalancer.plan and Rebalancer.seek.
func (r *replica) seek(f *fleet, now time.Time) {
	least, most := len(r.held), len(r.held)
	var unheld []claim
	leave := false
	for i := range r.others {
		m := &r.others[i]
		leave = leave || m.Stopping
		if !m.Stopping && m.Instance != r.id && r.sights[i].lives(now, deadAfter) {
			least, most = min(least, len(m.Held)), max(most, len(m.Held))
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(f.free)) {
		if minds(r.id, typ, now.Sub(f.free[typ]), len(f.all)) {
			unheld = append(unheld, claim{typ, nobody})
		}
	}
	if len(unheld) == 0 && !leave && most-len(r.held) < imbalanceThreshold {
		clear(r.wanted) // no type moves to this replica
		return
	}
	holders := map[string]string{}
	all := []queue.Member{{Instance: r.id, Types: []string{"*"}, Held: slices.Sorted(maps.Keys(r.held))}}
	for i, m := range r.others {
		if m.Instance == r.id || !r.sights[i].lives(now, deadAfter) {
			continue
		}
		for _, typ := range m.Held {
			holders[typ] = m.Instance
			if m.Stopping && !r.held[typ] {
				unheld = append(unheld, claim{typ, nobody})
			}
		}
		if !m.Stopping {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, byTurn)
	me := slices.IndexFunc(all, func(m queue.Member) bool { return m.Instance == r.id })
	members, claims := make([]candidate, len(all)), unheld
	for i, m := range all {
		members[i] = candidate{types: m.Types, room: len(f.types)}
		for _, typ := range m.Held {
			if i == me || !r.held[typ] {
				claims = append(claims, claim{typ, i})
			}
		}
	}
	wanted := map[string]int{}
	owners := balance(members, claims)
	mine := claims[:0]
	for i, c := range claims {
		if owners[i] == me && c.by != me && (c.by != nobody || len(r.held) == least) {
			mine = append(mine, c)
		}
	}
	slices.SortFunc(mine, func(a, b claim) int { return strings.Compare(a.typ, b.typ) })
	for _, c := range mine {
		if _, free := f.free[c.typ]; free {
			f.take(c.typ, r)
			continue
		}
		wanted[c.typ] = r.wanted[c.typ] + 1
		l := f.locks[c.typ]
		moved := l.moved
		if moved.Before(r.began) {
			moved = time.Time{} // not seen
		}
		if c.by != nobody && !ripe(wanted[c.typ], r.asking, moved, r.asked[c.typ], now) {
			continue
		}
		r.asked[c.typ] = now
		// The lock record shows whether the type has moved on or another replica asked first.
		if l.by != nil && l.by.id == holders[c.typ] && l.asker == nil && l.by != r {
			l.asker, l.answers = r, now.Add(answerOfFleet)
			if c.by == nobody {
				l.answers = now
			}
			r.asking++
		}
	}
	r.wanted = wanted
}

// counts returns how many types the replicas hold that neither leave nor are dead: the least, and
// the most.
func (f *fleet) counts() (least, most int) {
	least = len(f.types)
	for _, r := range f.all {
		if !r.gone() {
			least, most = min(least, len(r.held)), max(most, len(r.held))
		}
	}
	return least, most
}

// leastMoves is how many types have to move until the replicas are within one of each other.
func (f *fleet) leastMoves() (moves int) {
	var loads []int
	for _, r := range f.all {
		if !r.gone() {
			loads = append(loads, len(r.held))
		}
	}
	slices.SortFunc(loads, func(a, b int) int { return b - a })
	for i, load := range loads {
		share := len(f.types) / len(loads)
		if i < len(f.types)%len(loads) {
			share++
		}
		moves += max(share-load, 0)
	}
	return moves
}

// settles expects that within the given number of rounds the replicas are within one of each other and
// hold all types, that no more types moved than the given percentage of those that had to, and that the
// state then stays like that.
func (f *fleet) settles(what string, within, percent int) {
	f.t.Helper()
	must := f.leastMoves()
	f.moves = 0
	rounds := 0
	for even := false; !even; rounds++ {
		least, most := f.counts()
		if rounds == within {
			f.t.Fatalf("%s: after %d rounds they hold from %d to %d types, %d are free", what, rounds, least, most, len(f.free))
		}
		f.round()
		least, most = f.counts()
		held := 0
		for _, r := range f.all {
			if !r.gone() {
				held += len(r.held)
			}
		}
		even = held == len(f.types) && most-least <= 1
	}
	for range 5 {
		f.round()
	}
	if least, most := f.counts(); most-least > 1 {
		f.t.Errorf("%s: they were within one of each other, and hold from %d to %d types again", what, least, most)
	}
	if f.moves > must*percent/100 {
		f.t.Errorf("%s: %d types were moved, and %d had to be", what, f.moves, must)
	}
	f.t.Logf("%s: within one of each other after %d rounds (%v); %d types moved, %d had to", what, rounds, time.Duration(rounds)*HeartbeatEvery, f.moves, must)
}

// quiet expects that no type moves in the given number of rounds, in which no replica reads more than
// windowSize members.
func (f *fleet) quiet(rounds int) {
	f.t.Helper()
	for range rounds {
		f.round()
	}
	if f.moves > 0 {
		f.t.Errorf("%d types moved while no replica joined or left", f.moves)
	}
	if reads := f.reads / rounds / len(f.all); reads > windowSize {
		f.t.Errorf("a replica reads %d members in a round, want %d at most", reads, windowSize)
	}
}

// Bounds of moves: 1.2 times the least possible when replicas join. When they leave or die, twice the least: here nearly all hold
// ten types each, and a leaver's types must find the few that hold nine, which are not in every window.
//
// A thousand replicas share ten thousand busy types, while a tenth of the heartbeats and of the reads
// are lost.
func TestThousandReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("TestHundredsOfReplicas is the small form")
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1000, 10_000)
		f.quiet(6)
		f.join(1)
		f.settles("one joins", 80, 120)
		f.some(1)[0].leaves = time.Now().Add(handOver)
		f.settles("one leaves", 80, 200)
	})
}

// The same with fewer replicas, more of which join and leave.
func TestHundredsOfReplicas(t *testing.T) {
	race.Skip(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 300, 3000)
		f.quiet(12)
		f.join(3)
		f.settles("three join", 80, 120)
		for _, r := range f.some(3) {
			r.leaves = time.Now().Add(handOver)
		}
		f.settles("three leave", 80, 200)
		for _, r := range f.some(3) {
			r.dead = time.Now().Add(leaseOfFleet)
		}
		f.settles("three die", 80, 200)
	})
}

// The time of one plan with ten thousand types and a thousand replicas. In the product, a replica never
// plans with more than windowSize members.
func BenchmarkBalance(b *testing.B) {
	for _, size := range []struct{ members, types int }{{4, 10_000}, {windowSize, 10_000}, {1000, 10_000}} {
		for _, what := range []string{"even", "one more", "all free", "half more"} {
			b.Run(fmt.Sprintf("%d×%d/%s", size.types, size.members, what), func(b *testing.B) {
				members := make([]candidate, size.members)
				for i := range members {
					members[i] = candidate{types: []string{"*"}, room: size.types}
				}
				var claims []claim
				for i := range size.types {
					by := i % size.members
					switch what {
					case "one more":
						by = i % (size.members - 1)
					case "all free":
						by = nobody
					case "half more":
						by = i % (size.members / 2)
					}
					claims = append(claims, claim{fmt.Sprintf("customer-%05d", i), by})
				}
				rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
				for b.Loop() {
					balance(members, claims)
				}
			})
		}
	}
}
