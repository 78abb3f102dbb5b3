package share

import (
	"math"
	"slices"
	"strings"
)

// candidate is a member that balance may give types to.
type candidate struct {
	serves func(typ string) bool
	room   int // the most types that it can hold
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
// rule: types do not move for a difference of one. They would move for ever where shares cannot be the same.
const imbalanceThreshold = 2

// balance decides who should hold which type. The result has an index of members for each claim, or
// nobody if no member has room.
//
// Free types go to the members that hold the fewest. Then types move from members that hold at least
// imbalanceThreshold more than another. If the first has no type that the second serves, the move goes
// by way of other members. Because the threshold is 2, members that serve the same types end with
// numbers that differ by one at most, and a state that is already even stays as it is.
//
// The result depends on the arguments only, so all members with the same knowledge compute the same.
// The work grows with the number of types that move and the square of the number of members.
func balance(members []candidate, claims []claim) []int {
	b := balancer{members: members, load: make([]int, len(members)), stacks: make([]map[string][]int, len(members)+1), classes: map[string][]int{}}
	for i := range b.stacks {
		b.stacks[i] = map[string][]int{}
	}
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(claims[j].typ, claims[i].typ) }) // the last of a stack moves first
	owner := make([]int, len(claims))
	for _, i := range order {
		owner[i] = claims[i].by
		class := b.class(claims[i].typ)
		at := len(members)
		if by := claims[i].by; by != nobody {
			at = by
			b.load[by]++
		}
		b.stacks[at][class] = append(b.stacks[at][class], i)
	}
	for {
		path := b.path(len(members))
		if path == nil {
			break
		}
		b.follow(path, owner)
	}
	for moved := len(claims) > 0; moved; {
		moved = false
		for _, from := range b.heaviest() {
			if path := b.path(from); path != nil {
				b.follow(path, owner)
				moved = true
				break
			}
		}
	}
	return owner
}

// balancer is the state of balance. The index after the last member stands for nobody: it has the free
// types.
type balancer struct {
	members []candidate
	load    []int              // by member: how many types it has
	stacks  []map[string][]int // by member and class: the claims that it has
	classes map[string][]int   // a class is all types that the same members serve; here are those members
}

// class returns the name of a type's class, and registers the class.
func (b *balancer) class(typ string) string {
	key := make([]byte, len(b.members))
	var who []int
	for i, m := range b.members {
		if m.serves(typ) {
			key[i] = 1
			who = append(who, i)
		}
	}
	b.classes[string(key)] = who
	return string(key)
}

// heaviest returns the members sorted by load, the highest first.
func (b *balancer) heaviest() []int {
	order := make([]int, len(b.members))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return b.load[j] - b.load[i] })
	return order
}

// path finds the shortest path from one member to the one with the lowest load, so that each member on
// it can pass a type to the next. It returns nil if no move would make the loads more even.
func (b *balancer) path(from int) []int {
	most := math.MaxInt
	if from < len(b.members) {
		most = b.load[from] - imbalanceThreshold
	}
	before := map[int]int{from: from}
	best := -1
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, to := range b.reach(at) {
			if _, seen := before[to]; seen {
				continue
			}
			before[to] = at
			queue = append(queue, to)
			if b.load[to] <= most && b.load[to] < b.members[to].room && (best < 0 || b.load[to] < b.load[best]) {
				best = to
			}
		}
	}
	if best < 0 {
		return nil
	}
	path := []int{best}
	for at := best; at != from; at = before[at] {
		path = append(path, before[at])
	}
	slices.Reverse(path)
	return path
}

// reach lists the members, sorted, that serve any type that at has.
func (b *balancer) reach(at int) []int {
	var to []int
	for class, stack := range b.stacks[at] {
		if len(stack) > 0 {
			to = append(to, b.classes[class]...)
		}
	}
	slices.Sort(to)
	return slices.Compact(to)
}

// follow moves one type along each edge of a path. It starts at the end, so that every member has room.
func (b *balancer) follow(path []int, owner []int) {
	for i := len(path) - 1; i > 0; i-- {
		b.move(path[i-1], path[i], owner)
	}
}

// move moves one type that to serves: the one that from got last.
func (b *balancer) move(from, to int, owner []int) {
	class := ""
	for c, stack := range b.stacks[from] {
		if len(stack) > 0 && slices.Contains(b.classes[c], to) && (class == "" || c < class) {
			class = c
		}
	}
	stack := b.stacks[from][class]
	i := stack[len(stack)-1]
	b.stacks[from][class] = stack[:len(stack)-1]
	b.stacks[to][class] = append(b.stacks[to][class], i)
	owner[i] = to
	b.load[to]++
	if from < len(b.members) {
		b.load[from]--
	}
}
