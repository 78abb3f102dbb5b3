package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// queueUp makes n goroutines wait for the lock, each started when the one before waits in the queue. Each goroutine that gets
// the lock calls f with its number, and releases.
func (w *world) queueUp(wg *sync.WaitGroup, l *lock.Locker, n int, f func(i int, le *lock.Lease)) {
	w.Helper()
	for i := range n {
		wg.Go(func() {
			le, err := l.Acquire(w.Context(), "n")
			if err != nil {
				w.Errorf("waiter %d: %v", i, err)
				return
			}
			f(i, le)
			if err := le.Release(w.Context()); err != nil {
				w.Errorf("waiter %d: release: %v", i, err)
			}
		})
		time.Sleep(time.Millisecond)
	}
}

func TestOneWaiterPerProcessFirstInFirstOut(t *testing.T) {
	virtually(t, func(w *world) {
		holder, l := w.locker(lock.Options{}), w.locker(lock.Options{})
		le := w.acquire(holder)
		var (
			wg    sync.WaitGroup
			order []int
			last  int64
		)
		const n = 50
		w.queueUp(&wg, l, n, func(i int, le *lock.Lease) {
			order = append(order, i)
			if le.Token() <= last {
				t.Errorf("token %d after %d", le.Token(), last)
			}
			last = le.Token()
			w.must(le.Check(lease / 2))
			if r, _ := w.mem.Get("n"); r.Hold == nil || r.Hold.ID != lock.HoldOf(le) || r.Token != le.Token() {
				t.Errorf("the record does not say so: %+v", r)
			}
			time.Sleep(10 * time.Second)
		})
		if got := lock.InLine(l, "n"); got != n {
			t.Errorf("%d waiters, want %d", got, n)
		}
		time.Sleep(time.Minute)
		w.between("reads per minute of fifty waiters", time.Duration(w.mem.Calls(locktest.Read)), 240, 1000)
		w.must(le.Release(w.Context()))
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != n {
			t.Errorf("order: %v", order)
		}
		if got := lock.InLine(l, "n"); got != 0 {
			t.Errorf("%d waiters at the end", got)
		}
	})
}

// A handoff takes one round trip.
func TestHandOver(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		le := w.acquire(l)
		var wg sync.WaitGroup
		var got time.Duration
		w.queueUp(&wg, l, 1, func(_ int, next *lock.Lease) {
			got = w.now()
			w.between("token", time.Duration(next.Token()), time.Duration(le.Token())+1, time.Duration(le.Token())+1)
			w.between("remaining", next.Remaining(), lease-lock.Margin(lease), lease-lock.Margin(lease))
		})
		time.Sleep(time.Second)
		ops := func() (n int) {
			for _, op := range []locktest.Op{locktest.Acquire, locktest.TakeOver, locktest.Release, locktest.HandOver} {
				n += w.mem.Calls(op)
			}
			return n
		}
		before := ops()
		released := w.now()
		w.must(le.Release(w.Context()))
		wg.Wait()
		w.between("handed over", got-released, 0, 0)
		if n := ops() - before; n != 2 { // and the release of the second
			t.Errorf("%d writes, want 2", n)
		}
		if s := l.Stats(); s.HandedOff != 1 || s.Acquired != 2 {
			t.Errorf("stats: %+v", s)
		}
	})
}

func TestHandOversLeaveRoomForOtherProcesses(t *testing.T) {
	virtually(t, crowd)
}

// crowd: a process uses a lock so much that one of its goroutines always waits for it; another process wants it, too.
func crowd(w *world) {
	l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				le, err := l.Acquire(ctx, "n")
				if err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
				_ = le.Release(w.Context())
			}
		})
	}
	time.Sleep(time.Second)
	for range 5 {
		begin := w.now()
		le, err := other.Acquire(ctx, "n", lock.WithWait(time.Minute))
		if err != nil {
			w.Errorf("another process does not get the lock: %v", err)
			cancel()
			return
		}
		w.between("wait", w.now()-begin, 0, time.Minute)
		_ = le.Release(ctx)
		time.Sleep(time.Second)
	}
	if l.Stats().HandedOff == 0 {
		w.Errorf("nothing was handed over")
	}
	cancel()
}

// Whatever happens to the answer of a handoff, the next waiter gets the lock soon, and there is only one holder.
func TestUnclearAnswersOfAHandOver(t *testing.T) {
	for name, fault := range map[string]locktest.Fault{
		"refused":      {Refuse: true},
		"request lost": {LoseRequest: true},
		"reply lost":   {LoseReply: true},
		"reply broken": {BreakReply: true},
		"late":         {Late: 10 * time.Second},
		"rolled back":  {Rollback: time.Second},
		"slow":         {Request: time.Second, Reply: time.Second},
		"hung":         {Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				l := w.locker(lock.Options{})
				le := w.acquire(l)
				var wg sync.WaitGroup
				inside, last := 0, le.Token()
				w.queueUp(&wg, l, 3, func(i int, le *lock.Lease) {
					if inside++; inside != 1 {
						t.Error("two holders")
					}
					if le.Token() <= last {
						t.Errorf("token %d after %d", le.Token(), last)
					}
					last = le.Token()
					time.Sleep(3 * time.Second)
					w.must(le.Check(0))
					inside--
				})
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					if c.Op == locktest.HandOver && c.N == 0 {
						return fault
					}
					return locktest.Fault{}
				})
				w.must(le.Release(w.Context()))
				wg.Wait()
				w.between("all done", w.now(), 0, 3*3*time.Second+lease/2)
				w.mem.Stop()
			})
		})
	}
}

// A waiter whose context ends while the lock is being handed off to it does not keep it.
func TestAHandOverToOneWhoLeft(t *testing.T) {
	for _, delay := range []locktest.Fault{{Request: time.Second}, {Reply: time.Second}} {
		virtually(t, func(w *world) {
			l := w.locker(lock.Options{})
			le := w.acquire(l)
			ctx, cancel := context.WithCancel(w.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				begin := w.now()
				if _, err := l.Acquire(ctx, "n"); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
				w.between("ended", w.now()-begin, 600*time.Millisecond, 601*time.Millisecond)
			})
			time.Sleep(100 * time.Millisecond)
			w.mem.Inject(only(locktest.HandOver, delay))
			wg.Go(func() { w.must(le.Release(w.Context())) })
			time.Sleep(500 * time.Millisecond)
			cancel()
			wg.Wait()
			w.mem.Inject(nil)
			begin := w.now()
			w.acquire(w.locker(lock.Options{}))
			w.between("free again", w.now()-begin, 0, 2*time.Second)
		})
	}
}

// If the handoff arrives just as the wait ends, the waiter notices that it has the lock.
func TestAHandOverAtTheEndOfTheWait(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // select picks among the reasons that ended the pause at random
		if !lock.HandedOffBeforeUnpark(t.Context(), ended) {
			t.Fatal("a handoff that was delivered before the pause ended was overlooked")
		}
	}
	if !lock.HandedOffBeforeRun(ended) {
		t.Error("a handoff is not undone when the wait ends before the attempt looks at it")
	}
}

// The hold of a lease that was lost and released goes to the next waiter at once, if it has not been taken over.
func TestAnOwnUntouchedHoldIsReacquiredAtOnce(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		le := w.acquire(l)
		w.mem.Inject(only(locktest.Renew, locktest.Fault{Refuse: true}))
		var wg sync.WaitGroup
		var got time.Duration
		w.queueUp(&wg, l, 1, func(_ int, next *lock.Lease) {
			got = w.now()
			if next.Token() <= le.Token() {
				t.Errorf("token %d after %d", next.Token(), le.Token())
			}
		})
		<-le.Lost()
		begin := w.now()
		if err := le.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("release: %v", err)
		}
		w.mem.Inject(nil)
		wg.Wait()
		w.between("acquired again", got-begin, 0, 0)
		if l.Stats().HandedOff != 1 {
			t.Errorf("stats: %+v", l.Stats())
		}
		// Without a waiter: one write.
		le = w.acquire(l)
		w.mem.Inject(only(locktest.Renew, locktest.Fault{Refuse: true}))
		<-le.Lost()
		// A release in the background would free the lock, perhaps between the read and the write.
		w.mem.Inject(only(locktest.Release, locktest.Fault{Refuse: true}))
		_ = le.Release(w.Context())
		reads := w.mem.Calls(locktest.Read)
		begin = w.now()
		w.acquire(l)
		w.between("acquired again", w.now()-begin, 0, time.Millisecond)
		w.between("reads", time.Duration(w.mem.Calls(locktest.Read)-reads), 0, 1)
	})
}

// robbed: a holder loses the lock to another process; then it releases, while a goroutine of its process waits.
func robbed(w *world) {
	l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
	le := w.acquire(l)
	w.mem.Inject(isolate(0))
	next := w.acquire(other)
	w.mem.Inject(nil)
	ctx, cancel := context.WithCancel(w.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if le, err := l.Acquire(ctx, "n"); err == nil {
			w.Errorf("a waiter got the lock from a holder that had lost it, token %d", le.Token())
		}
	})
	time.Sleep(time.Second)
	_ = le.Release(w.Context())
	time.Sleep(lease)
	if err := next.Check(0); err != nil {
		w.Errorf("the successor: %v", err)
	}
	cancel()
	wg.Wait()
}

// handOvers: every handoff is a grant of its own.
func handOvers(w *world) {
	l := w.locker(lock.Options{})
	le := w.acquire(l)
	var wg sync.WaitGroup
	last := le.Token()
	w.queueUp(&wg, l, 3, func(_ int, le *lock.Lease) {
		if le.Token() <= last {
			w.Errorf("token %d after %d", le.Token(), last)
		}
		last = le.Token()
	})
	w.must(le.Release(w.Context()))
	wg.Wait()
}

func TestWaitsInLineEndWithTheirContext(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.acquire(l)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				begin, wait := w.now(), time.Duration(5-i)*time.Second
				_, err := l.Acquire(w.Context(), "n", lock.WithWait(wait))
				held, ok := errors.AsType[*lock.HeldError](err)
				if !ok || !held.Own || held.Token == 0 {
					t.Errorf("waiter %d: %v", i, err)
				}
				w.between(fmt.Sprint("waiter ", i), w.now()-begin, wait, wait+time.Millisecond)
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
	})
}

// A place that is taken only after its waiter has left is given up, too: others would wait until it expires.
func TestAPlaceThatArrivesAfterItsWaiterHasLeft(t *testing.T) {
	virtually(t, func(w *world) {
		holder, l := w.locker(lock.Options{}), w.locker(lock.Options{})
		le := w.acquire(holder)
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			if c.Op == locktest.Enqueue {
				return locktest.Fault{Request: 200 * time.Millisecond}
			}
			return locktest.Fault{}
		})
		ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Acquire(ctx, "n", lock.WithFair()); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Second)
		if n := w.mem.Calls(locktest.Enqueue); n != 1 {
			t.Fatalf("%d places were requested", n)
		}
		if r, _ := w.mem.Get("n"); len(r.Queue) > 0 {
			t.Errorf("left in the queue: %+v", r.Queue)
		}
		w.must(le.Release(w.Context()))
		w.try(holder)
	})
}

// If the store does not answer, a waiter does not wait longer because of the waiters before it.
func TestALineAtAnUnavailableStore(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				_, err := l.Acquire(w.Context(), "n")
				if !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		w.between("all ended", w.now(), lock.DefaultGiveUpAfter, lock.DefaultGiveUpAfter+15*lock.OpTimeout(lease)) // half of five times as long; the number of tries of each is random
		w.mem.Inject(nil)
		w.acquire(l)
	})
}

// staleReads is a store whose reads come from a deposed primary, which still has a waiter that is gone.
type staleReads struct {
	lock.Store
	record lock.Record
	stale  func() bool
	reads  int
}

const tooManyReads = 10_000

func (s *staleReads) Read(ctx context.Context, name string) (lock.Record, bool, error) {
	s.reads++
	if s.stale() && s.reads < tooManyReads {
		return s.record, true, nil
	}
	return s.Store.Read(ctx, name)
}

// A waiter that reads show, and that cannot be removed, makes nobody read without pauses.
func TestStaleReadsDoNotSpin(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		s := &staleReads{Store: w.store(), stale: func() bool { return w.now() < 30*time.Second }}
		s.record, _ = w.mem.Get("n")
		gone := lock.Hold{ID: lock.NewHoldID(), Lease: time.Second, Owner: lock.Process{Host: "gone"}}
		s.record.Hold, s.record.Queue = nil, []lock.Entry{{Hold: gone, Version: lock.NewVersion()}}
		w.wrap = func(lock.Store) lock.Store { return s }
		l := w.locker(lock.Options{})

		w.refused(l)
		time.Sleep(lock.Standstill(gone.Lease))
		s.reads = 0
		if held := w.refused(l); !held.Reserved || s.reads > 20 {
			t.Errorf("TryAcquire: %v after %d reads", held, s.reads)
		}
		w.must(le.Release(w.Context()))
		s.reads = 0
		w.acquire(l)
		if s.reads > tooManyReads/10 {
			t.Errorf("%d reads", s.reads)
		}
		w.between("acquired", w.now(), 30*time.Second, 31*time.Second)
	})
}
