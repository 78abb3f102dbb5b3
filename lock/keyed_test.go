package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/lock"
)

func mustLock[K comparable](t *testing.T, k *lock.Keyed[K], key K) func() {
	t.Helper()
	unlock, err := k.Lock(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

func TestKeyedExcludesPerKey(t *testing.T) {
	var k lock.Keyed[int]
	var inside [4]atomic.Int32
	var counts [4]int // guarded by the lock of its index; the race detector checks this
	var g sync.WaitGroup
	for i := range 16 {
		g.Go(func() {
			for j := range 500 {
				key := (i + j) % 4
				unlock := mustLock(t, &k, key)
				if inside[key].Add(1) != 1 {
					t.Error("two goroutines hold the same key")
				}
				counts[key]++
				inside[key].Add(-1)
				unlock()
			}
		})
	}
	g.Wait()
	if total := counts[0] + counts[1] + counts[2] + counts[3]; total != 16*500 {
		t.Errorf("%d of %d increments survived", total, 16*500)
	}
	if n := k.Len(); n != 0 {
		t.Errorf("%d keys are still in use", n)
	}
}

func TestKeyedServesWaitersInOrderAndKeysDoNotMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k lock.Keyed[string]
		unlock := mustLock(t, &k, "a")
		var order []int
		var g sync.WaitGroup
		for i := range 5 {
			g.Go(func() {
				u := mustLock(t, &k, "a")
				order = append(order, i)
				u()
			})
			synctest.Wait() // until the goroutine waits
		}
		mustLock(t, &k, "b")() // another key is free meanwhile
		if _, ok := k.TryLock("a"); ok {
			t.Error("TryLock got a key that is held")
		}
		unlock()
		unlock() // a second call does no harm
		g.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4}) {
			t.Errorf("served in the order %v", order)
		}
		u, ok := k.TryLock("a")
		if !ok {
			t.Fatal("TryLock did not get a free key")
		}
		u()
		if k.Len() != 0 {
			t.Errorf("%d keys are still in use", k.Len())
		}
	})
}

func TestKeyedWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k lock.Keyed[string]
		unlock := mustLock(t, &k, "a")
		cause := errors.New("no more patience")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, cause)
		defer cancel()
		began := time.Now()
		if _, err := k.Lock(ctx, "a"); !errors.Is(err, cause) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if _, err := k.Lock(ctx, "free"); !errors.Is(err, cause) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an ended context got a lock: %v", err)
		}
		unlock()
		if k.Len() != 0 {
			t.Errorf("%d keys are still in use", k.Len())
		}
	})
}

// Keys that are not in use cost nothing, even after millions of them one after the other, or many at once.
func TestKeyedDoesNotLeak(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	n := 10_000_000
	if testing.Short() {
		n /= 20
	}
	var k lock.Keyed[int]
	before := heap()
	began := time.Now()
	for i := range n {
		unlock, err := k.Lock(context.Background(), i)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
	t.Logf("%d keys in %v, heap %+d bytes", n, time.Since(began), int64(heap())-int64(before))
	var unlocks []func()
	for i := range 100_000 {
		unlocks = append(unlocks, mustLock(t, &k, i))
	}
	for _, u := range unlocks {
		u()
	}
	unlocks = nil
	if k.Len() != 0 {
		t.Errorf("%d keys are still in use", k.Len())
	}
	if grown := int64(heap()) - int64(before); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(&k)
}

// Callers that give up leave the queue without disturbing it, even if their turn comes at that moment.
func TestKeyedSurvivesThoseWhoGiveUp(t *testing.T) {
	var k lock.Keyed[int]
	var inside atomic.Int32
	var locked, gaveUp atomic.Int64
	var g sync.WaitGroup
	for i := range 8 {
		g.Go(func() {
			for j := range 2000 {
				ctx, cancel := context.WithCancel(context.Background())
				if (i+j)%2 == 0 {
					go cancel()
				}
				unlock, err := k.Lock(ctx, 1)
				cancel()
				if err != nil {
					gaveUp.Add(1)
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two goroutines hold the same key")
				}
				locked.Add(1)
				inside.Add(-1)
				unlock()
			}
		})
	}
	g.Wait()
	if k.Len() != 0 || locked.Load() < 8*1000 {
		t.Errorf("%d keys in use, locked %d times, gave up %d times", k.Len(), locked.Load(), gaveUp.Load())
	}
}

// A caller that gives up after its turn has come, but before it notices, must pass the key on.
func TestKeyedIsNotLostWithThoseWhoGiveUp(t *testing.T) {
	var k lock.Keyed[int]
	for range 1000 {
		unlock := mustLock(t, &k, 1)
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if unlock, err := k.Lock(ctx, 1); err == nil {
				unlock()
			}
		}()
		runtime.Gosched() // usually it is waiting by now
		cancel()
		unlock() // usually before it runs
		<-gone
		if k.Len() != 0 {
			t.Fatal("the key stays locked, and nobody has it")
		}
	}
}

func TestKeyedDo(t *testing.T) {
	var k lock.Keyed[string]
	failed := errors.New("fn failed")
	if err := k.Do(t.Context(), "a", func() error {
		if _, ok := k.TryLock("a"); ok {
			t.Error("fn runs without the lock")
		}
		return failed
	}); err != failed {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = k.Do(t.Context(), "a", func() error { panic("oops") })
	}()
	if k.Len() != 0 {
		t.Error("the key is still locked")
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(failed)
	if err := k.Do(ended, "a", func() error { t.Error("fn was called"); return nil }); !errors.Is(err, failed) || !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: got %v", err)
	}
}

// A map never finds a NaN again: such a key would exclude nothing, and stay.
func TestKeyedRefusesNaN(t *testing.T) {
	var floats lock.Keyed[float64]
	var structs lock.Keyed[struct{ x float64 }]
	var any lock.Keyed[any]
	nan := math.NaN()
	for name, lockIt := range map[string]func() (func(), error){
		"float":  func() (func(), error) { return floats.Lock(t.Context(), nan) },
		"struct": func() (func(), error) { return structs.Lock(t.Context(), struct{ x float64 }{nan}) },
		"any":    func() (func(), error) { return any.Lock(t.Context(), nan) },
	} {
		if _, err := lockIt(); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), "use a key without NaN") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := floats.Do(t.Context(), nan, func() error { t.Error("fn was called"); return nil }); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("Do: %v", err)
	}
	if _, ok := floats.TryLock(nan); ok || floats.Len() != 0 {
		t.Errorf("TryLock: %v, and %d keys are in use", ok, floats.Len())
	}
}

// One key after the other, each used once: the cost of locking by id.
func BenchmarkKeyed(b *testing.B) {
	var k lock.Keyed[int]
	b.ReportAllocs()
	for i := range b.N {
		unlock, err := k.Lock(context.Background(), i)
		if err != nil {
			b.Fatal(err)
		}
		unlock()
	}
}

// All processors, on many keys or on one.
func BenchmarkKeyedParallel(b *testing.B) {
	for _, keys := range []int64{1, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			var k lock.Keyed[int64]
			var next atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					unlock, err := k.Lock(context.Background(), next.Add(1)%keys)
					if err != nil {
						b.Fatal(err)
					}
					unlock()
				}
			})
		})
	}
}
