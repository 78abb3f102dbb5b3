package lock_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// If a store becomes slower than the timeout of one operation, gradually or for some locks at once, timeouts grow: acquisitions succeed
// instead of failing over and over.
func TestASlowStoreIsWaitedFor(t *testing.T) {
	for name, delay := range map[string]func(w *world, name string) time.Duration{
		"bit by bit": func(w *world, _ string) time.Duration { return min(w.now()/20, 6*time.Second) },
		"others are quick": func(_ *world, name string) time.Duration {
			if name == "n" {
				return 4 * time.Second
			}
			return 100 * time.Millisecond
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					switch c.Op {
					case locktest.Read, locktest.Create, locktest.Acquire, locktest.Confirm:
						return locktest.Fault{Reply: delay(w, c.Name)}
					}
					return locktest.Fault{}
				})
				l := w.locker(lock.Options{})
				const learned, end = 3 * time.Minute, 10 * time.Minute
				failed := int64(0)
				use := func(name string) {
					for w.now() < end {
						before := l.Stats().StoreFailures
						if le, err := l.TryAcquire(w.Context(), name); err == nil {
							w.must(le.Release(w.Context()))
						}
						if name == "n" && w.now() > learned {
							failed += l.Stats().StoreFailures - before
						}
						time.Sleep(time.Second)
					}
				}
				var other sync.WaitGroup
				other.Go(func() { use("other") })
				use("n")
				other.Wait()
				if failed > 0 {
					t.Errorf("%d operations were given up", failed)
				}
			})
		})
	}
}

// If a slow store becomes fast again, or unreachable, timeouts are no longer than before.
func TestAStoreThatIsGoneIsNotSlow(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.acquire(l)
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
		for range 5 {
			began := w.now()
			if _, err := l.TryAcquire(w.Context(), "other"); err == nil {
				t.Fatal("acquired without a store")
			}
			w.between("an attempt", w.now()-began, lock.OpTimeout(lease), 2*lock.OpTimeout(lease)+time.Second)
		}
	})
}

// If a store becomes so slow that every answer takes longer than the initial timeouts, no lease is lost, and acquisitions
// adapt to the answer times of renewals.
func TestASlowStoreLosesNoLease(t *testing.T) {
	for _, n := range []int{1, 100} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			virtually(t, func(w *world) {
				l := w.locker(lock.Options{})
				leases := w.holdMany(l, n, time.Second)
				w.mem.Inject(func(locktest.Call) locktest.Fault {
					return locktest.Fault{Reply: lock.OpTimeout(lease) + 2*time.Second}
				})
				for range 60 {
					time.Sleep(5 * time.Second)
					w.last(leases, time.Second)
				}
				_, err := l.TryAcquire(w.Context(), "other")
				w.must(err)
				w.mem.Inject(nil)
			})
		})
	}
}
