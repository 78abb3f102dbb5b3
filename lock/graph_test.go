package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// thing is a Lockable whose parents can change.
type thing struct {
	scope, key string

	mu      sync.Mutex
	parents []lock.Lockable
	looked  int
	err     error
}

func newThing(scope, key string, parents ...lock.Lockable) *thing {
	return &thing{scope: scope, key: key, parents: parents}
}

func (x *thing) LockNode(context.Context) (lock.Node, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.looked++
	return lock.Node{Scope: x.scope, Key: x.key, Parents: x.parents}, x.err
}

func (x *thing) moveTo(parents ...lock.Lockable) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.parents = parents
}

// shop is the example graph: Order 1 ─► N OrderItem 1 ─► 1 JobFlow.
type shop struct {
	order, item, item2, flow *thing
}

func newShop() shop {
	order := newThing("order", "1")
	item := newThing("order-item", "1", order)
	return shop{order, item, newThing("order-item", "2", order), newThing("job-flow", "1", item)}
}

func TestGraphLocksTheRoots(t *testing.T) {
	s := newShop()
	machine := newThing("machine", "m/7") // a key may have slashes
	diamond := newThing("d", "1", s.item, s.item2, s.flow)
	for _, test := range []struct {
		name string
		x    lock.Lockable
		want []string
	}{
		{"a root", s.order, []string{"order/1"}},
		{"a child", s.item, []string{"order/1"}},
		{"a grandchild", s.flow, []string{"order/1"}},
		{"two roots", newThing("job", "1", s.flow, machine), []string{"machine/m/7", "order/1"}},
		{"one root on many ways", diamond, []string{"order/1"}},
		{"several", lock.All(s.flow, machine, lock.All(s.item2)), []string{"machine/m/7", "order/1"}},
		{"All as a parent", newThing("x", "1", lock.All(s.flow, machine)), []string{"machine/m/7", "order/1"}},
		{"a plain node", lock.Node{Scope: "n", Key: "1", Parents: []lock.Lockable{lock.Node{Scope: "n", Key: "0"}}}, []string{"n/0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(w *world) {
				g := lock.NewGraph(w.locker(lock.Options{}))
				roots, err := g.Roots(w.Context(), test.x)
				w.must(err)
				if !slices.Equal(roots, test.want) {
					t.Errorf("roots %v, want %v", roots, test.want)
				}
				set, err := g.Acquire(w.Context(), test.x)
				w.must(err)
				if n := len(set.Tokens()); n != len(test.want) {
					t.Errorf("%d locks, want %d", n, len(test.want))
				}
				w.held(test.want...)
				w.must(set.Release(w.Context()))
				w.free(test.want...)
			})
		})
	}
}

// Processes that lock parts of the same order exclude each other; nested calls of one process do not.
func TestGraphRaces(t *testing.T) {
	s := newShop()
	for _, test := range []struct {
		name   string
		p1, p2 lock.Lockable
	}{
		{"1 same object", s.order, s.order},
		{"2 locked root, attempt to lock from child", s.order, s.item},
		{"3 locked root from child, attempt to lock from child", s.item, s.item},
		{"siblings", s.item, s.item2},
		{"grandchild and sibling", s.flow, s.item2},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(w *world) {
				p1 := lock.NewGraph(w.locker(lock.Options{}), lock.WithWait(time.Second))
				p2 := lock.NewGraph(w.locker(lock.Options{}), lock.WithWait(time.Second))
				w.must(p1.Do(w.Context(), test.p1, func(context.Context) error {
					began := w.now()
					err := p2.Do(w.Context(), test.p2, func(context.Context) error {
						t.Error("both are inside")
						return nil
					})
					if held, ok := errors.AsType[*lock.HeldError](err); !ok || held.Name != "order/1" {
						t.Errorf("P2 got %v", err)
					}
					w.between("P2's wait", w.now()-began, time.Second, time.Second)
					return nil
				}))
				w.must(p2.Do(w.Context(), test.p2, nothing)) // now it gets the lock
			})
		})
	}
	t.Run("4 nested", func(t *testing.T) {
		virtually(t, func(w *world) {
			g := lock.NewGraph(w.locker(lock.Options{}))
			var said []int
			w.must(g.Do(w.Context(), s.order, func(ctx context.Context) error {
				said = append(said, 1)
				return g.Do(ctx, s.order, func(ctx context.Context) error {
					said = append(said, 2)
					return g.Do(ctx, s.flow, func(context.Context) error {
						said = append(said, 3)
						w.held("order/1")
						return nil
					})
				})
			}))
			if !slices.Equal(said, []int{1, 2, 3}) || w.now() != 0 {
				t.Errorf("said %v after %v", said, w.now())
			}
			w.free("order/1")
		})
	})
}

// While P2 waits for the item's order, P1 moves the item to another order: P2 must end up with the lock of that one.
func TestGraphFollowsAParentThatChangedDuringTheWait(t *testing.T) {
	virtually(t, func(w *world) {
		p1, p2 := lock.NewGraph(w.locker(lock.Options{})), lock.NewGraph(w.locker(lock.Options{}))
		order1, order2 := newThing("order", "1"), newThing("order", "2")
		item := newThing("order-item", "1", order1)
		began := make(chan struct{})
		var g sync.WaitGroup
		g.Go(func() {
			err := p1.Do(w.Context(), lock.All(item, order2), func(context.Context) error {
				close(began)
				time.Sleep(10 * time.Second)
				item.moveTo(order2)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-began
		s, err := p2.Acquire(w.Context(), item)
		w.must(err)
		if s.Token("order/2") == 0 || s.Token("order/1") != 0 {
			t.Errorf("P2 holds %v, want order/2", s.Tokens())
		}
		g.Wait()
		w.free("order/1")
		w.must(s.Release(w.Context()))
	})
}

func TestGraphGivesUpOnParentsThatKeepChanging(t *testing.T) {
	virtually(t, func(w *world) {
		g := lock.NewGraph(w.locker(lock.Options{}))
		n := 0
		item := lockableFunc(func(context.Context) (lock.Node, error) {
			n++
			return lock.Node{Scope: "item", Key: "1", Parents: []lock.Lockable{newThing("order", fmt.Sprint(n))}}, nil
		})
		_, err := g.Acquire(w.Context(), item)
		if !errors.Is(err, lock.ErrUnsettled) || !strings.Contains(err.Error(), "item/1") {
			t.Errorf("got %v", err)
		}
		for i := range n {
			w.free(fmt.Sprintf("order/%d", i))
		}
	})
}

type lockableFunc func(context.Context) (lock.Node, error)

func (f lockableFunc) LockNode(ctx context.Context) (lock.Node, error) { return f(ctx) }

// A parent's lookup may itself take the lock that is being acquired: the second lookup holds it already.
func TestGraphLooksParentsUpUnderTheLock(t *testing.T) {
	virtually(t, func(w *world) {
		g := lock.NewGraph(w.locker(lock.Options{}), lock.WithWait(time.Second))
		var held []bool
		order := lockableFunc(func(ctx context.Context) (lock.Node, error) {
			held = append(held, lock.From(ctx)["order/1"] != 0)
			return lock.Node{Scope: "order", Key: "1"}, nil
		})
		w.must(g.Do(w.Context(), order, nothing))
		if !slices.Equal(held, []bool{false, true}) {
			t.Errorf("lookups under the lock: %v, want the second one", held)
		}
	})
}

func TestGraphRefusesWhatCannotBeLocked(t *testing.T) {
	a, b, c := newThing("a", "1"), newThing("b", "2"), newThing("c", "3")
	a.moveTo(b)
	b.moveTo(c)
	c.moveTo(a)
	self := newThing("self", "1")
	self.moveTo(self)
	endless := func(n int) lock.Lockable { return nil }
	endless = func(n int) lock.Lockable {
		return lockableFunc(func(context.Context) (lock.Node, error) {
			return lock.Node{Scope: "n", Key: fmt.Sprint(n), Parents: []lock.Lockable{endless(n + 1)}}, nil
		})
	}
	var missing *thing
	gone := errors.New("the order was deleted")
	broken := newThing("order", "1")
	broken.err = gone
	for _, test := range []struct {
		name  string
		x     lock.Lockable
		cause error
		says  string
	}{
		{"cycle", newThing("x", "0", a), lock.ErrCycle, "a/1 → b/2 → c/3 → a/1"},
		{"cycle of one", self, lock.ErrCycle, "self/1 → self/1"},
		{"nil", nil, lock.ErrNilParent, "nil"},
		{"nil parent", newThing("item", "1", nil), lock.ErrNilParent, "item/1"},
		{"nil pointer as a parent", newThing("item", "1", missing), lock.ErrNilParent, "item/1"},
		{"empty scope", newThing("", "1"), lock.ErrInvalid, "scope"},
		{"empty key", newThing("order", ""), lock.ErrInvalid, "key"},
		{"empty key of a parent", newThing("item", "1", newThing("order", "")), lock.ErrInvalid, "item/1"},
		{"slash in a scope", newThing("a/b", "1"), lock.ErrInvalid, "slash"},
		{"too long", newThing("order", strings.Repeat("x", lock.MaxName)), lock.ErrInvalid, "at most 255"},
		{"control character", newThing("order", "1\n"), lock.ErrInvalid, "control"},
		{"nothing", lock.All(), lock.ErrInvalid, "nothing"},
		{"nothing as a parent", newThing("item", "1", lock.All()), lock.ErrInvalid, "nothing"},
		{"endless", endless(0), lock.ErrInvalid, "10000"},
		{"lookup fails", newThing("item", "1", broken), gone, "item/1: the order was deleted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(w *world) {
				_, err := lock.NewGraph(w.locker(lock.Options{})).Acquire(w.Context(), test.x)
				if _, ok := errors.AsType[*lock.GraphError](err); !ok || !errors.Is(err, test.cause) {
					t.Fatalf("got %v, want a GraphError because of %v", err, test.cause)
				}
				if !strings.Contains(err.Error(), test.says) {
					t.Errorf("%q does not say %q", err, test.says)
				}
				if list, _ := w.store().List(w.Context()); len(list) != 0 {
					t.Errorf("it left %d locks behind", len(list))
				}
			})
		})
	}
}

func TestGraphLooksNobodyUpTwiceOnOneWay(t *testing.T) {
	virtually(t, func(w *world) {
		// 20 layers of two nodes, each with both nodes of the next layer as parents: a million paths to one root.
		root := newThing("layer", "root")
		layer := []lock.Lockable{root}
		for i := range 20 {
			layer = []lock.Lockable{newThing("layer", fmt.Sprint(i, "a"), layer...), newThing("layer", fmt.Sprint(i, "b"), layer...)}
		}
		roots, err := lock.NewGraph(w.locker(lock.Options{})).Roots(w.Context(), lock.All(layer...))
		w.must(err)
		if !slices.Equal(roots, []string{"layer/root"}) || root.looked > 2 {
			t.Errorf("roots %v, the root was looked up %d times", roots, root.looked)
		}
	})
}

// Administration: which locks are held, by which owner and why, in readable names.
func TestGraphTellsWhatIsHeld(t *testing.T) {
	virtually(t, func(w *world) {
		s := newShop()
		owner := lock.Process{Host: "app-1", PID: 7}
		g := lock.NewGraph(w.locker(lock.Options{Owner: owner}))
		job := newThing("job", "1", s.flow, newThing("machine", "7"))
		set, err := g.Acquire(w.Context(), job, lock.WithWhy("nightly run"))
		w.must(err)
		plain, err := w.locker(lock.Options{}).Acquire(w.Context(), "not-of-a-graph")
		w.must(err)
		for scope, want := range map[string][]string{
			"":      {"machine/7", "order/1"},
			"order": {"order/1"},
			"job":   {},
		} {
			list, err := g.Held(w.Context(), scope)
			w.must(err)
			names := []string{}
			for _, r := range list {
				names = append(names, r.Name)
				if r.Hold.Owner != owner || r.Hold.Why != "for job/1: nightly run" {
					t.Errorf("%s is held by %v, %q", r.Name, r.Hold.Owner, r.Hold.Why)
				}
			}
			if !slices.Equal(names, want) {
				t.Errorf("held of scope %q: %v, want %v", scope, names, want)
			}
		}
		_, err = lock.NewGraph(w.locker(lock.Options{}), lock.WithWait(time.Second)).Acquire(w.Context(), s.item2)
		if err == nil || !strings.Contains(err.Error(), `"order/1" is held by app-1/7: for job/1: nightly run`) {
			t.Errorf("got %v", err)
		}
		w.must(set.Release(w.Context()))
		w.must(plain.Release(w.Context()))
		if list, err := g.Held(w.Context(), ""); err != nil || len(list) != 0 {
			t.Errorf("after the release %v are held (%v)", list, err)
		}
	})
}

// The caller's reason is never lost, even if there is no room to add to it.
func TestGraphKeepsALongReason(t *testing.T) {
	virtually(t, func(w *world) {
		g := lock.NewGraph(w.locker(lock.Options{}))
		why := strings.Repeat("w", lock.MaxWhy)
		s, err := g.Acquire(w.Context(), newShop().item, lock.WithWhy(why))
		w.must(err)
		if r, _ := w.mem.Get("order/1"); r.Hold == nil || r.Hold.Why != why {
			t.Error("the reason was changed")
		}
		w.must(s.Release(w.Context()))
	})
}

// Options apply to the locks: callers that only read the order share it.
func TestGraphSharesWithReaders(t *testing.T) {
	virtually(t, func(w *world) {
		s := newShop()
		p1 := lock.NewGraph(w.locker(lock.Options{}), lock.WithShared())
		p2 := lock.NewGraph(w.locker(lock.Options{}), lock.WithWait(time.Second))
		w.must(p1.Do(w.Context(), s.item, func(ctx context.Context) error {
			w.must(p2.Do(w.Context(), s.order, nothing, lock.WithShared()))
			if err := p2.Do(w.Context(), s.item2, nothing); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("a writer got %v", err)
			}
			list, err := p2.Held(ctx, "order")
			if err != nil || len(list) != 1 || len(list[0].Holds()) != 1 || list[0].Holds()[0].Why != "for order-item/1" {
				t.Errorf("held: %+v, %v", list, err)
			}
			return nil
		}))
	})
}

func TestGraphNeedsALiveContext(t *testing.T) {
	virtually(t, func(w *world) {
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(w.Context())
		cancel(enough)
		err := lock.NewGraph(w.locker(lock.Options{})).Do(ctx, newShop().flow, nothing)
		if !errors.Is(err, enough) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// Many processes change two orders through all their parts, move an item back and forth, and nest. No change is lost.
func TestGraphUnderContention(t *testing.T) {
	virtually(t, func(w *world) {
		orders := []*thing{newThing("order", "1"), newThing("order", "2")}
		item := newThing("order-item", "1", orders[0])
		flow := newThing("job-flow", "1", item)
		home := 0 // of the item
		totals := make([]int, 2)
		change := func(i int) {
			n := totals[i]
			time.Sleep(time.Millisecond)
			totals[i] = n + 1
		}
		var g sync.WaitGroup
		const processes, turns = 4, 24
		for p := range processes {
			graph := lock.NewGraph(w.locker(lock.Options{}), lock.WithWait(time.Hour))
			g.Go(func() {
				for n := range turns {
					var err error
					switch (p + n) % 4 {
					case 0:
						err = graph.Do(w.Context(), orders[0], func(context.Context) error { change(0); return nil })
					case 1:
						err = graph.Do(w.Context(), flow, func(context.Context) error { change(home); return nil })
					case 2:
						err = graph.Do(w.Context(), item, func(ctx context.Context) error {
							return graph.Do(ctx, flow, func(context.Context) error { change(home); return nil })
						})
					case 3:
						err = graph.Do(w.Context(), lock.All(orders[0], orders[1]), func(context.Context) error {
							change(home)
							home = 1 - home
							item.moveTo(orders[home])
							return nil
						})
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		g.Wait()
		if sum := totals[0] + totals[1]; sum != processes*turns {
			t.Errorf("%d of %d changes survived", sum, processes*turns)
		}
	})
}

func TestAGraphNeedsALocker(t *testing.T) {
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, "lock.New") {
			t.Errorf("panicked with %q, want the remedy", r)
		}
	}()
	lock.NewGraph(nil)
}
