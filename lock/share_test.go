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
	"github.com/fencepost/fencepost/lock/locktest"
)

func TestReadersShareAndWritersDoNot(t *testing.T) {
	virtually(t, func(w *world) {
		a, b := w.locker(lock.Options{}), w.locker(lock.Options{})
		tokens := make(map[int64]bool)
		var readers []*lock.Lease
		for i := range 10 {
			le := w.acquire([]*lock.Locker{a, b}[i%2], lock.WithShared())
			if tokens[le.Token()] {
				t.Errorf("token %d twice", le.Token())
			}
			tokens[le.Token()] = true
			readers = append(readers, le)
		}
		if held := w.refused(a); held.Lease != lease || !held.Own {
			t.Errorf("a writer got: %v", held)
		}
		time.Sleep(5 * lease)
		for _, le := range readers {
			w.must(le.Check(lease / 2))
		}
		var wg sync.WaitGroup
		var got time.Duration
		wg.Go(func() {
			le := w.acquire(b)
			got = w.now()
			if tokens[le.Token()] || le.Token() < readers[9].Token() {
				t.Errorf("the writer's token is %d", le.Token())
			}
			w.refused(a, lock.WithShared())
			w.must(le.Release(w.Context()))
		})
		time.Sleep(time.Second)
		for _, le := range readers {
			w.must(le.Release(w.Context()))
		}
		released := w.now()
		wg.Wait()
		w.between("the writer waited", got-released, 0, 250*time.Millisecond)
		w.must(w.try(a, lock.WithShared()).Release(w.Context()))
	})
}

func TestPermitsBoundTheHolders(t *testing.T) {
	virtually(t, func(w *world) {
		const permits = 3
		var (
			mu           sync.Mutex
			inside, most int
			wg           sync.WaitGroup
		)
		enter := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			inside += n
			most = max(most, inside)
		}
		for range 5 {
			l := w.locker(lock.Options{})
			for range 4 {
				wg.Go(func() {
					le := w.acquire(l, lock.WithPermits(permits))
					enter(1)
					time.Sleep(time.Second)
					w.must(le.Check(0))
					enter(-1)
					w.must(le.Release(w.Context()))
				})
			}
		}
		wg.Wait()
		if most != permits {
			t.Errorf("%d holders at once, want %d", most, permits)
		}
		w.between("20 turns of a second, 3 at a time", w.now(), 7*time.Second, 10*time.Second)
	})
}

// One of two holders dies. The other one keeps its share; the dead one's share is free after its lease, for waiters and for
// repeated calls of TryAcquire.
func TestADeadShareEndsByItself(t *testing.T) {
	for name, next := range map[string]func(*world, *lock.Locker) *lock.Lease{
		"waiting": func(w *world, l *lock.Locker) *lock.Lease { return w.acquire(l, lock.WithPermits(2)) },
		"trying": func(w *world, l *lock.Locker) *lock.Lease {
			for {
				le, err := l.TryAcquire(w.Context(), "n", lock.WithPermits(2))
				if err == nil {
					return le
				}
				time.Sleep(100 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				dead := w.acquire(w.locker(lock.Options{}), lock.WithPermits(2))
				alive := w.acquire(w.locker(lock.Options{}), lock.WithPermits(2))
				w.mem.Inject(isolate(0))
				begin := w.now()
				le := next(w, w.locker(lock.Options{}))
				w.between("free", w.now()-begin, lock.Standstill(lease)-lease/5, lock.Standstill(lease)+time.Second)
				if !w.lost(dead) || le.Token() <= dead.Token() {
					t.Errorf("token %d; the dead one's was %d", le.Token(), dead.Token())
				}
				w.must(alive.Check(lease / 2))
			})
		})
	}
}

// livingShares: two holders renew; a waiter for one of two permits, with a short lease, and a writer wait in vain.
func livingShares(w *world) {
	holder := w.locker(lock.Options{})
	a, b := w.acquire(holder, lock.WithPermits(2)), w.acquire(w.locker(lock.Options{}), lock.WithPermits(2))
	var wg sync.WaitGroup
	for _, o := range [][]lock.Option{{lock.WithPermits(2)}, {}} {
		l := w.locker(lock.Options{Lease: lock.MinLease})
		wg.Go(func() {
			if le, err := l.Acquire(w.Context(), "n", append(o, lock.WithWait(5*time.Minute))...); err == nil {
				w.Errorf("at %v: granted token %d", w.now(), le.Token())
			}
		})
	}
	wg.Wait()
	for _, le := range []*lock.Lease{a, b} {
		if err := le.Check(0); err != nil {
			w.Errorf("a holder that kept renewing: %v", err)
		}
	}
}

func TestWritersAreNotStarved(t *testing.T) {
	virtually(t, readers)
}

// readers: some processes read continuously, overlapping each other; a writer wants its turn.
func readers(w *world) {
	ctx, cancel := context.WithCancel(w.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		l := w.locker(lock.Options{})
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 250 * time.Millisecond)
			for ctx.Err() == nil {
				le, err := l.Acquire(ctx, "n", lock.WithShared())
				if err != nil {
					return
				}
				time.Sleep(time.Second)
				_ = le.Release(w.Context())
			}
		})
	}
	l := w.locker(lock.Options{})
	time.Sleep(5 * time.Second)
	for range 3 {
		le, err := l.Acquire(ctx, "n", lock.WithWait(5*time.Second))
		if err != nil {
			w.Errorf("the writer is starved: %v", err)
			break
		}
		time.Sleep(time.Second)
		w.must(le.Release(w.Context()))
		time.Sleep(5 * time.Second)
	}
	cancel()
	wg.Wait()
}

// shareTokens: the answer to an acquisition is lost; meanwhile another share is granted.
func shareTokens(w *world) {
	a, b := w.locker(lock.Options{}), w.locker(lock.Options{})
	w.must(w.acquire(a).Release(w.Context()))
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		switch {
		case c.Op == locktest.Acquire && c.Handle == 0:
			return locktest.Fault{BreakReply: true}
		case c.Op == locktest.Confirm:
			return locktest.Fault{Request: time.Second}
		}
		return locktest.Fault{}
	})
	var wg sync.WaitGroup
	var first *lock.Lease
	wg.Go(func() { first = w.acquire(a, lock.WithShared()) })
	time.Sleep(500 * time.Millisecond)
	second := w.acquire(b, lock.WithShared())
	wg.Wait()
	if first.Token() == second.Token() {
		w.Errorf("two grants have token %d", first.Token())
	}
	w.mem.Inject(nil)
}

func TestFairWaitersGetTheLockInTurn(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		var (
			wg    sync.WaitGroup
			order []int
		)
		const n = 8
		for i := range n {
			l := w.locker(lock.Options{})
			wg.Go(func() {
				le := w.acquire(l, lock.WithFair(), lock.WithWhy(fmt.Sprint("waiter ", i)))
				order = append(order, i)
				time.Sleep(3 * time.Second)
				w.must(le.Release(w.Context()))
			})
			time.Sleep(time.Second)
		}
		greedy := w.locker(lock.Options{})
		wg.Go(func() { // does not wait in the queue, so it comes last
			w.must(w.acquire(greedy).Release(w.Context()))
			order = append(order, n)
		})
		time.Sleep(time.Second)
		r, err := greedy.Inspect(w.Context(), "n")
		w.must(err)
		if len(r.Queue) != n || r.Queue[0].Why != "waiter 0" {
			t.Errorf("the operator sees %d waiters: %+v", len(r.Queue), r.Queue)
		}
		w.must(le.Release(w.Context()))
		if held := w.refused(greedy); !held.Reserved || held.Why != "waiter 0" || !strings.Contains(held.Error(), "first in line") {
			t.Errorf("a caller outside the queue got: %v", held)
		}
		begin := w.now()
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != n+1 {
			t.Errorf("order: %v", order)
		}
		w.between("eight turns of 3 s", w.now()-begin, 24*time.Second, 24*time.Second+9*100*time.Millisecond)
		if r, _ := w.mem.Get("n"); len(r.Queue) > 0 {
			t.Errorf("left in the queue: %+v", r.Queue)
		}
	})
}

func TestADeadWaiterHoldsTheLineUpForItsPlaceOnly(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		dying, next := w.locker(lock.Options{}), w.locker(lock.Options{})
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := dying.Acquire(ctx, "n", lock.WithFair()); err == nil {
				t.Error("the dead waiter got the lock")
			}
		})
		time.Sleep(time.Second)
		w.mem.Inject(isolate(1))
		w.must(le.Release(w.Context()))
		begin := w.now()
		w.acquire(next)
		w.between("held up", w.now()-begin, lock.QueueLease/2, lock.Standstill(lock.QueueLease)+300*time.Millisecond)
		cancel()
		wg.Wait()
		w.mem.Inject(nil)
	})
}

func TestWhoGivesUpLeavesTheLine(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		l := w.locker(lock.Options{})
		_, err := l.Acquire(w.Context(), "n", lock.WithFair(), lock.WithWait(time.Second))
		if !errors.Is(err, lock.ErrHeld) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Millisecond)
		if r, _ := w.mem.Get("n"); len(r.Queue) > 0 {
			t.Errorf("still in the queue: %+v", r.Queue)
		}
		w.must(le.Release(w.Context()))
		w.try(l)
	})
}

func TestPermitsAreChecked(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		for _, n := range []int{-1, 0, lock.MaxEntries + 1} {
			if _, err := l.TryAcquire(w.Context(), "n", lock.WithPermits(n)); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("%d permits: %v", n, err)
			}
		}
		for _, o := range []lock.Option{lock.WithMaxHold(0), lock.WithMaxHold(-1), lock.WithTakeoverDelay(-1)} {
			if _, err := l.TryAcquire(w.Context(), "n", o); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("got %v", err)
			}
		}
	})
}
