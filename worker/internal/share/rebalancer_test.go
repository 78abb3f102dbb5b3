package share

import (
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
		turn("released", TurnNone)
		r.Freed("busy") // after a turn that has found the lock held
		time.Sleep(StarveAfter + time.Second)
		members[1].Beat++
		r.learn(members, window{})
		turn("busy", TurnTake)
		r.Freed("busy")
		turn("busy", TurnTake)
	})
}
