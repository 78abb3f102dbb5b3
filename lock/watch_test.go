package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// watched is a store whose Watch runs a function until ctx ends.
type watched struct {
	lock.Store
	calls *atomic.Int64
	watch watchFunc
}

type watchFunc func(ctx context.Context, names chan<- string)

func (s watched) Watch(ctx context.Context) (<-chan string, error) {
	s.calls.Add(1)
	names := make(chan string)
	go func() {
		defer close(names)
		s.watch(ctx, names)
	}()
	return names, nil
}

// unwatchable is a store whose server has no change streams.
type unwatchable struct {
	lock.Store
	calls *atomic.Int64
}

func (s unwatchable) Watch(context.Context) (<-chan string, error) {
	s.calls.Add(1)
	return nil, errors.New("change streams are only supported on replica sets")
}

func send(ctx context.Context, names chan<- string, name string) {
	select {
	case names <- name:
	case <-ctx.Done():
	}
}

// Whatever hints a Watcher sends, waiters get the lock as soon as without it, and do not read much more; timely hints make
// them faster.
func TestHintsAreHints(t *testing.T) {
	for _, tc := range []struct {
		name   string
		watch  func(w *world) watchFunc
		within time.Duration // hand-off between processes
		reads  int           // per minute of waiting, at most
	}{
		{"never fires", func(*world) watchFunc {
			return func(ctx context.Context, _ chan<- string) { <-ctx.Done() }
		}, 250 * time.Millisecond, 1000},
		{"fires when it should", func(w *world) watchFunc {
			freed := make(chan string, 1000)
			w.mem.Observe(func(op locktest.Op, after lock.Record) {
				if op == locktest.Release {
					freed <- after.Name
				}
			})
			return func(ctx context.Context, names chan<- string) {
				for {
					select {
					case name := <-freed:
						send(ctx, names, name)
					case <-ctx.Done():
						return
					}
				}
			}
		}, 50 * time.Millisecond, 1000},
		{"fires always", func(*world) watchFunc {
			return func(ctx context.Context, names chan<- string) {
				for ctx.Err() == nil {
					send(ctx, names, "n")
					pauseFor(ctx, time.Millisecond)
				}
			}
		}, 55 * time.Millisecond, 60 * 60},
		{"fires wrongly", func(*world) watchFunc {
			return func(ctx context.Context, names chan<- string) {
				for i := 0; ctx.Err() == nil; i++ {
					send(ctx, names, fmt.Sprint("other ", i))
					send(ctx, names, "")
					pauseFor(ctx, time.Millisecond)
				}
			}
		}, 250 * time.Millisecond, 1000},
		{"breaks down at once", func(*world) watchFunc {
			return func(context.Context, chan<- string) {}
		}, 250 * time.Millisecond, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			virtually(t, func(w *world) {
				var calls atomic.Int64
				watch := tc.watch(w)
				holder := w.locker(lock.Options{})
				w.wrap = func(s lock.Store) lock.Store { return watched{s, &calls, watch} }
				waiter := w.locker(lock.Options{})
				w.wrap = nil
				for range 2 {
					le := w.acquire(holder)
					var wg sync.WaitGroup
					var got time.Duration
					wg.Go(func() {
						next := w.acquire(waiter)
						got = w.now()
						w.must(next.Release(w.Context()))
					})
					before := w.mem.Calls(locktest.Read)
					time.Sleep(time.Minute)
					w.between("reads per minute", time.Duration(w.mem.Calls(locktest.Read)-before), 240, time.Duration(tc.reads))
					released := w.now()
					w.must(le.Release(w.Context()))
					wg.Wait()
					w.between("hand-off", got-released, 0, tc.within)
				}
				w.between("calls of Watch in two minutes", time.Duration(calls.Load()), 1, 2*60)
			})
		})
	}
}

func TestAStoreThatCannotWatchIsAskedOnce(t *testing.T) {
	virtually(t, func(w *world) {
		var calls atomic.Int64
		holder := w.locker(lock.Options{})
		w.wrap = func(s lock.Store) lock.Store { return unwatchable{s, &calls} }
		l := w.locker(lock.Options{})
		w.must(w.acquire(l).Release(w.Context()))
		if calls.Load() != 0 {
			t.Error("Watch was called although no goroutine waits")
		}
		le := w.acquire(holder)
		for range 3 {
			if _, err := l.Acquire(w.Context(), "n", lock.WithWait(time.Second)); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("got %v", err)
			}
		}
		time.Sleep(5 * time.Minute)
		if calls.Load() != 1 {
			t.Errorf("Watch was called %d times", calls.Load())
		}
		w.must(le.Release(w.Context()))
	})
}
