package share

import (
	"math"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/internal/globs"
)

// candidate is a member that balance may give types to.
type candidate struct {
	instance string
	types    []string // the names and globs that it serves
	leaving  []string // types among them that it no longer serves
	room     int      // the most types that it can hold
}

// claim is an active type: it is held, or it has backlog.
type claim struct {
	typ string
	by  int // index of the candidate that holds it; nobody if it is free
}

const nobody = -1

// imbalanceThreshold is how many types more than another a member must hold before one of its types
// moves there.
//
// rule: types do not move for a difference of one. Otherwise they would move forever where shares cannot be equal.
const imbalanceThreshold = 2

// balance decides which member should hold each type. For each claim the result has an index into
// members, or nobody if no member has room.
//
// Free types go to the members that hold the fewest. Then types move away from members that hold at
// least imbalanceThreshold more than another. If the first has no type that the second serves, the move
// goes through other members. Because the threshold is 2, members that serve the same types end with
// numbers that differ by at most one, and a state that is already even stays as it is.
//
// The result depends only on the arguments, so all members with the same knowledge compute the same
// plan. The work grows with the number of types, and with the product of the number of moving types and
// the number of members.
func balance(members []candidate, claims []claim) []int {
	if len(members) == 0 {
		return slices.Repeat([]int{nobody}, len(claims))
	}
	b := &balancer{room: make([]int, len(members)), load: make([]int, len(members)), stacks: make([][][]int, len(members)+1), before: make([]int, len(members)+1)}
	for i, m := range members {
		b.room[i] = m.room
	}
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(claims[j].typ, claims[i].typ) }) // the last of a stack moves first
	owner := make([]int, len(claims))
	classes := newClassifier(members)
	for _, i := range order {
		owner[i] = claims[i].by
		at := len(members)
		if by := claims[i].by; by != nobody {
			at = by
			b.load[by]++
		}
		b.push(at, classes.of(claims[i].typ), i)
	}
	b.classes, b.expanded = classes.members, make([]bool, len(classes.members))
	for path := b.path(len(members)); path != nil; path = b.path(len(members)) {
		b.follow(path, owner)
	}
	for path := b.fromHeaviest(); path != nil; path = b.fromHeaviest() {
		b.follow(path, owner)
	}
	return owner
}

// classifier divides types into classes. A class consists of all types that the same members serve.
type classifier struct {
	groups  []group          // the members, grouped by the patterns that they serve
	leaving map[string][]int // by type: members that no longer serve it
	index   map[string]int   // of a class, by its groups and leaving members
	members [][]int          // by class, sorted
}

// group consists of the members that serve the same patterns.
type group struct {
	types   globs.Set
	members []int
}

func newClassifier(members []candidate) *classifier {
	c := &classifier{leaving: map[string][]int{}, index: map[string]int{}}
	known := map[string]int{}
	for i, m := range members {
		key := strings.Join(m.types, "\n")
		at, ok := known[key]
		if !ok {
			at = len(c.groups)
			known[key] = at
			c.groups = append(c.groups, group{types: globs.NewSet(m.types)})
		}
		c.groups[at].members = append(c.groups[at].members, i)
		for _, typ := range m.leaving {
			c.leaving[typ] = append(c.leaving[typ], i)
		}
	}
	return c
}

// of returns the class of a type.
func (c *classifier) of(typ string) int {
	key := make([]byte, len(c.groups), len(c.groups)+8)
	for i := range c.groups {
		if c.groups[i].types.Match(typ) {
			key[i] = 1
		}
	}
	left := c.leaving[typ]
	for _, m := range left {
		key = append(key, byte(m), byte(m>>8), byte(m>>16), byte(m>>24))
	}
	class, ok := c.index[string(key)]
	if ok {
		return class
	}
	var members []int
	for i := range c.groups {
		if key[i] == 1 {
			members = append(members, c.groups[i].members...)
		}
	}
	members = slices.DeleteFunc(members, func(m int) bool { return slices.Contains(left, m) })
	slices.Sort(members)
	c.index[string(key)] = len(c.members)
	c.members = append(c.members, members)
	return len(c.members) - 1
}

// balancer is the state of balance. The index after the last member stands for nobody, which holds the
// free types.
type balancer struct {
	load    []int     // by member: how many types it holds
	room    []int     // by member: the most types that it can hold
	stacks  [][][]int // by member and class: the claims that it holds
	classes [][]int   // by class: its members

	// Scratch space of path.
	before   []int  // by member: 1 + the member from which it was reached; 0: not reached
	expanded []bool // by class: all of its members were reached
	queue    []int  // members that were reached, in that order
}

// push adds a claim to those of a member.
func (b *balancer) push(at, class, claim int) {
	for len(b.stacks[at]) <= class {
		b.stacks[at] = append(b.stacks[at], nil)
	}
	b.stacks[at][class] = append(b.stacks[at][class], claim)
}

// fromHeaviest finds a path for a type of the member with the highest load; if there is none, of the
// next one, and so on.
func (b *balancer) fromHeaviest() []int {
	if slices.Max(b.load)-slices.Min(b.load) < imbalanceThreshold {
		return nil
	}
	if path := b.path(slices.Index(b.load, slices.Max(b.load))); path != nil {
		return path
	}
	order := make([]int, len(b.load))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return b.load[j] - b.load[i] })
	for _, from := range order {
		if path := b.path(from); path != nil {
			return path
		}
	}
	return nil
}

// path finds the shortest path from one member to the one with the lowest load on which each member can
// pass a type to the next. It returns nil if no move would make the loads more even.
func (b *balancer) path(from int) []int {
	to := b.search(from)
	if to < 0 {
		return nil
	}
	path := []int{to}
	for at := to; at != from; at = b.before[at] - 1 {
		path = append(path, b.before[at]-1)
	}
	slices.Reverse(path)
	return path
}

// search returns the member at the end of the path, negative if there is none; before then has the members on the way to it.
func (b *balancer) search(from int) (best int) {
	most := math.MaxInt
	if from < len(b.load) {
		most = b.load[from] - imbalanceThreshold
	}
	clear(b.before)
	b.before[from] = from + 1
	clear(b.expanded)
	b.queue = append(b.queue[:0], from)
	least, unexpanded := slices.Min(b.load), len(b.classes)
	best = -1
	for i := 0; i < len(b.queue) && unexpanded > 0; i++ {
		at := b.queue[i]
		for class, stack := range b.stacks[at] {
			if len(stack) == 0 || b.expanded[class] {
				continue
			}
			b.expanded[class] = true
			unexpanded--
			for _, to := range b.classes[class] {
				if b.before[to] != 0 {
					continue
				}
				b.before[to] = at + 1
				b.queue = append(b.queue, to)
				if b.load[to] <= most && b.load[to] < b.room[to] && (best < 0 || b.load[to] < b.load[best]) {
					if best = to; b.load[best] == least {
						return best // there is no better one
					}
				}
			}
		}
	}
	return best
}

// follow moves one type along each edge of a path, starting at the end, so that every member has room.
func (b *balancer) follow(path []int, owner []int) {
	for i := len(path) - 1; i > 0; i-- {
		b.move(path[i-1], path[i], owner)
	}
}

// move moves one type that to serves from from to to: the one that from received last.
func (b *balancer) move(from, to int, owner []int) {
	class := slices.IndexFunc(b.stacks[from], func(stack []int) bool { return len(stack) > 0 })
	for len(b.stacks[from][class]) == 0 || !contains(b.classes[class], to) {
		class++
	}
	stack := b.stacks[from][class]
	i := stack[len(stack)-1]
	b.stacks[from][class] = stack[:len(stack)-1]
	b.push(to, class, i)
	owner[i] = to
	b.load[to]++
	if from < len(b.load) {
		b.load[from]--
	}
}

func contains(sorted []int, n int) bool {
	_, ok := slices.BinarySearch(sorted, n)
	return ok
}
