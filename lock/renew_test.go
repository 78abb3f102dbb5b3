package lock_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// interval is the time between two renewals.
const interval = lease / 5

// holdMany acquires n locks, spread over d.
func (w *world) holdMany(l *lock.Locker, n int, d time.Duration) (leases []*lock.Lease) {
	w.Helper()
	for i := range n {
		le, err := l.TryAcquire(w.Context(), fmt.Sprintf("n%04d", i))
		w.must(err)
		leases = append(leases, le)
		time.Sleep(d / time.Duration(n))
	}
	return leases
}

// last checks that all leases are held, and last at least that much longer.
func (w *world) last(leases []*lock.Lease, left time.Duration) {
	w.Helper()
	for _, le := range leases {
		if err := le.Check(left); err != nil {
			w.Fatalf("at %v: %v", w.now(), err)
		}
	}
}

// commands counts the operations sent since the last call.
func commands(w *world, ops ...locktest.Op) func() int {
	before := 0
	return func() int {
		n := -before
		for _, op := range ops {
			n += w.mem.Calls(op)
		}
		before += n
		return n
	}
}

// The cost of holding many locks depends neither on their number nor on when each was acquired.
func TestAThousandLeasesCostWhatOneBatchCosts(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		sent := commands(w, locktest.Read, locktest.Renew, locktest.RenewMany, locktest.Requests, locktest.Confirm)
		leases := w.holdMany(l, 1000, interval)
		time.Sleep(lease)
		sent()
		for range time.Minute / time.Second {
			time.Sleep(time.Second)
			w.last(leases, lease-lock.Margin(lease)-interval)
		}
		// Every fifth of a lease: one batch, and one query for requests.
		w.between("commands per minute", time.Duration(sent()), 2*(time.Minute/interval)-2, 2*(time.Minute/interval)+2)
		w.between("renewals per minute", time.Duration(l.Stats().Renewed), 1000*(time.Minute/interval), time.Hour)
	})
}

// More locks than fit into a batch are renewed in several batches.
func TestMoreLeasesThanABatchHolds(t *testing.T) {
	virtually(t, func(w *world) {
		const n = 2*lock.MaxRenewals + 1
		leases := w.holdMany(w.locker(lock.Options{}), n, 0)
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			if size, err := strconv.Atoi(c.Name); c.Op == locktest.RenewMany && (err != nil || size > lock.MaxRenewals) {
				t.Errorf("a batch of %s", c.Name)
			}
			return locktest.Fault{}
		})
		for range 10 {
			time.Sleep(interval)
			w.last(leases, lease-lock.Margin(lease)-interval)
		}
		w.between("batches", time.Duration(w.mem.Calls(locktest.RenewMany)), 18, 20)
	})
}

// On a store that cannot renew many holds at once, each is renewed by itself when it is due.
func TestLeasesOfAStoreWithoutBatches(t *testing.T) {
	virtually(t, func(w *world) {
		w.wrap = func(s lock.Store) lock.Store { return struct{ lock.Store }{s} }
		leases := w.holdMany(w.locker(lock.Options{}), 100, interval)
		time.Sleep(time.Minute)
		w.last(leases, lease-lock.Margin(lease)-interval)
		w.between("batches", time.Duration(w.mem.Calls(locktest.RenewMany)), 0, 0)
		w.between("renewals", time.Duration(w.mem.Calls(locktest.Renew)), 100*(time.Minute/interval), 100*(time.Minute/interval+1))
	})
}

// One lock of many is taken away: its holder is notified of that, and why, as soon as if it held only this one, and no other lease ends.
func TestALostLeaseIsFoundInItsBatch(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		leases := w.holdMany(l, 1000, 0)
		time.Sleep(lease)
		lost := leases[500]
		w.must(w.locker(lock.Options{}).ForceRelease(w.Context(), lost.Name(), "it hangs"))
		sent := commands(w, locktest.Read, locktest.Renew, locktest.RenewMany, locktest.Requests)
		sent()
		time.Sleep(interval + time.Millisecond)
		if e, ok := errors.AsType[*lock.LostError](lost.Check(0)); !ok || e.Reason != lock.LostForced || e.Why != "it hangs" {
			t.Errorf("the holder of the lock that was taken away: %v", lost.Check(0))
		}
		w.between("commands", time.Duration(sent()), 3, 120)
		leases = append(leases[:500], leases[501:]...)
		w.last(leases, lease-lock.Margin(lease)-interval)
		sent()
		time.Sleep(4 * interval)
		w.between("commands when all is well again", time.Duration(sent()), 8, 10)
		w.last(leases, lease-lock.Margin(lease)-interval)
	})
}

// Requests to release are received with the next batch, whether or not all of its renewals succeed.
func TestRequestsAreHeardInBatches(t *testing.T) {
	virtually(t, func(w *world) {
		leases := w.holdMany(w.locker(lock.Options{}), 100, 0)
		shared, err := w.locker(lock.Options{}).Acquire(w.Context(), "s", lock.WithShared())
		w.must(err)
		admin := w.locker(lock.Options{})
		time.Sleep(lease)
		w.must(admin.RequestRelease(w.Context(), leases[7].Name(), "move on"))
		w.must(admin.RequestRelease(w.Context(), "s", "you too"))
		time.Sleep(interval + time.Millisecond)
		if leases[7].RequestReason() != "move on" || shared.RequestReason() != "you too" || leases[8].RequestReason() != "" {
			t.Errorf("asked %q and %q", leases[7].RequestReason(), shared.RequestReason())
		}
		w.must(admin.RequestRelease(w.Context(), leases[9].Name(), "now"))
		w.must(admin.ForceRelease(w.Context(), leases[10].Name(), "away"))
		time.Sleep(interval + time.Millisecond)
		if leases[9].RequestReason() != "now" || !w.lost(leases[10]) {
			t.Errorf("asked %q, lost: %v", leases[9].RequestReason(), w.lost(leases[10]))
		}
		w.mem.Inject(only(locktest.Requests, locktest.Fault{LoseRequest: true}))
		w.must(admin.RequestRelease(w.Context(), leases[11].Name(), "later"))
		time.Sleep(2 * lease)
		w.last(leases[11:], lease-lock.Margin(lease)-interval)
		w.mem.Inject(nil)
		time.Sleep(interval + time.Millisecond)
		if leases[11].RequestReason() != "later" {
			t.Error("a request was not received when the store answered again")
		}
	})
}

// Whatever happens to batches, no lease ends: the leases that they did not confirm are renewed in smaller batches, and one by one.
func TestBatchesThatFail(t *testing.T) {
	for name, fault := range map[string]locktest.Fault{
		"requests lost":                {LoseRequest: true},
		"replies lost":                 {LoseReply: true},
		"connections broken":           {BreakReply: true},
		"refused":                      {Refuse: true},
		"calls that ignore everything": {Hang: true},
		"rolled back":                  {Rollback: time.Minute},
		"very late":                    {Late: time.Minute},
		"partly applied":               {Half: true},
		"partly applied, no answer":    {Half: true, LoseReply: true},
	} {
		left := lease / 4
		if fault.Hang { // a call that ignores its context ends a second later, and there are two
			left = lease / 6
		}
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				leases := w.holdMany(w.locker(lock.Options{}), 100, interval)
				w.mem.Inject(only(locktest.RenewMany, fault))
				for range 60 {
					time.Sleep(time.Second)
					w.last(leases, left)
				}
				if fault.Hang {
					w.mem.Stop()
				}
			})
		})
	}
}

// A lease that was extended by a batch ends no later than one lease after the batch was sent.
func TestTheDeadlineOfABatchCountsFromItsSending(t *testing.T) {
	virtually(t, func(w *world) {
		leases := w.holdMany(w.locker(lock.Options{}), 10, 0)
		const slow = 2 * time.Second
		w.mem.Inject(only(locktest.RenewMany, locktest.Fault{Reply: slow}))
		for range 5 {
			time.Sleep(interval)
			for _, le := range leases {
				w.between("remaining after a slow batch", le.Remaining(), lease/2, lease-lock.Margin(lease)-slow)
			}
		}
		w.between("batches", time.Duration(w.mem.Calls(locktest.RenewMany)), 4, 5)
	})
}

// While one batch hangs, the next one is sent when it is due.
func TestABatchThatHangsDelaysNoOther(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		first := w.holdMany(l, 10, 0)
		var second []*lock.Lease
		time.Sleep(interval * 3 / 4) // too late to be in the same batch
		for i := range 10 {
			le, err := l.TryAcquire(w.Context(), fmt.Sprint("m", i))
			w.must(err)
			second = append(second, le)
		}
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			return locktest.Fault{LoseRequest: c.Op == locktest.RenewMany && c.N == 0}
		})
		time.Sleep(interval + time.Millisecond)
		w.between("batches", time.Duration(w.mem.Calls(locktest.RenewMany)), 2, 2)
		w.last(second, lease-lock.Margin(lease)-time.Second)
		time.Sleep(interval)
		w.last(first, lease-lock.Margin(lease)-2*interval)
	})
}

// Leases that end in the middle of their batch do not affect the others.
func TestReleasesDuringABatch(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		leases := w.holdMany(l, 100, 0)
		w.mem.Inject(only(locktest.RenewMany, locktest.Fault{Request: 500 * time.Millisecond}))
		for i, le := range leases[:50] {
			if i%5 == 0 {
				time.Sleep(interval/5 + 7*time.Millisecond)
			}
			w.must(le.Release(w.Context()))
		}
		time.Sleep(interval)
		w.last(leases[50:], lease-lock.Margin(lease)-2*interval)
		if n := l.Stats().LostGone; n != 0 {
			t.Errorf("%d leases lost", n)
		}
	})
}

// A batch without an answer is sent once more before each lease is renewed by itself: a hundred commands instead of one would make a slow
// store slower still.
func TestASlowStoreGetsNoMoreRenewals(t *testing.T) {
	virtually(t, func(w *world) {
		leases := w.holdMany(w.locker(lock.Options{}), 100, 0)
		w.mem.Inject(only(locktest.RenewMany, locktest.Fault{Reply: 3500 * time.Millisecond})) // longer than a first attempt may take
		for range 60 {
			time.Sleep(time.Second)
			w.last(leases, lease/4)
		}
		w.between("single renewals", time.Duration(w.mem.Calls(locktest.Renew)), 0, 0)
	})
}
