package workercmd

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// After an election a worker releases the lock that it lost in the meantime, even if it is stopped before the election is over. It does not
// touch a lock that a successor holds.
func TestLockThatWasLostInAnElectionIsReleasedOnStop(t *testing.T) {
	const grace = 20 * time.Second
	notPrimary := error(mongo.CommandError{Code: 10107})
	for name, tc := range map[string]struct {
		over      time.Duration               // after the stop; 0: never
		ask       func(context.Context) error // until then
		successor bool
		closes    time.Duration // at most
		free      bool
	}{
		"election":                  {over: 12 * time.Second, ask: func(context.Context) error { return notPrimary }, closes: 15 * time.Second, free: true},
		"another worker has it":     {over: 12 * time.Second, ask: func(context.Context) error { return notPrimary }, successor: true, closes: 15 * time.Second},
		"it outlasts the grace":     {ask: func(context.Context) error { return notPrimary }, closes: grace + time.Second},
		"the server is silent":      {ask: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, closes: time.Second},
		"silent, deaf to a context": {ask: func(context.Context) error { time.Sleep(time.Minute); return nil }, closes: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := locktest.NewMemory()
				defer store.Stop()
				began := time.Now()
				open := func() *lock.Locker {
					l, err := lock.New(store.Open(), lock.Options{Clock: func() time.Duration { return time.Since(began) }})
					if err != nil {
						t.Fatal(err)
					}
					return l
				}
				locker := open()
				lease, err := locker.Acquire(t.Context(), "orders", lock.WithLease(20*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				store.Inject(func(c locktest.Call) locktest.Fault { return locktest.Fault{Refuse: c.Handle == 0} })
				<-lease.Lost()
				var next *lock.Lease
				if tc.successor {
					other := open()
					defer other.Close(context.Background())
					if next, err = other.Acquire(t.Context(), "orders"); err != nil {
						t.Fatal(err)
					}
				}
				if err := lease.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
					t.Fatal(err)
				}
				stopped := time.Now()
				var over atomic.Bool
				ask := func(ctx context.Context) error {
					if !over.Load() {
						return tc.ask(ctx)
					}
					return nil
				}
				if tc.over > 0 {
					time.AfterFunc(tc.over, func() { over.Store(true); store.Inject(nil) })
				}
				closing, cancel := context.WithDeadline(context.Background(), closeBy(&stopped, grace))
				defer cancel()
				_ = closeBackend(closing, locker.Close, ask)
				if took := time.Since(stopped); took > tc.closes {
					t.Errorf("closed after %v", took)
				}
				rec, _ := store.Get("orders")
				kept := !tc.successor || rec.Hold != nil && next.Check(0) == nil
				time.Sleep(2 * time.Minute) // everything left behind ends
				switch {
				case !kept:
					t.Error("the successor has lost the lock")
				case !tc.successor && (rec.Hold == nil) != tc.free:
					t.Errorf("the lock is held: %v", rec.Hold != nil)
				}
			})
		})
	}
}
