package metrics

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencepost/fencepost/worker"
)

// fakeTypes returns n types whose counters a test sets.
func fakeTypes(n int) []worker.TypeStatus {
	types := make([]worker.TypeStatus, n)
	for i := range types {
		types[i] = worker.TypeStatus{Type: fmt.Sprintf("t%05d", i), State: worker.Waiting, Losses: map[worker.Cause]uint64{}}
	}
	return types
}

// appended are the values of the first counter, by label.
func appended(told []typeCounts) map[string]uint64 {
	values := map[string]uint64{}
	for _, t := range told {
		values[t.typ] = t.counts[0]
	}
	return values
}

// Whatever types do, no counter of a group falls, and together they rise by the events counted: never twice, and never by a total.
func TestCountersOfGroupsNeverJump(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		g, types := newGroups(5), fakeTypes(40)
		now := time.Unix(1000, 0)
		last := appended(g.take(types[:30], now)) // the others follow later
		served, moved, known := 30, 0, 30
		for range 300 {
			now = now.Add(time.Minute)
			served = min(served+r.IntN(2), len(types))
			increase := map[string]uint64{}
			for i := range types[:served] {
				s := &types[i]
				s.State = worker.Waiting
				if r.IntN(100) == 0 {
					s.State = worker.Blocked
				}
				if r.IntN(4) == 0 {
					n := uint64(r.IntN(1 + 1000*((i+int(now.Unix()/6000))%10/9))) // the busy types change
					s.Appended += n
					increase[s.Type] = n
				}
			}
			told := appended(g.take(types[:served], now))
			if len(g.own) > 5 || len(told) > 6 {
				t.Fatalf("seed %d: %d types have series of their own", seed, len(g.own))
			}
			for i, s := range types[:served] {
				typ := s.Type
				if v, ok := told[typ]; ok {
					before, had := last[typ]
					switch {
					case had && v != before+increase[typ]:
						t.Fatalf("seed %d: %s rose from %d to %d, and counted %d", seed, typ, before, v, increase[typ])
					case had:
						increase[typ] = 0
					case i >= known: // new, and reported from its total on
						if v != increase[typ] {
							t.Fatalf("seed %d: the series of the new %s begins at %d", seed, typ, v)
						}
						increase[typ] = 0
					default:
						moved++
						if v != 0 {
							t.Fatalf("seed %d: the series of %s begins at %d", seed, typ, v)
						}
					}
				}
			}
			known = served
			rest := uint64(0)
			for _, n := range increase {
				rest += n
			}
			if got := told[Other] - last[Other]; got > 1<<60 || got != rest {
				t.Fatalf("seed %d: %s rose by %d, its types have counted %d", seed, Other, int64(got), rest)
			}
			last = told
		}
		if moved < 5 {
			t.Errorf("seed %d: only %d types came to series of their own", seed, moved)
		}
	}
}

// The types of a small installation are reported as always: each from its own total on, without Other.
func TestFewTypesHaveNoOther(t *testing.T) {
	g, types := newGroups(100), fakeTypes(100)
	types[7].Appended = 5
	told := appended(g.take(types, time.Unix(1000, 0)))
	if _, other := told[Other]; len(told) != 100 || other || told[types[7].Type] != 5 {
		t.Errorf("%d series, %v", len(told), told)
	}
	// One more is counted in Other, and takes a place only with far more traffic.
	types = append(types, fakeTypes(101)[100])
	types[100].Appended = 20
	told = appended(g.take(types, time.Unix(1001, 0)))
	if len(told) != 101 || told[Other] != 20 {
		t.Errorf("%d series, %d in %s", len(told), told[Other], Other)
	}
}

// Types with little more traffic than others take no place, those with far more do, and those that need attention do at once; but only a tenth of
// the places changes within ten minutes.
func TestPlacesChangeSlowly(t *testing.T) {
	g, types := newGroups(20), fakeTypes(60)
	now := time.Unix(1000, 0)
	for i := range 20 {
		types[i].Appended = 1
	}
	g.take(types, now)
	owned := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			if g.label(types[i].Type) != Other {
				n++
			}
		}
		return n
	}
	if owned(0, 20) != 20 {
		t.Fatal("the first types have no series")
	}
	scrape := func(minutes int) {
		for range minutes {
			now = now.Add(time.Minute)
			for i := 20; i < 40; i++ {
				types[i].Appended++
			}
			g.take(types, now)
		}
	}
	if scrape(120); owned(20, 60) != 0 {
		t.Errorf("%d places changed for a few messages", owned(20, 60))
	}
	for i := 40; i < 60; i++ {
		types[i].State = worker.Blocked
	}
	if scrape(1); owned(40, 60) != 2 {
		t.Errorf("%d blocked types have series at once, want 2", owned(40, 60))
	}
	if scrape(200); owned(40, 60) != 20 || owned(0, 40) != 0 {
		t.Errorf("%d blocked types have series in the end", owned(40, 60))
	}
	for i := 40; i < 60; i++ {
		types[i].State = worker.Waiting
	}
	for range 31 {
		types[0].Appended += 1000
		scrape(1)
	}
	if owned(0, 1) != 1 {
		t.Error("a type with far more traffic has no series")
	}
}

// The state of types that are no longer served is dropped, so that it stays bounded.
func TestGroupsForgetTypesThatAreNotServed(t *testing.T) {
	g, types := newGroups(10), fakeTypes(1000)
	types[3].Appended, types[500].Appended = 7, 9
	before := appended(g.take(types, time.Unix(1000, 0)))
	after := appended(g.take(types[500:], time.Unix(1001, 0)))
	if len(g.tallies) != 500 || len(g.own) != 1 || after[Other] != before[Other] {
		t.Errorf("%d types are remembered, %d with series; %s: %d, then %d", len(g.tallies), len(g.own), Other, before[Other], after[Other])
	}
}
