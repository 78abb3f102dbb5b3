package lock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Lockable is anything that can be locked through a [Graph]: an order, an item of the order, a job
// for that item. It may have parents; locking it then means locking its parents instead.
//
//	JobFlow ──► OrderItem ──► Order      locking any of them locks the Order
//	        ──► Machine                  and, for a JobFlow, the Machine: both are roots
type Lockable interface {
	// LockNode describes the object and its current parents. It is called before the lock is
	// acquired, and again after it has been granted. If the parents may have changed in between,
	// LockNode should look them up each time.
	LockNode(ctx context.Context) (Node, error)
}

// Node is how a [Lockable] describes itself. Node is a Lockable, too, for objects that have nothing
// to look up.
type Node struct {
	Scope   string     // the kind of object, such as "order"; no slash
	Key     string     // identifies the object within its scope
	Parents []Lockable // locked in its place; none: the node is a root, and is locked itself
}

// Name is the name of the node's lock: "order/17".
func (n Node) Name() string { return n.Scope + "/" + n.Key }

// LockNode returns n.
func (n Node) LockNode(context.Context) (Node, error) { return n, nil }

// All is a Lockable that stands for all xs: locking it locks the roots of each. Use it to move an item
// to another parent: lock the item and the new parent together.
func All(xs ...Lockable) Lockable { return all(slices.Clone(xs)) }

// all is a node without a name, which is not locked itself: see All.
type all []Lockable

func (a all) LockNode(context.Context) (Node, error) { return Node{Parents: a}, nil }

// Errors about a graph. They are returned wrapped in a [*GraphError].
var (
	// ErrCycle: a node is its own parent, directly or through others.
	ErrCycle = errors.New("its parents form a cycle")
	// ErrNilParent: a parent, or the object to lock, is nil.
	ErrNilParent = errors.New("a parent, or the object to lock, is nil")
	// ErrUnsettled: each time the roots were locked, the parents had changed meanwhile.
	ErrUnsettled = errors.New("its parents keep changing")
)

// GraphError is an error about a node of a graph. Its cause is one of the errors above, an
// [*InvalidError] for a graph that is too large or for a scope or key that is invalid in the name of a
// lock, or the error of a [Lockable].
type GraphError struct {
	Path  []string // names from the object to lock to the node with the error, or to its child if it has no name
	Cause error
}

func (e *GraphError) Error() string {
	if len(e.Path) == 0 {
		return "lock graph: " + e.Cause.Error()
	}
	return "lock graph: " + strings.Join(e.Path, " → ") + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *GraphError) Unwrap() error { return e.Cause }

const (
	maxNodes  = 10_000 // of a graph: with more, a Lockable probably makes up new parents endlessly
	maxRounds = 8      // how many times Acquire locks the roots before it gives up because they keep changing
)

// Graph locks objects that depend on each other. It locks only roots: it follows the parents of an
// object until it reaches objects without parents. So two workers on parts of the same whole exclude
// each other, whichever parts they start from. The names of the locks are scope and key of the roots:
// "order/17".
//
//	g := lock.NewGraph(locker, lock.WithWait(10*time.Second))
//	err := g.Do(ctx, order, func(ctx context.Context) error {
//		for _, item := range order.Items {
//			err := g.Do(ctx, item, …) // does not block: ctx holds the order
//		}
//	})
//
// Locking is re-entrant through the context, as in [Locker.Do]: a function that saves an item can
// lock it whether or not its caller already has.
//
// The parents are looked up before the lock is acquired, and again under it. If the roots have
// changed, the locks are released and the new roots are locked. After 8 rounds the error is
// [ErrUnsettled]. So the locked roots are the right ones, provided that all code that changes a
// parent holds both the old root and the new one: see [All].
//
// A Graph is a view of a Locker; there is nothing to close. It is safe for concurrent use.
type Graph struct {
	l    *Locker
	opts []Option
}

// NewGraph returns a Graph on l's locks. It panics if l is nil. opts apply to every acquisition.
// [WithWait] bounds each acquisition as a whole, including the rounds after a change of roots.
func NewGraph(l *Locker, opts ...Option) *Graph {
	if l == nil {
		panic("lock.NewGraph: the Locker is nil; make one with lock.New")
	}
	return &Graph{l, slices.Clone(opts)}
}

// Do acquires the roots of x, runs fn, and releases them. See [Locker.Do].
func (g *Graph) Do(ctx context.Context, x Lockable, fn func(context.Context) error, opts ...Option) error {
	s, err := g.Acquire(ctx, x, opts...)
	if err != nil {
		return err
	}
	return s.run(ctx, fn)
}

// Acquire acquires the roots of x. Errors are a [*GraphError], or those of [Locker.AcquireAll]. If
// the holder locked a root for another node, that node is in Why of a [*HeldError], and of the
// records of [Graph.Held].
func (g *Graph) Acquire(ctx context.Context, x Lockable, opts ...Option) (*Set, error) {
	r, err := resolve(ctx, x)
	if err != nil {
		return nil, err
	}
	p := newPatience(slices.Concat(g.opts, opts))
	for range maxRounds {
		s, err := g.l.acquireAll(ctx, r.roots, p.because(r))
		if err != nil {
			return nil, err
		}
		// rule: the roots were found without a lock. A parent may have changed during the wait.
		again, err := s.resolve(ctx, x)
		if err == nil && slices.Equal(again.roots, r.roots) {
			return s, nil
		}
		s.dismiss(ctx) // no work was done under it
		if err != nil {
			return nil, err
		}
		r = again
	}
	return nil, &GraphError{Path: r.start, Cause: ErrUnsettled}
}

// Roots returns the names of the locks that Acquire would acquire for x now, sorted.
func (g *Graph) Roots(ctx context.Context, x Lockable) ([]string, error) {
	r, err := resolve(ctx, x)
	return r.roots, err
}

// Held returns the held locks of a scope, or of all scopes if it is "". It includes the lock of a dead
// holder until the lock is taken over.
func (g *Graph) Held(ctx context.Context, scope string) ([]Record, error) {
	list, err := g.l.List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(r Record) bool {
		of, _, ok := strings.Cut(r.Name, "/")
		return !ok || scope != "" && of != scope || !r.Held()
	}), nil
}

// resolve finds the roots of x while the Set is held: LockNode gets a context that holds the locks,
// and resolve returns an error if one of them was lost meanwhile.
func (s *Set) resolve(ctx context.Context, x Lockable) (resolved, error) {
	ctx, stop := s.within(ctx)
	defer stop()
	r, err := resolve(ctx, x)
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = fmt.Errorf("lock %s: %w", strings.Join(r.start, ", "), cause)
	}
	return r, err
}

// because adds the node that the caller wants to lock to the text of WithWhy, unless the node is
// itself the root.
func (p patience) because(r resolved) patience {
	if slices.Equal(r.start, r.roots) {
		return p
	}
	var c config
	for _, o := range p.opts {
		o(&c)
	}
	why := "for " + strings.Join(r.start, ", ")
	if c.why != "" {
		why += ": " + c.why
	}
	if len(why) <= MaxWhy {
		p.opts = append(p.opts, WithWhy(why))
	}
	return p
}

// resolved has the names that a Lockable resolves to.
type resolved struct {
	start []string // of the object itself, or of all objects in an All; sorted
	roots []string // of the roots, which are locked instead; sorted
}

// resolve finds the roots of x. The error is a *GraphError.
func resolve(ctx context.Context, x Lockable) (resolved, error) {
	w := walk{ctx: ctx, done: make(map[string]bool)}
	err := w.visit(x)
	slices.Sort(w.r.roots)
	slices.Sort(w.r.start)
	w.r.start = slices.Compact(w.r.start)
	return w.r, err
}

// walk traverses a graph, depth first.
type walk struct {
	ctx  context.Context
	path []string        // names from the start to here
	done map[string]bool // false: on the path, so meeting it again is a cycle; true: finished
	r    resolved
}

// visit adds the roots of x. The parents of a node are visited once, even if several paths reach it.
func (w *walk) visit(x Lockable) error {
	if err := endOf(w.ctx); err != nil {
		return w.fail(err)
	}
	if isNil(x) {
		return w.fail(ErrNilParent)
	}
	n, err := x.LockNode(w.ctx)
	if err != nil {
		return w.fail(err)
	}
	if _, ok := x.(all); ok {
		if len(n.Parents) == 0 {
			return w.fail(&InvalidError{What: "lock.All", Value: "()", Problem: "there is nothing to lock"})
		}
		return w.each(n.Parents)
	}
	if err := n.check(); err != nil {
		return w.fail(err)
	}
	name := n.Name()
	if len(w.path) == 0 {
		w.r.start = append(w.r.start, name)
	}
	done, met := w.done[name]
	if done {
		return nil
	}
	w.path = append(w.path, name)
	switch {
	case met:
		w.path = w.path[slices.Index(w.path, name):]
		return w.fail(ErrCycle)
	case len(w.done) == maxNodes:
		return w.fail(&InvalidError{What: "lock graph", Value: "of " + w.r.start[0], Problem: fmt.Sprintf(
			"it has more than %d nodes; does a Lockable make up new parents?", maxNodes)})
	case len(n.Parents) == 0:
		w.r.roots = append(w.r.roots, name)
	}
	w.done[name] = false
	if err := w.each(n.Parents); err != nil {
		return err
	}
	w.done[name] = true
	w.path = w.path[:len(w.path)-1]
	return nil
}

func (w *walk) each(xs []Lockable) error {
	for _, x := range xs {
		if err := w.visit(x); err != nil {
			return err
		}
	}
	return nil
}

// fail adds the path to an error, so that the caller sees which chain of parents leads to the node.
func (w *walk) fail(err error) error { return &GraphError{Path: slices.Clone(w.path), Cause: err} }

// check accepts a scope and key that form an unambiguous and valid lock name.
func (n Node) check() error {
	switch {
	case n.Scope == "":
		return &InvalidError{What: "scope", Value: `""`, Problem: "it is empty (key " + quote(n.Key) + ")"}
	case strings.Contains(n.Scope, "/"):
		return &InvalidError{What: "scope", Value: quote(n.Scope), Problem: "it has a slash, which separates scope and key"}
	case n.Key == "":
		return &InvalidError{What: "key", Value: `""`, Problem: "it is empty (scope " + quote(n.Scope) + ")"}
	}
	return checkName(n.Name())
}

// isNil also reports a nil pointer in an interface, the usual form of a missing parent.
func isNil(x Lockable) bool {
	if x == nil {
		return true
	}
	v := reflect.ValueOf(x)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
