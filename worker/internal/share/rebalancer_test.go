package share

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// asleep is a session that does nothing.
type asleep struct{}

func (asleep) QuietFor() time.Duration { return 0 }
func (asleep) Halt()                   {}

// A type counts as free unless this pool holds it, whose session is then woken, or another living pool holds it and is not leaving it.
func TestWakeSession(t *testing.T) {
	r := New(nil, nil, queue.Member{Instance: "self"}, zerolog.Nop())
	r.Join(false, "mine", "free", "theirs", "left", "orphaned")
	r.Holds("mine", asleep{})
	now := time.Now()
	r.readAt = now
	r.sights = map[string]sighting{"other": {at: now, read: now}, "dead": {at: now.Add(-time.Hour), read: now}}
	r.claims = map[string]holding{"theirs": {by: "other"}, "left": {by: "other", leaving: true}, "orphaned": {by: "dead"}}
	for typ, want := range map[string]bool{"mine": false, "free": true, "theirs": false, "left": true, "orphaned": true, "unknown": true} {
		if free := r.WakeSession(typ); free != want {
			t.Errorf("%s: free %t", typ, free)
		}
		woken := false
		if it := r.types[typ]; it != nil {
			select {
			case <-it.wake:
				woken = true
			default:
			}
		}
		if woken != (typ == "mine") {
			t.Errorf("%s: woken %t", typ, woken)
		}
	}
}

// awake is the View of a pool that is not stopping.
type awake struct{ View }

func (awake) Stopping() <-chan struct{} { return nil }

// When the holder of a type falls silent, the other replicas check its lock, even if the type may be assigned to another of them: a replica
// can take over a lock only after observing it for a lease. A released type is not checked in this way.
func TestTheLockOfASilentHolderIsLookedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(awake{}, nil, queue.Member{Instance: "z", Types: []string{"*"}}, zerolog.Nop())
		r.Join(false, "busy", "released")
		members := []queue.Member{
			{Instance: "a", Types: []string{"*"}, Held: []string{"busy", "released"}, Beat: 1},
			{Instance: "b", Types: []string{"*"}, Beat: 1},
		}
		r.learn(members, window{})
		turn := func(typ string, want Turn) {
			t.Helper()
			if got, _ := r.Turn(typ, false); got != want {
				t.Errorf("the turn of %q is %v, want %v", typ, got, want)
			}
		}
		turn("busy", TurnStandBy) // as long as its holder lives
		members[0].Held = []string{"busy"}
		for range 3 {
			time.Sleep(HeartbeatEvery)
			members[1].Beat++
			r.learn(members, window{})
		}
		turn("busy", TurnStandBy)
		turn("busy", TurnNone)
		turn("released", TurnUndecided)
		r.Freed("busy") // after a turn that has found the lock held
		time.Sleep(StarveAfter + time.Second)
		members[1].Beat++
		r.learn(members, window{})
		turn("busy", TurnTake)
		r.Freed("busy")
		turn("busy", TurnTake)
	})
}

func woken(r *Rebalancer, typ string) bool {
	select {
	case <-r.types[typ].wake:
		return true
	default:
		return false
	}
}

// A living holder that no longer holds a type has drained it: with many types, the other replicas are not woken. They are woken if the
// holder waits for a successor, or is gone, or if there are few types.
func TestOfManyTypesThoseThatWereDrainedAreNotLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, many := range []bool{false, true} {
			r := New(awake{}, nil, queue.Member{Instance: "z", Types: []string{"*"}}, zerolog.Nop())
			if many {
				for i := range int(standbyEvery / lookEvery) {
					r.Join(false, fmt.Sprintf("other-%03d", i))
				}
			}
			r.Join(false, "drained", "left", "lost")
			members := []queue.Member{
				{Instance: "a", Types: []string{"*"}, Held: []string{"drained", "left"}, Leaving: []string{"left"}, Beat: 1},
				{Instance: "b", Types: []string{"*"}, Held: []string{"lost"}, Beat: 1},
			}
			r.learn(members, window{})
			time.Sleep(HeartbeatEvery)
			members[0].Held, members[0].Leaving, members[0].Beat = nil, nil, 2
			r.learn(members[:1], window{})
			for typ, want := range map[string]bool{"drained": !many, "left": true, "lost": true} {
				if woken(r, typ) != want {
					t.Errorf("with many types %t: %q is woken: %t", many, typ, !want)
				}
			}
		}
	})
}

// crowd returns replicas that know each other, each of which serves the types.
func crowd(replicas int, types ...string) (all []*Rebalancer, beat func(others ...queue.Member)) {
	var members []queue.Member
	for i := range replicas {
		members = append(members, queue.Member{Instance: fmt.Sprintf("%012x", i*i), Types: []string{"*"}})
		all = append(all, New(awake{}, nil, members[i], zerolog.Nop()))
		all[i].Join(false, types...)
	}
	return all, func(others ...queue.Member) {
		for i := range members {
			members[i].Beat++
		}
		for _, r := range all {
			r.learn(append(members, others...), window{})
		}
	}
}

// wokenOf returns how many of the replicas are woken for each type.
func wokenOf(all []*Rebalancer, types []string) (n map[string]int) {
	n = map[string]int{}
	for _, typ := range types {
		for _, r := range all {
			if woken(r, typ) {
				n[typ]++
			}
		}
	}
	return n
}

// With many replicas, one checks each of many types that have news, and others check it only until a replica takes it. With few replicas
// or few types, all check it.
func TestOfManyReplicasOneLooksAtNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var types []string
		for i := range 500 {
			types = append(types, fmt.Sprintf("t%04d", i))
		}
		for _, tc := range []struct{ replicas, types, one int }{{30, 500, 1}, {spreadOver, 500, spreadOver}, {30, 5, 30}} {
			all, beat := crowd(tc.replicas, types[:tc.types]...)
			beat()
			news := types[:tc.types/2]
			for _, r := range all {
				r.Notified(slices.Concat(news, []string{"unknown"}))
			}
			now := wokenOf(all, news)
			for _, typ := range news {
				if now[typ] != tc.one {
					t.Errorf("%d of %d replicas check one of %d types, want %d", now[typ], tc.replicas, tc.types, tc.one)
				}
			}
		}

		all, beat := crowd(30, types...)
		beat()
		for _, r := range all {
			r.Notified(types)
		}
		first := wokenOf(all, types)
		began := time.Now()
		time.Sleep(StarveAfter / 2)
		for _, r := range all {
			r.Notified(types) // more news delays no replica
		}
		wokenOf(all, types)
		holder := queue.Member{Instance: "holder", Types: []string{"else"}, Held: types[:100]}
		total := map[string]int{}
		for i := 1; i <= 5; i++ {
			time.Sleep(time.Duration(i)*StarveAfter - time.Since(began))
			holder.Beat++
			beat(holder)
			for _, r := range all {
				r.wakeReserves()
			}
			now := wokenOf(all, types)
			want := 0
			if i <= 3 {
				want = 1 << (i - 1)
			}
			for at, typ := range types {
				total[typ] += now[typ]
				if at < 100 && now[typ] != 0 || at >= 100 && now[typ] != want {
					t.Fatalf("after %v, %d replicas check %s, want %d, or 0 for a type with a holder (%d)", time.Duration(i)*StarveAfter, now[typ], typ, want, at)
				}
			}
		}
		if n := total[types[100]] + first[types[100]]; n != reserves {
			t.Errorf("%d replicas have checked, want %d", n, reserves)
		}
	})
}

// When the holder of many types falls silent, a few of many replicas check each of the types. Once it counts as dead, they take the types,
// one replica after the other, even when busy.
func TestOfManyReplicasAFewTakeWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var types []string
		for i := range 500 {
			types = append(types, fmt.Sprintf("t%04d", i))
		}
		all, beat := crowd(30, types...)
		holder := queue.Member{Instance: "holder", Types: []string{"*"}, Held: types}
		for range 3 {
			beat(holder) // always the same
			time.Sleep(HeartbeatEvery)
		}
		first := wokenOf(all, types)
		for typ, n := range first {
			silent := 0
			for _, r := range all {
				if r.types[typ].silent {
					silent++
					if turn, _ := r.Turn(typ, true); turn != TurnStandBy {
						t.Errorf("turn %d for %s, want a check of its lock", turn, typ)
					}
				}
			}
			if n < heirs-1 || n > heirs || silent != n { // the dead one may be among the first
				t.Fatalf("%d replicas check %s, and %d its lock, want %d", n, typ, silent, heirs)
			}
		}
		again := map[string]int{}
		for range heirs {
			beat(holder)
			for _, r := range all {
				r.wakeReserves()
			}
			time.Sleep(HeartbeatEvery)
			for _, typ := range types {
				n := 0
				for _, r := range all {
					if !woken(r, typ) {
						continue
					}
					n++
					if turn, _ := r.Turn(typ, true); turn != TurnTake {
						t.Errorf("turn %d for %s, want that it is taken", turn, typ)
					}
				}
				if again[typ] += n; n > 1 {
					t.Errorf("%d replicas take %s concurrently", n, typ)
				}
			}
		}
		if !maps.Equal(again, first) {
			t.Errorf("%d types are taken by all of their replicas, want %d", len(again), len(first))
		}
	})
}

// When a sweep has found many types, a pool wakes for those assigned to it and, unless it is busy, for those that their pool does not take.
// With few types it wakes for all.
func TestOfManyTypesThatAreFoundItsOwnAreWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(awake{}, nil, queue.Member{Instance: "z", Types: []string{"*"}}, zerolog.Nop())
		members := []queue.Member{{Instance: "a", Types: []string{"*"}, Held: []string{"theirs"}}}
		beat := func() {
			members[0].Beat++
			r.learn(members, window{})
		}
		beat()
		r.Join(false, "theirs")
		var types []string
		found := func(busy bool) (mine, others int) {
			r.Found(append(types, "theirs"), busy)
			for _, typ := range types {
				if !woken(r, typ) {
					continue
				}
				if r.shares[typ] == "z" {
					mine++
				} else {
					others++
				}
				if n, known := r.Told(typ); n != 1 || !known {
					t.Errorf("%d messages of %s are known, want 1", n, typ)
				}
			}
			if !woken(r, "theirs") {
				t.Error("the pool does not check a type that another one holds")
			}
			return mine, others
		}
		for _, n := range []int{10, 1000} {
			for i := len(types); i < n; i++ {
				types = append(types, fmt.Sprintf("t%04d", i))
				r.Join(false, types[i])
			}
			mine, others := found(false)
			if few := n == 10; few && mine+others != n || !few && (mine < n/3 || others > 0) {
				t.Errorf("of %d types %d and %d of the other pool are woken", n, mine, others)
			}
		}
		for range 2 {
			time.Sleep(HeartbeatEvery)
			beat()
		}
		mine, others := found(true)
		if mine < len(types)/3 || others > 0 {
			t.Errorf("a busy pool wakes for %d types and %d of the other pool", mine, others)
		}
		if mine, others = found(false); mine+others != len(types) {
			t.Errorf("%d types starve, %d of them are woken", len(types), mine+others)
		}
		// After a long time the same types count as newly free: the pools that they are assigned to have drained them in between.
		for range int(forgetFree/HeartbeatEvery) + 1 {
			time.Sleep(HeartbeatEvery)
			beat()
		}
		if mine, others = found(false); mine < len(types)/3 || others > 0 {
			t.Errorf("%d types and %d of the other pool are woken", mine, others)
		}
		awake := func() (n int) {
			r.wakeSleepers()
			for _, typ := range types {
				if woken(r, typ) {
					n++
				}
			}
			return n
		}
		if n := awake(); n > 0 {
			t.Errorf("%d types are woken at once", n)
		}
		time.Sleep(r.Stretch() + time.Second)
		beat()
		if n := awake(); n != len(types)-mine {
			t.Errorf("%d types are woken after a while, want %d", n, len(types)-mine)
		}
		if n := awake(); n > 0 {
			t.Errorf("%d types are woken again", n)
		}
	})
}

// A pool that reads heartbeats rarely, because the queue is slow, does not take other members for dead in between. One that cannot read them
// for long knows nothing about other members.
func TestASlowQueueMakesNobodyLookDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(awake{}, nil, queue.Member{Instance: "z", Types: []string{"*"}}, zerolog.Nop())
		members := []queue.Member{{Instance: "a", Types: []string{"*"}, Held: []string{"theirs"}, Beat: 1}}
		r.Join(false, "theirs")
		r.learn(members, window{})
		lives := func(want bool) {
			t.Helper()
			_, held := r.holder("theirs", time.Now())
			if alone := r.alone(time.Now()); held != want || alone == want {
				t.Errorf("the type is held: %t, this pool is alone: %t", held, alone)
			}
		}
		for range 3 {
			time.Sleep(2 * deadAfter)
			lives(true)
			members[0].Beat++
			r.learn(members, window{})
			lives(true)
		}
		time.Sleep(2 * deadAfter)
		r.learn(members, window{}) // its beat does not change
		lives(false)
		members[0].Beat++
		r.learn(members, window{})
		time.Sleep(blindAfter)
		lives(false)
	})
}

// slowReads is a directory that is slow to return members and settings, and records when heartbeats arrive.
type slowReads struct {
	Directory
	takes time.Duration
	beats []time.Time
}

func (d *slowReads) Now(context.Context) (time.Time, error) { return time.Now(), nil }
func (d *slowReads) Leave(context.Context, string) error    { return nil }

func (d *slowReads) Heartbeat(context.Context, queue.Member) error {
	d.beats = append(d.beats, time.Now())
	return nil
}

func (d *slowReads) Members(context.Context, string, int) ([]queue.Member, error) {
	time.Sleep(d.takes)
	return nil, nil
}

func (d *slowReads) AllSettings(context.Context) (map[string]queue.Settings, error) {
	time.Sleep(d.takes)
	return nil, nil
}

func (awake) Troubles() map[string]string                                 { return nil }
func (awake) Report(_ context.Context, _ string, err error) (failed bool) { return err != nil }
func (awake) Parting(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, most)
}

// A heartbeat comes every HeartbeatEvery, or soon after a round that takes longer.
func TestSlowReadsDelayHeartbeatsLittle(t *testing.T) {
	for takes, every := range map[time.Duration]time.Duration{
		0: HeartbeatEvery, HeartbeatEvery / 2: HeartbeatEvery, HeartbeatEvery: HeartbeatEvery * 5 / 4, 2 * HeartbeatEvery: HeartbeatEvery * 9 / 4,
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &slowReads{takes: takes}
			r := New(awake{}, d, queue.Member{Instance: "z"}, zerolog.Nop())
			end := r.Begin(t.Context(), func(error) {})
			time.Sleep(time.Minute)
			end()
			for i, at := range d.beats[2:] {
				if got := at.Sub(d.beats[i+1]); got != every {
					t.Errorf("if reads take %v, a heartbeat came after %v, want %v", takes, got, every)
				}
			}
		})
	}
}

// lateAnswers is slowReads that takes as long for a heartbeat, and returns early if its caller gives up.
type lateAnswers struct{ slowReads }

func (d *lateAnswers) Heartbeat(ctx context.Context, m queue.Member) error {
	if err := wait.For(ctx, d.takes); err != nil {
		return err
	}
	return d.slowReads.Heartbeat(ctx, m)
}

func (d *lateAnswers) Members(ctx context.Context, _ string, _ int) ([]queue.Member, error) {
	return nil, wait.For(ctx, d.takes)
}

func (d *lateAnswers) AllSettings(ctx context.Context) (map[string]queue.Settings, error) {
	return nil, wait.For(ctx, d.takes)
}

// A queue that answers later than the initial timeout of a round gets more time.
func TestLateAnswersAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lateAnswers{slowReads{takes: 2*HeartbeatEvery + time.Second}}
		r := New(awake{}, d, queue.Member{Instance: "z"}, zerolog.Nop())
		end := r.Begin(t.Context(), func(error) {})
		time.Sleep(time.Minute)
		end()
		if len(d.beats) < 3 || time.Since(r.readAt) > blindAfter/2 {
			t.Errorf("%d heartbeats in a minute, and the members were last read at %v", len(d.beats), r.readAt)
		}
	})
}

// Pools that drain many types together know which types no other pool wants.
func TestSole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(awake{}, nil, queue.Member{Instance: "z", Types: []string{"*"}}, zerolog.Nop())
		var types []string
		for i := range 12 * manyFree {
			types = append(types, fmt.Sprintf("t%02d", i))
		}
		r.Join(true, types...)
		if !r.Take("t00") || !r.Sole("t00") {
			t.Error("another pool wants a type, although there is no other")
		}
		if r.Contended("t00", "unknown"); r.Sole("t00") {
			t.Error("no other pool wants a type that another one holds")
		}
		members := []queue.Member{{Instance: "a", Types: []string{"*"}, Beat: 1}}
		r.learn(members, window{})
		mine := 0
		for _, typ := range types[1:] {
			if r.Take(typ) {
				mine++
				// It is not sure of one in probeEvery, and of the one after a drained type.
				sure := r.shares[typ] == "z" && mine != probeEvery && mine != probeEvery+5 && mine != 2*probeEvery+5
				if sole := r.Sole(typ); sole != sure {
					t.Errorf("%q: no other pool wants it: %t", typ, sole)
				}
				r.Asked(mine == probeEvery+4)
			}
		}
		if mine < 2*probeEvery+5 || mine == len(types)-1 {
			t.Fatalf("%d of %d types are assigned to this pool", mine, len(types))
		}
		time.Sleep(StarveAfter + time.Second)
		members[0].Beat++
		r.learn(members, window{})
		helped := false
		for _, typ := range types {
			if r.types[typ].taking {
				continue
			}
			r.Turn(typ, false)
			if helped = r.Take(typ); helped && r.Sole(typ) {
				t.Errorf("no other pool wants %q, which this pool helps with", typ)
			}
		}
		if !helped {
			t.Error("this pool does not help")
		}
	})
}

func TestSpread(t *testing.T) {
	for replicas, times := range map[int]int{0: 1, 1: 1, spreadOver: 1, 10 * spreadOver: 10} {
		r := &Rebalancer{replicas: replicas}
		if got, want := r.Spread(time.Second), time.Duration(times)*time.Second; got != want {
			t.Errorf("%d replicas: %v, want %v", replicas, got, want)
		}
		if got := r.Crowd(); got != times {
			t.Errorf("%d replicas are a crowd of %d, want %d", replicas, got, times)
		}
	}
	r := New(awake{}, nil, queue.Member{Instance: "z"}, zerolog.Nop())
	r.learn([]queue.Member{{Instance: "a", Beat: 1}, {Instance: "z", Beat: 1}, {Instance: "b", Beat: 1}}, window{})
	if r.replicas != 3 {
		t.Errorf("%d replicas, want 3", r.replicas)
	}
}
