package lock_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
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
	var counts [4]int // guarded by the lock of its index; the race detector watches
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
			synctest.Wait() // until it waits
		}
		mustLock(t, &k, "b")() // another key is free meanwhile
		if _, ok := k.TryLock("a"); ok {
			t.Error("TryLock got a key that is held")
		}
		unlock()
		unlock() // once more does no harm
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
		if _, err := k.Lock(ctx, "a"); !errors.Is(err, cause) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if _, err := k.Lock(ctx, "free"); !errors.Is(err, cause) {
			t.Errorf("an ended context got a lock: %v", err)
		}
		unlock()
		if k.Len() != 0 {
			t.Errorf("%d keys are still in use", k.Len())
		}
	})
}

// Keys that nobody uses cost nothing: not after millions of them one after the other, not after many at once.
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
	for i := range n {
		unlock, err := k.Lock(context.Background(), i)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
	var unlocks []func()
	for i := range 100_000 {
		unlocks = append(unlocks, mustLock(t, &k, i))
	}
	for _, u := range unlocks {
		u()
	}
	unlocks = nil
	if grown := int64(heap()) - int64(before); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(&k)
}

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
