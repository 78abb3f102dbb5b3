package share

import (
	"fmt"
	"math"
	"testing"
)

// Many free types are assigned to the same members, whatever other types are known to be free, and about the same number to each.
func TestScattered(t *testing.T) {
	r := &Rebalancer{}
	var members []candidate
	for i := range 4 {
		members = append(members, candidate{instance: fmt.Sprintf("%012x", i+1), types: []string{"t*"}, room: math.MaxInt})
	}
	var free []string
	for i := range 1000 {
		free = append(free, fmt.Sprintf("t%05d", i))
	}
	members[1].leaving = free[:10]
	free = append(free, "nobody's")
	owners := r.scatter(members, free)
	count := map[int]int{}
	for i, owner := range owners {
		count[owner]++
		if i < 10 && owner == 1 {
			t.Errorf("%s is assigned to the member that leaves it", free[i])
		}
	}
	for m := range members {
		if count[m] < 200 || count[m] > 300 {
			t.Errorf("%d of 1000 types are assigned to member %d", count[m], m)
		}
	}
	if owners[1000] != nobody || count[nobody] != 1 {
		t.Errorf("%d types are assigned to nobody, want the one that no member serves", count[nobody])
	}
	var left []string
	var want []int
	for i := range free {
		if i%7 == 0 {
			left, want = append(left, free[i]), append(want, owners[i])
		}
	}
	for i, owner := range r.scatter(members, left) {
		if owner != want[i] {
			t.Errorf("%s is assigned to %d, and to %d when fewer are free", left[i], want[i], owner)
		}
	}

	if r.scatter(members, free[:4*manyFree-1]) != nil {
		t.Error("few types are scattered, which is less even than a plan")
	}
	r.types, r.replicas = map[string]*interest{}, spreadOver+1
	for _, typ := range free {
		r.types[typ] = &interest{}
	}
	if r.scatter(members, free[:1]) == nil {
		t.Error("in a crowded pool, few types are not scattered: each replica would plan with other types")
	}
	members[3].room = 10
	if r.scatter(members, free) != nil {
		t.Error("a member with a bound gets more types than it accepts")
	}
}
