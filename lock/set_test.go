package lock_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// free checks that the names are not held.
func (w *world) free(names ...string) {
	w.Helper()
	synctest.Wait()
	for _, name := range names {
		if r, ok := w.mem.Get(name); ok && r.Hold != nil {
			w.Errorf("%s is still held", name)
		}
	}
}

// held checks that the names are held.
func (w *world) held(names ...string) {
	w.Helper()
	for _, name := range names {
		if r, ok := w.mem.Get(name); !ok || r.Hold == nil {
			w.Errorf("%s is not held", name)
		}
	}
}

// takeAway removes the hold of name, as an operator would.
func (w *world) takeAway(name string) {
	w.mem.Edit(name, func(r *lock.Record) bool {
		r.Hold, r.Version = nil, lock.NewVersion()
		return true
	})
}

func nothing(context.Context) error { return nil }

func TestDoRunsUnderTheLockAndReleasesIt(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		type key struct{}
		ctx, cancel := context.WithDeadline(context.WithValue(w.Context(), key{}, "v"), time.Now().Add(time.Hour))
		defer cancel()
		failed := errors.New("fn failed")
		err := l.Do(ctx, "n", func(ctx context.Context) error {
			w.refused(other)
			if lock.From(ctx)["n"] == 0 {
				t.Error("fn's context does not hold the lock")
			}
			if _, ok := ctx.Deadline(); !ok || ctx.Value(key{}) != "v" {
				t.Error("fn's context lacks the deadline and values of the caller's")
			}
			return failed
		}, lock.WithWhy("a test"))
		if err != failed {
			t.Errorf("got %v, want fn's error unchanged", err)
		}
		w.free("n")
		if held := lock.From(ctx); len(held) != 0 {
			t.Errorf("the caller's context holds %v", held)
		}
		w.must(l.Do(ctx, "n", nothing))
	})
}

func TestDoDoesNotRunWithoutTheLock(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		w.acquire(other, lock.WithWhy("its own business"))
		err := l.Do(w.Context(), "n", func(context.Context) error {
			t.Error("fn was called")
			return nil
		}, lock.WithWait(time.Second))
		if !errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), "its own business") {
			t.Errorf("got %v", err)
		}
	})
}

func TestDoReleasesWhenFnPanics(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		func() {
			defer func() {
				if r := recover(); r != "oops" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = l.Do(w.Context(), "n", func(context.Context) error { panic("oops") })
		}()
		w.free("n")
	})
}

func TestDoReportsALoss(t *testing.T) {
	for _, test := range []struct {
		name string
		fn   func(ctx context.Context) error
	}{
		{"fn notices and says so", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }},
		{"fn notices and says something else", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		{"fn notices nothing", func(context.Context) error { time.Sleep(lease); return nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(w *world) {
				l := w.locker(lock.Options{})
				err := l.Do(w.Context(), "n", func(ctx context.Context) error {
					w.takeAway("n")
					return test.fn(ctx)
				})
				if _, ok := errors.AsType[*lock.LostError](err); !ok || strings.Count(err.Error(), "was lost") != 1 {
					t.Errorf("got %v, want the LostError, once", err)
				}
			})
		})
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(w.Context(), 3*time.Second, cause)
		defer cancel()
		w.mem.Inject(only(locktest.Release, locktest.Fault{Request: time.Second}))
		began := w.now()
		err := l.Do(ctx, "n", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		if err != cause {
			t.Errorf("got %v, want the cause alone", err)
		}
		w.between("Do", w.now()-began, 3*time.Second, 3*time.Second) // it does not wait for the slow release
		w.held("n")
		time.Sleep(time.Second)
		w.free("n")
	})
}

func TestDoIsReentrantThroughTheContext(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		var tokens []int64
		var nest func(depth int) func(context.Context) error
		nest = func(depth int) func(context.Context) error {
			return func(ctx context.Context) error {
				tokens = append(tokens, lock.From(ctx)["n"])
				if depth == 0 {
					return nil
				}
				err := l.Do(ctx, "n", nest(depth-1))
				w.held("n") // only the outermost releases
				return err
			}
		}
		w.must(l.Do(w.Context(), "n", nest(100)))
		w.free("n")
		if slices.Min(tokens) != slices.Max(tokens) || len(tokens) != 101 {
			t.Errorf("tokens %v: want 101 times the same", tokens)
		}
		if n := w.mem.Calls(locktest.Acquire) + w.mem.Calls(locktest.Create); n > 2 {
			t.Errorf("%d operations to acquire one lock", n)
		}
	})
}

func TestTheLastUserOfASharedContextReleases(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		var g sync.WaitGroup
		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error {
			for i := range 5 {
				started := make(chan struct{})
				g.Go(func() {
					// The lock outlives the outer context: this goroutine still uses it.
					err := l.Do(ctx, "n", func(context.Context) error {
						close(started)
						time.Sleep(time.Duration(i+1) * time.Second)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
				<-started
			}
			return nil
		}))
		w.refused(other)
		time.Sleep(4500 * time.Millisecond)
		w.refused(other)
		g.Wait()
		w.free("n")
	})
}

func TestNestedDoNeedsALiveContext(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error {
			enough := errors.New("enough")
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(enough)
			err := l.Do(ctx, "n", func(context.Context) error {
				t.Error("fn was called")
				return nil
			})
			if !errors.Is(err, enough) || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			return nil
		}))
	})
}

// A context that is used after its lock was released holds no lock.
func TestAStaleContextAcquiresAnew(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		var stale context.Context
		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error { stale = ctx; return nil }))
		if held := lock.From(stale); len(held) != 0 {
			t.Errorf("it holds %v", held)
		}
		s, err := l.AcquireAll(context.WithoutCancel(stale), []string{"n"})
		w.must(err)
		w.held("n")
		w.must(s.Release(w.Context()))
		w.free("n")
	})
}

// Work under a lost lock must not acquire it again and continue as if nothing had happened.
func TestNestedDoFailsAfterALoss(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		err := l.Do(w.Context(), "n", func(ctx context.Context) error {
			w.takeAway("n")
			<-ctx.Done()
			if held := lock.From(ctx); len(held) != 0 {
				t.Errorf("a lost lock is held: %v", held)
			}
			for _, c := range []context.Context{ctx, context.WithoutCancel(ctx)} {
				err := l.Do(c, "n", func(context.Context) error {
					t.Error("fn was called")
					return nil
				})
				if !errors.Is(err, lock.ErrLost) {
					t.Errorf("nested: got %v", err)
				}
			}
			return nil
		})
		if !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
	})
}

// A reader that becomes a writer would wait for the other readers, and one of those might do the same.
func TestNestedDoDoesNotMakeASharedLockExclusive(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		var stale context.Context
		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error {
			stale = ctx
			w.must(l.Do(ctx, "n", nothing, lock.WithShared()))
			if err := l.Do(ctx, "n", nothing); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("exclusive inside shared: got %v", err)
			}
			return nil
		}, lock.WithShared()))
		w.must(l.Do(context.WithoutCancel(stale), "n", nothing))
		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error {
			return l.Do(ctx, "n", nothing, lock.WithShared()) // a writer may read
		}))
	})
}

func TestAnotherStoresLockOfTheSameNameIsAnotherLock(t *testing.T) {
	virtually(t, func(w *world) {
		l, elsewhere := w.locker(lock.Options{}), newWorld(w.TB)
		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error {
			return elsewhere.locker(lock.Options{}).Do(ctx, "n", func(context.Context) error {
				w.held("n")
				elsewhere.held("n")
				return nil
			})
		}))
	})
}

// Acquire is not re-entrant: under a context that holds the lock it would wait for its own caller, so it fails at once.
func TestAcquireUnderAContextThatHoldsTheLock(t *testing.T) {
	virtually(t, func(w *world) {
		l, elsewhere := w.locker(lock.Options{}), w.locker(lock.Options{})
		fails := func(ctx context.Context, opts ...lock.Option) {
			t.Helper()
			begin := w.now()
			_, err := l.Acquire(ctx, "n", opts...)
			if held, ok := errors.AsType[*lock.HeldError](err); !ok || !held.Own || held.Why != "export" || held.Token == 0 {
				t.Errorf("got %v, want a HeldError that says it is us", err)
			}
			w.between("failed after", w.now()-begin, 0, 0)
		}
		var after context.Context
		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error {
			fails(ctx)
			fails(ctx, lock.WithShared())
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := elsewhere.Acquire(short, "n"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("another Locker: %v, want it to wait", err)
			}
			after = context.WithoutCancel(ctx)
			return nil
		}, lock.WithWhy("export")))
		le, err := l.Acquire(after, "n")
		w.must(err)
		w.must(le.Release(w.Context()))

		w.must(l.Do(w.Context(), "n", func(ctx context.Context) error {
			fails(ctx)
			le, err := l.Acquire(ctx, "n", lock.WithShared()) // a share of its own
			w.must(err)
			return le.Release(ctx)
		}, lock.WithShared(), lock.WithWhy("export")))
	})
}

func TestAcquireAllAcquiresInOrderAndReleasesInReverse(t *testing.T) {
	virtually(t, func(w *world) {
		var order []string
		w.mem.Observe(func(op locktest.Op, r lock.Record) {
			switch op {
			case locktest.Create:
				order = append(order, "+"+r.Name)
			case locktest.Release:
				order = append(order, "-"+r.Name)
			}
		})
		l := w.locker(lock.Options{})
		names := []string{"c", "a", "b", "a"}
		s, err := l.AcquireAll(w.Context(), names)
		w.must(err)
		tokens := s.Tokens()
		if got := slices.Sorted(maps.Keys(tokens)); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("tokens of %v", got)
		}
		if s.Token("b") == 0 || s.Token("b") != tokens["b"] || s.Token("d") != 0 {
			t.Error("Token and Tokens disagree")
		}
		if !maps.Equal(lock.From(s.Context()), tokens) {
			t.Errorf("From(Context) = %v, want %v", lock.From(s.Context()), tokens)
		}
		w.must(s.Check(time.Second))
		w.must(s.Release(w.Context()))
		w.must(s.Release(w.Context())) // a second call does no harm
		if cause := context.Cause(s.Context()); cause != lock.ErrReleased {
			t.Errorf("the context ended with %v", cause)
		}
		if err := s.Check(0); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("Check after Release: %v", err)
		}
		if want := "+a +b +c -c -b -a"; strings.Join(order, " ") != want {
			t.Errorf("order %v, want %v", order, want)
		}
		if !slices.Equal(names, []string{"c", "a", "b", "a"}) {
			t.Error("the caller's names were changed")
		}
	})
}

func TestAcquireAllHoldsAllOrNothing(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		_, err := other.Acquire(w.Context(), "b")
		w.must(err)
		began := w.now()
		_, err = l.AcquireAll(w.Context(), []string{"a", "b", "c"}, lock.WithWait(2*time.Second))
		if held, ok := errors.AsType[*lock.HeldError](err); !ok || held.Name != "b" {
			t.Errorf("got %v", err)
		}
		w.between("the wait", w.now()-began, 2*time.Second, 2*time.Second)
		w.free("a", "c")

		for _, bad := range [][]string{nil, {}, {"a", ""}, {"a", strings.Repeat("x", lock.MaxName+1)}} {
			if _, err := l.AcquireAll(w.Context(), bad); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("%d names: got %v", len(bad), err)
			}
		}
		if _, err := l.AcquireAll(w.Context(), []string{"a"}, lock.WithWait(-1)); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("a negative wait: got %v", err)
		}
		w.free("a")
	})
}

// WithWait bounds the whole acquisition, not each name.
func TestAcquireAllWaitsOnce(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		names := []string{"a", "b", "c"}
		s, err := other.AcquireAll(w.Context(), names)
		w.must(err)
		g := releaseOneByOne(w, other, s, names, time.Second)
		began := w.now()
		_, err = l.AcquireAll(w.Context(), names, lock.WithWait(2500*time.Millisecond))
		if held, ok := errors.AsType[*lock.HeldError](err); !ok || held.Name != "c" {
			t.Errorf("got %v", err)
		}
		w.between("the wait", w.now()-began, 2500*time.Millisecond, 2500*time.Millisecond)
		g.Wait()
		w.free(names...)
	})
}

// releaseOneByOne replaces a Set with leases of its names that are released in order, one every d.
func releaseOneByOne(w *world, l *lock.Locker, s *lock.Set, names []string, d time.Duration) *sync.WaitGroup {
	w.must(s.Release(w.Context()))
	var g sync.WaitGroup
	for i, name := range names {
		le, err := l.Acquire(w.Context(), name)
		w.must(err)
		g.Go(func() {
			time.Sleep(time.Duration(i+1) * d)
			if err := le.Release(w.Context()); err != nil {
				w.Error(err)
			}
		})
	}
	return &g
}

func TestAcquireAllFailsWhenOneIsLostWhileAnotherIsAwaited(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		_, err := other.Acquire(w.Context(), "b")
		w.must(err)
		time.AfterFunc(10*time.Second, func() { w.takeAway("a") })
		_, err = l.AcquireAll(w.Context(), []string{"a", "b"})
		if lost, ok := err.(*lock.LostError); !ok || lost.Name != "a" {
			t.Errorf("got %v, want the LostError itself", err)
		}
		w.between("the wait", w.now(), 10*time.Second, 10*time.Second+lease/5)
	})
}

func TestTheContextOfASetEndsWhenAnyLockIsLost(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		virtually(t, func(w *world) {
			l := w.locker(lock.Options{})
			s, err := l.AcquireAll(w.Context(), []string{"a", "b", "c"})
			w.must(err)
			w.takeAway(name)
			<-s.Context().Done()
			lost, ok := errors.AsType[*lock.LostError](context.Cause(s.Context()))
			if !ok || lost.Name != name {
				t.Errorf("the context ended with %v", context.Cause(s.Context()))
			}
			if err := s.Release(w.Context()); !errors.Is(err, lost) {
				t.Errorf("release: got %v", err)
			}
			w.free("a", "b", "c")
		})
	}
}

// The loss of a lock of the outer context ends the inner context, as the loss of its own lock does.
func TestTheContextOfANestedSetEndsWithTheOuterLock(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		outer, err := l.AcquireAll(w.Context(), []string{"a"})
		w.must(err)
		inner, err := l.AcquireAll(outer.Context(), []string{"a", "b"})
		w.must(err)
		if got := lock.From(inner.Context()); len(got) != 2 || got["a"] != outer.Token("a") {
			t.Errorf("the inner context holds %v", got)
		}
		w.takeAway("a")
		<-inner.Context().Done()
		if cause := context.Cause(inner.Context()); !errors.Is(cause, lock.ErrLost) {
			t.Errorf("the inner context ended with %v", cause)
		}
		if err := inner.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("release of the inner: %v", err)
		}
		if err := outer.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("release of the outer: %v", err)
		}
		w.free("a", "b")
	})
}

func TestClosingTheLockerEndsSets(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		_, err := other.Acquire(w.Context(), "b")
		w.must(err)
		s, err := l.AcquireAll(w.Context(), []string{"c"})
		w.must(err)
		time.AfterFunc(time.Second, func() { w.must(l.Close(w.Context())) })
		if _, err := l.AcquireAll(w.Context(), []string{"a", "b"}); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("got %v", err)
		}
		<-s.Context().Done()
		w.must(s.Release(w.Context()))
		if err := l.Do(context.WithoutCancel(s.Context()), "c", nothing); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("nested under a closed Locker: got %v", err)
		}
		w.free("a", "c")
	})
}

// If the store does not answer, the release of many locks takes no longer than the release of one.
func TestReleasingManyLocksOfADeadStoreTakesOneLease(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		var names []string
		for c := 'a'; c <= 'z'; c++ {
			names = append(names, string(c))
		}
		s, err := l.AcquireAll(w.Context(), names)
		w.must(err)
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
		began := w.now()
		if err := s.Release(context.Background()); err == nil {
			t.Error("no error")
		}
		w.between("release", w.now()-began, 0, lease+lock.OpTimeout(lease)+2*time.Second)
	})
}

// Overlapping Sets, acquired in any order of names by many processes, never deadlock.
func TestOverlappingSetsDoNotDeadlock(t *testing.T) {
	virtually(t, func(w *world) {
		names := []string{"a", "b", "c", "d", "e"}
		inside := make(map[string]int)
		var mu sync.Mutex
		var g sync.WaitGroup
		for i := range 5 {
			l := w.locker(lock.Options{})
			mine := slices.Concat(names[i:], names[:i])[:3]
			g.Go(func() {
				for range 20 {
					s, err := l.AcquireAll(w.Context(), mine, lock.WithWait(time.Hour))
					if err != nil {
						t.Error(err)
						return
					}
					for d := range 2 {
						mu.Lock()
						for _, n := range mine {
							if inside[n] += 1 - 2*d; inside[n] > 1 {
								t.Errorf("two hold %s", n)
							}
						}
						mu.Unlock()
						time.Sleep(time.Duration(1-d) * 10 * time.Millisecond)
					}
					if err := s.Release(w.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		g.Wait()
		w.free(names...)
	})
}

// If the store stops answering, the caller still returns when its wait ends: the locks already acquired are released in the
// background.
func TestAcquireAllEndsWithoutAnAnswerToTheRelease(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		_, err := other.Acquire(w.Context(), "b")
		w.must(err)
		w.mem.Inject(only(locktest.Release, locktest.Fault{LoseRequest: true}))
		began := w.now()
		_, err = l.AcquireAll(w.Context(), []string{"a", "b"}, lock.WithWait(2*time.Second))
		if held, ok := errors.AsType[*lock.HeldError](err); !ok || held.Name != "b" {
			t.Errorf("got %v", err)
		}
		w.between("the wait", w.now()-began, 2*time.Second, 2*time.Second+lease/5)
		w.mem.Inject(nil)
		_, err = other.Acquire(w.Context(), "a")
		w.must(err)
		w.between("the release", w.now()-began, 2*time.Second, 2*time.Second+lease)
	})
}
