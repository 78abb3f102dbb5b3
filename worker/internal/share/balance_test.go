package share

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// For any initial holders: every type that can be held is held, by a member that serves it and has room; no move of a type makes the
// loads more even; and balancing again moves nothing.
func TestBalance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		serves := make([]map[string]bool, 1+rnd.IntN(5))
		members := make([]candidate, len(serves))
		var names []string
		for i := range rnd.IntN(30) {
			names = append(names, string(rune('a'+i%26))+string(rune('a'+i/26)))
		}
		for i := range members {
			serves[i] = map[string]bool{}
			for _, typ := range names {
				serves[i][typ] = rnd.IntN(4) > 0
			}
			members[i] = candidate{room: 1 + rnd.IntN(20)}
			for _, typ := range names { // by name, by glob, or all but those that it is leaving
				switch {
				case i%2 == 1:
					members[i].types = []string{"*"}
					if !serves[i][typ] {
						members[i].leaving = append(members[i].leaving, typ)
					}
				case serves[i][typ] && rnd.IntN(2) == 0:
					members[i].types = append(members[i].types, typ)
				case serves[i][typ]:
					members[i].types = append(members[i].types, typ[:1]+"["+typ[1:]+"]")
				}
			}
		}
		load := make([]int, len(members))
		claims := make([]claim, len(names))
		for i, typ := range names {
			by := rnd.IntN(len(members)+1) - 1
			if by != nobody && (!serves[by][typ] || load[by] == members[by].room) {
				by = nobody
			}
			if by != nobody {
				load[by]++
			}
			claims[i] = claim{typ, by}
		}
		owner := balance(members, claims)
		clear(load)
		for _, o := range owner {
			if o != nobody {
				load[o]++
			}
		}
		for i, o := range owner {
			if o != nobody && !serves[o][names[i]] {
				t.Fatalf("%s goes to a member that does not serve it", names[i])
			}
			for m := range members {
				if !serves[m][names[i]] || load[m] >= members[m].room {
					continue
				}
				if o == nobody || load[o]-load[m] >= imbalanceThreshold {
					t.Fatalf("%s should go from %d to %d, loads are %v", names[i], o, m, load)
				}
			}
		}
		for m := range members {
			if load[m] > members[m].room {
				t.Fatalf("member %d has room for %d and holds %d", m, members[m].room, load[m])
			}
		}
		for i := range claims {
			claims[i].by = owner[i]
		}
		if again := balance(members, claims); !slices.Equal(again, owner) {
			t.Fatalf("balanced again, the result is %v, not %v", again, owner)
		}
	}
}
