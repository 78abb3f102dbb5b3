package share

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// roll is a list of members whose beats all change.
type roll struct {
	Directory
	members []queue.Member
}

func (l *roll) Members(_ context.Context, after string, most int) (members []queue.Member, err error) {
	for _, m := range l.members {
		if m.Instance > after && len(members) < most {
			members = append(members, m)
		}
	}
	return members, nil
}

func newRoll(n int) *roll {
	l := &roll{}
	for i := range n {
		id := fmt.Sprintf("%012x", uint64(i+1)<<36)
		l.members = append(l.members, queue.Member{Instance: id, Types: []string{"*"}, Held: []string{"type-" + id}})
	}
	return l
}

// With few members, all are read in every round. With many, each is read windowRounds times in every
// pass, windowSize at a time.
func TestWindowPassesOverAllMembers(t *testing.T) {
	for _, n := range []int{0, 1, windowSize - 1, windowSize, windowSize + 1, 2*windowSize + 7, 1000} {
		l, seen := newRoll(n), map[string]int{}
		var w window
		windows := (n + windowSize - 1) / windowSize
		if n < windowSize {
			windows = 1
		}
		for range windows * windowRounds {
			members, err := w.look(t.Context(), l.Members)
			if err != nil || len(members) != min(n, windowSize) {
				t.Fatalf("of %d: %d members, %v", n, len(members), err)
			}
			for _, m := range members {
				seen[m.Instance]++
				if !w.covers(m.Instance) {
					t.Errorf("of %d: %s was read and is not covered", n, m.Instance)
				}
			}
			covered := 0
			for _, m := range l.members {
				if w.covers(m.Instance) {
					covered++
				}
			}
			if covered != min(n, windowSize) {
				t.Errorf("of %d: %d are covered", n, covered)
			}
		}
		for _, m := range l.members {
			if seen[m.Instance] < windowRounds {
				t.Errorf("of %d: %s was read %d times, want %d", n, m.Instance, seen[m.Instance], windowRounds)
			}
		}
		if w.partial != (n >= windowSize) {
			t.Errorf("of %d: partial = %v", n, w.partial)
		}
		l.members = l.members[:min(n, 3)]
		for range windowRounds + 1 {
			if members, err := w.look(t.Context(), l.Members); err != nil || len(members) != len(l.members) {
				t.Fatalf("of %d that have become few: %d members, %v", n, len(members), err)
			}
		}
		if w.partial {
			t.Errorf("of %d that have become few: partial", n)
		}
	}
}

// The types of a member outside the window stay known until the member is read again. A member whose
// beat no longer changes is then known to be gone.
func TestMembersOutsideTheWindowAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3 * windowSize
		l := newRoll(n)
		r := New(nil, l, queue.Member{Instance: "self"}, zerolog.Nop())
		round := func(beating func(i int) bool) {
			for i := range l.members {
				if beating(i) {
					l.members[i].Beat++
				}
			}
			w := r.window
			members, err := w.look(t.Context(), l.Members)
			if err != nil {
				t.Fatal(err)
			}
			r.learn(members, w)
			time.Sleep(HeartbeatEvery)
		}
		known := func() (known int) {
			for i := range l.members {
				if _, ok := r.holder("type-"+l.members[i].Instance, time.Now()); ok {
					known++
				}
			}
			return known
		}
		pass := (n/windowSize + 1) * windowRounds
		for range 3 * pass {
			round(func(int) bool { return true })
		}
		if got := known(); got != n {
			t.Errorf("the holders of %d types are known, want %d", got, n)
		}
		for range 3 * pass {
			round(func(i int) bool { return i%2 == 0 })
		}
		if got := known(); got != n/2 {
			t.Errorf("half of the members died: the holders of %d types are known, want %d", got, n/2)
		}
		l.members = l.members[:2*windowSize] // the others left
		for range pass {
			round(func(i int) bool { return i%2 == 0 })
		}
		if got := len(r.sights); got != len(l.members) {
			t.Errorf("%d members are remembered, want %d", got, len(l.members))
		}
	})
}
