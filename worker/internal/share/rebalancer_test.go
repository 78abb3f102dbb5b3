package share

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// asleep is a session that does nothing.
type asleep struct{}

func (asleep) QuietFor() time.Duration { return 0 }
func (asleep) Halt()                   {}

// A type counts as free unless this pool holds it, and is woken, or another living one does, and stays.
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

// awake is what a pool that does not stop shows.
type awake struct{ View }

func (awake) Stopping() <-chan struct{} { return nil }

// When the holder of a type falls silent, the others look at its lock, though the type may fall to another of them: who has watched
// the lock for a lease takes it over. A type that was released is not looked at in this way.
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

// A living holder that no longer has a type has drained it: of many types, the others are not woken. They are if it waits for a
// successor, or is gone, or if there are few types.
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

// Pools that drain many types together know which of them nobody else wants.
func TestSole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(awake{}, nil, queue.Member{Instance: "z", Types: []string{"*"}}, zerolog.Nop())
		var types []string
		for i := range 12 * manyFree {
			types = append(types, fmt.Sprintf("t%02d", i))
		}
		r.Join(true, types...)
		if !r.Take("t00") || !r.Sole("t00") {
			t.Error("another one wants a type, though there is nobody else")
		}
		members := []queue.Member{{Instance: "a", Types: []string{"*"}, Beat: 1}}
		r.learn(members, window{})
		mine := 0
		for _, typ := range types[1:] {
			if r.Take(typ) {
				mine++
				// Of one in so many, and behind one that was drained, it is not sure.
				sure := r.shares[typ] == "z" && mine != probeEvery && mine != probeEvery+5 && mine != 2*probeEvery+5
				if sole := r.Sole(typ); sole != sure {
					t.Errorf("%q: nobody else wants it: %t", typ, sole)
				}
				r.Asked(mine == probeEvery+4)
			}
		}
		if mine < 2*probeEvery+5 || mine == len(types)-1 {
			t.Fatalf("%d of %d types fall to this pool", mine, len(types))
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
				t.Errorf("nobody else wants %q, which this pool helps with", typ)
			}
		}
		if !helped {
			t.Error("this pool does not help")
		}
	})
}

func TestSpread(t *testing.T) {
	for replicas, want := range map[int]time.Duration{0: time.Second, 1: time.Second, spreadOver: time.Second, 10 * spreadOver: 10 * time.Second} {
		r := &Rebalancer{replicas: replicas}
		if got := r.Spread(time.Second); got != want {
			t.Errorf("%d replicas: %v, want %v", replicas, got, want)
		}
	}
	r := New(awake{}, nil, queue.Member{Instance: "z"}, zerolog.Nop())
	r.learn([]queue.Member{{Instance: "a", Beat: 1}, {Instance: "z", Beat: 1}, {Instance: "b", Beat: 1}}, window{})
	if r.replicas != 3 {
		t.Errorf("%d replicas, want 3", r.replicas)
	}
}
