// Command order-graph locks objects that depend on each other: an Order has OrderItems, and each of those has a JobFlow.
//
//	JobFlow 1 ──► OrderItem 1 ──► Order 1 ◄── OrderItem 2
//
// Different systems change different parts, and each change of a part changes the whole order: its total. Two
// processes, P1 and P2, do so concurrently in the four races of the article and one more, three times each:
//
//	without    no lock at all
//	each       each process locks the object it works on, by the object's own name
//	graph      each process locks the object it works on through a [lock.Graph], which locks the roots: the order
//
// A change reads the total, takes a while, and writes it. When two changes overlap, one is lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "order-graph:", err)
		os.Exit(1)
	}
}

// The objects. In an application they are rows or documents, and LockNode looks up their current parents.

type order struct{ id string }

type orderItem struct {
	id    string
	order *order
}

type jobFlow struct {
	id   string
	item *orderItem
}

func (o *order) LockNode(context.Context) (lock.Node, error) {
	return lock.Node{Scope: "order", Key: o.id}, nil
}

func (i *orderItem) LockNode(context.Context) (lock.Node, error) {
	return lock.Node{Scope: "order-item", Key: i.id, Parents: []lock.Lockable{i.order}}, nil
}

func (f *jobFlow) LockNode(context.Context) (lock.Node, error) {
	return lock.Node{Scope: "job-flow", Key: f.id, Parents: []lock.Lockable{f.item}}, nil
}

var (
	order1 = &order{"1"}
	item1  = &orderItem{"1", order1}
	item2  = &orderItem{"2", order1}
	flow1  = &jobFlow{"1", item1}
)

// locking is a way to run fn under the lock of an object.
type locking func(ctx context.Context, l *lock.Locker, x lock.Lockable, fn func(context.Context) error) error

const wait = 10 * time.Second // how long to wait for a lock

func without(ctx context.Context, _ *lock.Locker, _ lock.Lockable, fn func(context.Context) error) error {
	return fn(ctx)
}

func each(ctx context.Context, l *lock.Locker, x lock.Lockable, fn func(context.Context) error) error {
	n, err := x.LockNode(ctx)
	if err != nil {
		return err
	}
	lease, err := l.Acquire(ctx, n.Name(), lock.WithWait(wait))
	if err != nil {
		return err
	}
	return errors.Join(fn(lease.Context()), lease.Release(ctx))
}

func graph(ctx context.Context, l *lock.Locker, x lock.Lockable, fn func(context.Context) error) error {
	return lock.NewGraph(l, lock.WithWait(wait)).Do(ctx, x, fn)
}

// races lists the objects that P1 and P2 lock.
var races = []struct {
	title  string
	p1, p2 lock.Lockable
}{
	{"1  same object: order and order", order1, order1},
	{"2  root and child: order and item", order1, item1},
	{"3  child and child: item and item", item1, item1},
	{"   two children: job flow 1 and item 2", flow1, item2},
}

// total is the total of the order.
type total struct {
	mu     sync.Mutex
	n      int
	inside int           // changes in progress
	met    chan struct{} // closed when there are two
}

// change reads the total, takes a while, and writes it. It stops waiting when another change is in progress, which is the worst case.
func (t *total) change(context.Context) error {
	t.mu.Lock()
	n := t.n
	if t.inside++; t.inside == 2 {
		close(t.met)
	}
	t.mu.Unlock()
	select {
	case <-t.met:
	case <-time.After(500 * time.Millisecond):
	}
	t.mu.Lock()
	t.n = n + 1
	t.inside--
	t.mu.Unlock()
	return nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("order-graph", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
	flags.Parse(args)
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flags.Arg(0))
		os.Exit(2)
	}
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if *url == "" {
		*url = "sqlite://" + filepath.Join(dir, "fencepost.db")
	}
	var p [2]*lock.Locker // the lockers of P1 and P2
	for i := range p {
		b, err := fencepost.Open(ctx, *url)
		if err != nil {
			return err
		}
		defer b.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is held any more
		p[i] = b.Locker
	}

	fmt.Fprintf(out, format, "race of P1 and P2", "without", "each", "graph")
	for _, r := range races {
		err := row(out, r.title, func(way locking) (string, error) { return race(ctx, p, way, r.p1, r.p2) })
		if err != nil {
			return err
		}
	}
	err = row(out, "4  nested: order and order", func(way locking) (string, error) { return nested(ctx, p[0], way) })
	if err != nil {
		return err
	}
	return administration(ctx, p, out)
}

const format = "%-40s  %-16s  %-16s  %s\n"

// row prints the result of each way of locking.
func row(out io.Writer, title string, try func(locking) (string, error)) error {
	results := []any{title}
	for _, way := range []locking{without, each, graph} {
		result, err := try(way)
		if err != nil {
			return err
		}
		results = append(results, result)
	}
	fmt.Fprintf(out, format, results...)
	return nil
}

// race lets P1 and P2 change the total concurrently.
func race(ctx context.Context, p [2]*lock.Locker, way locking, objects ...lock.Lockable) (string, error) {
	var (
		t    = total{met: make(chan struct{})}
		errs [2]error
		g    sync.WaitGroup
	)
	for i, l := range p {
		g.Go(func() { errs[i] = way(ctx, l, objects[i], t.change) })
	}
	g.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return "", err
	}
	if t.n < 2 {
		return "a change lost", nil
	}
	return "ok", nil
}

// nested locks the order, and then again inside, like a function that saves an order and does not know whether its caller holds the lock.
func nested(ctx context.Context, l *lock.Locker, way locking) (string, error) {
	t := total{met: make(chan struct{})}
	err := way(ctx, l, order1, func(ctx context.Context) error {
		return errors.Join(t.change(ctx), way(ctx, l, order1, t.change))
	})
	if held, ok := errors.AsType[*lock.HeldError](err); ok && held.Own {
		return "waits for itself", nil
	}
	return "ok", err
}

// administration shows what other processes see while P1 has locked the job flow.
func administration(ctx context.Context, p [2]*lock.Locker, out io.Writer) error {
	p1, p2 := lock.NewGraph(p[0], lock.WithWhy("reschedule")), lock.NewGraph(p[1], lock.WithWait(200*time.Millisecond))
	return p1.Do(ctx, flow1, func(context.Context) error {
		held, err := p2.Held(ctx, "order")
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "\nheld while P1 works on job flow 1:")
		for _, r := range held {
			fmt.Fprintf(out, "  %s  token %d  by %v  %s\n", r.Name, r.Token, r.Hold.Owner, r.Hold.Why)
		}
		err = p2.Do(ctx, item2, func(context.Context) error { return errors.New("P2 is inside as well") })
		if !errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("P2 should not get in: %v", err)
		}
		fmt.Fprintf(out, "P2 is told: %v\n", err)

		cycle := &loop{"a", &loop{"b", nil}}
		cycle.next.next = cycle
		_, err = p2.Roots(ctx, cycle)
		if !errors.Is(err, lock.ErrCycle) {
			return fmt.Errorf("a cycle should be an error: %v", err)
		}
		fmt.Fprintf(out, "a cycle: %v\n", err)
		return nil
	})
}

// loop is an object that is, by mistake, its own ancestor.
type loop struct {
	id   string
	next *loop
}

func (l *loop) LockNode(context.Context) (lock.Node, error) {
	return lock.Node{Scope: "loop", Key: l.id, Parents: []lock.Lockable{l.next}}, nil
}
