package share

import (
	"math"
	"slices"
	"strings"
)

// candidate is a member as balance sees it.
type candidate struct {
	serves func(typ string) bool
	room   int // the most types that it takes
}

// claim is an active type: it is held, or it has backlog.
type claim struct {
	typ string
	by  int // index of the candidate that holds it; nobody: free
}

const nobody = -1

// imbalanceThreshold is how many types more than another member one has to hold for its types to
// move.
//
// rule: types do not move for a difference of one. They would move for ever where shares cannot be the same.
const imbalanceThreshold = 2

// balance says who should hold which type: an index of members for each claim, or nobody if there
// is no room for it.
//
// Free types go to the members that hold least. Then types move from one that holds at least
// imbalanceThreshold more than another does, if need be by way of others, when the first serves
// nothing that the second serves. As the threshold is 2, members that serve the same types end
// within one of each other, and a state in which that is so already stays as it is.
//
// The result is a function of the arguments only: all members that know the same compute the same.
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

// balancer is the state of balance. The index behind the last member stands for nobody: it has what
// is free.
type balancer struct {
	members []candidate
	load    []int
	stacks  []map[string][]int // by member and class of types: the claims
	classes map[string][]int   // types that the same members serve are a class: those members
}

// class returns the name of a type's class.
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

// heaviest sorts the members by load, the highest first.
func (b *balancer) heaviest() []int {
	order := make([]int, len(b.members))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return b.load[j] - b.load[i] })
	return order
}

// path finds the shortest way over which a type of from can go, each member on it passing one on,
// to the one that holds least.
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

// reach lists the members that serve a type of at, sorted.
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

// follow moves one type along each part of a path.
func (b *balancer) follow(path []int, owner []int) {
	for i := len(path) - 1; i > 0; i-- {
		b.move(path[i-1], path[i], owner)
	}
}

// move passes a type on: of those that it can be the one that came last.
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
