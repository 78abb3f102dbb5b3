package lock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Lockable is anything that can be locked through a [Graph]: an order, an item of it, a job for
// that item. It may be locked by others, its parents; then whoever locks it locks those instead.
//
//	JobFlow ──► OrderItem ──► Order      to lock any of them is to lock the Order
//	        ──► Machine                  and, for a JobFlow, the Machine: both are roots
type Lockable interface {
	// LockNode says what this is and what locks it, as of now: it is called when something is
	// locked, and once more when the lock has been granted. An object that may have changed in
	// between should look its parents up again.
	LockNode(ctx context.Context) (Node, error)
}

// Node is how a [Lockable] describes itself. It is a Lockable itself, for what has nothing to look
// up.
type Node struct {
	Scope   string     // what kind of thing it is, such as "order"; no slash
	Key     string     // which one
	Parents []Lockable // what locks it; none: it is a root, and is locked itself
}

// Name is the name of the node's lock: "order/17".
func (n Node) Name() string { return n.Scope + "/" + n.Key }

// LockNode returns n.
func (n Node) LockNode(context.Context) (Node, error) { return n, nil }

// All is a Lockable that stands for all xs: to lock it is to lock the roots of each. It is how to
// give an item another parent: under the lock of the item and of the new parent.
func All(xs ...Lockable) Lockable { return all(slices.Clone(xs)) }

type all []Lockable

func (a all) LockNode(context.Context) (Node, error) { return Node{Parents: a}, nil }

// Errors about a graph. They come inside of a [*GraphError].
var (
	// ErrCycle: a node is its own parent, directly or through others.
	ErrCycle = errors.New("its parents form a cycle")
	// ErrNilParent: a parent, or what was to be locked, is nil.
	ErrNilParent = errors.New("a parent, or what is to be locked, is nil")
	// ErrUnsettled: each time the roots were locked, the parents had changed again.
	ErrUnsettled = errors.New("its parents keep changing")
)

// GraphError is about a node of a graph. It is its cause, which is one of the above, an
// [*InvalidError] for a scope or a key that cannot be in the name of a lock or a graph that is too
// large, or the error of a [Lockable].
type GraphError struct {
	Path  []string // names from what was to be locked to the node it is about, or to its child if it has no name
	Cause error
}

func (e *GraphError) Error() string {
	if len(e.Path) == 0 {
		return "lock graph: " + e.Cause.Error()
	}
	return "lock graph: " + strings.Join(e.Path, " → ") + ": " + e.Cause.Error()
}

// Unwrap makes the error its cause.
func (e *GraphError) Unwrap() error { return e.Cause }

const (
	maxNodes  = 10_000 // of a graph: more is a Lockable that makes up parents without end
	maxRounds = 8      // how often the roots may have changed when they are locked
)

// Graph locks objects that depend on each other. What is locked are the roots: the objects that are
// reached by going from parent to parent and have none. So two who work on parts of the same whole
// exclude each other, whichever parts they came by, and the names of the locks are scope and key of
// the roots: "order/17".
//
//	g := lock.NewGraph(locker, lock.WithWait(10*time.Second))
//	err := g.Do(ctx, order, func(ctx context.Context) error {
//		for _, item := range order.Items {
//			err := g.Do(ctx, item, …) // does not block: ctx holds the order
//		}
//	})
//
// Locking is re-entrant through the context, as in [Locker.Do]: a function that saves an item can
// lock it whether or not its caller has done so already.
//
// Parents are looked up when something is locked, and again under the lock. If the roots are not
// the same any more, what was locked is released and the new roots are locked, up to 8 times; then
// the error is [ErrUnsettled]. So the locked roots are the right ones as long as everybody who
// changes a parent holds the old root and the new one: [All].
//
// A Graph is a view of a Locker; it has nothing to close. Safe for concurrent use.
type Graph struct {
	l    *Locker
	opts []Option
}

// NewGraph returns a Graph on l's locks. opts are those of all acquisitions; WithWait bounds each
// including its repetitions.
func NewGraph(l *Locker, opts ...Option) *Graph { return &Graph{l, slices.Clone(opts)} }

// Do acquires x, runs fn, and releases. See [Locker.Do].
func (g *Graph) Do(ctx context.Context, x Lockable, fn func(context.Context) error, opts ...Option) error {
	s, err := g.Acquire(ctx, x, opts...)
	if err != nil {
		return err
	}
	return s.run(ctx, fn)
}

// Acquire acquires the roots of x. Errors are a [*GraphError], or those of [Locker.AcquireAll]. A
// [*HeldError] tells for which node, if not the root itself, the holder wanted the lock; so does
// [Graph.Held].
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
		// rule: what is locked was found without a lock. A parent may have changed while we waited for it.
		again, err := s.resolve(ctx, x)
		if err == nil && slices.Equal(again.roots, r.roots) {
			return s, nil
		}
		_ = s.Release(ctx) // nothing was done under it
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

// Held returns the held locks of a scope: who holds which, since when, and why. "" means all
// scopes. A holder that has died is shown until somebody takes its lock over.
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

// resolve is resolve under the Set.
func (s *Set) resolve(ctx context.Context, x Lockable) (resolved, error) {
	ctx, stop := s.within(ctx)
	defer stop()
	r, err := resolve(ctx, x)
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = fmt.Errorf("lock %s: %w", strings.Join(r.start, ", "), cause)
	}
	return r, err
}

// because adds to the reason for a lock for which node it was wanted.
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

// resolved is what became of a Lockable.
type resolved struct {
	start []string // what was to be locked: one, unless it was All
	roots []string // what is locked instead, sorted
}

func resolve(ctx context.Context, x Lockable) (resolved, error) {
	w := walk{ctx: ctx, done: make(map[string]bool)}
	err := w.visit(x)
	slices.Sort(w.r.roots)
	slices.Sort(w.r.start)
	w.r.start = slices.Compact(w.r.start)
	return w.r, err
}

// walk goes through a graph, depth first.
type walk struct {
	ctx  context.Context
	path []string        // names from the start to here
	done map[string]bool // of the names met: false while on the path
	r    resolved
}

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

func (w *walk) fail(err error) error { return &GraphError{Path: slices.Clone(w.path), Cause: err} }

// check: the name is unambiguous and can be that of a lock.
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

// isNil: a nil pointer in an interface is what a missing parent usually looks like.
func isNil(x Lockable) bool {
	if x == nil {
		return true
	}
	v := reflect.ValueOf(x)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
