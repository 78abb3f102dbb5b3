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
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

func TestAcquireReleaseTokens(t *testing.T) {
	virtually(t, func(w *world) {
		a, b := w.locker(lock.Options{}), w.locker(lock.Options{})
		var last int64
		for i := range 10 {
			l := []*lock.Locker{a, b}[i%2]
			le := w.acquire(l)
			if le.Token() <= last {
				t.Errorf("token %d after %d", le.Token(), last)
			}
			if i > 0 && le.Token() != last+1 {
				t.Errorf("token jumped from %d to %d without a reason", last, le.Token())
			}
			last = le.Token()
			if le.Name() != "n" || le.Context().Err() != nil || le.Check(time.Second) != nil {
				t.Errorf("a fresh lease: name %q, context %v, check %v", le.Name(), le.Context().Err(), le.Check(time.Second))
			}
			w.between("remaining", le.Remaining(), lease-lock.Margin(lease), lease-lock.Margin(lease))
			w.must(le.Release(w.Context()))
			if le.Remaining() != 0 {
				t.Errorf("%v remain after release", le.Remaining())
			}
		}
		if got := w.mem.Calls(locktest.Read); got != 1 {
			t.Errorf("%d reads for 10 uncontended acquisitions, want 1: only the first finds no record", got)
		}
	})
}

func TestMutualExclusionOfSixteenLockers(t *testing.T) {
	virtually(t, func(w *world) {
		var (
			wg      sync.WaitGroup
			holders int // guarded by the lock under test; the race detector checks this
			tokens  []int64
		)
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			return locktest.Fault{Request: time.Duration(c.N%7) * time.Millisecond, Reply: time.Duration(c.N%3) * time.Millisecond}
		})
		for range 16 {
			l := w.locker(lock.Options{})
			wg.Go(func() {
				for range 20 {
					le := w.acquire(l)
					holders++
					if holders != 1 {
						t.Errorf("%d holders", holders)
					}
					tokens = append(tokens, le.Token())
					time.Sleep(3 * time.Millisecond)
					holders--
					w.must(le.Release(w.Context()))
				}
			})
		}
		wg.Wait()
		for i := 1; i < len(tokens); i++ {
			if tokens[i] <= tokens[i-1] {
				t.Fatalf("token %d after %d", tokens[i], tokens[i-1])
			}
		}
		if len(tokens) != 16*20 {
			t.Errorf("%d grants", len(tokens))
		}
	})
}

func TestARenewingHolderIsNeverTakenOver(t *testing.T) {
	virtually(t, func(w *world) {
		holder := w.acquire(w.locker(lock.Options{}))
		for _, l := range []time.Duration{lock.MinLease, lease, time.Hour} {
			waiter := w.locker(lock.Options{Lease: l})
			_, err := waiter.Acquire(w.Context(), "n", lock.WithWait(5*time.Minute))
			if !errors.Is(err, lock.ErrHeld) {
				t.Fatalf("a waiter with a lease of %v got: %v", l, err)
			}
		}
		w.must(holder.Check(0))
	})
}

func TestTakeoverNeedsAFullObservedLease(t *testing.T) {
	virtually(t, func(w *world) {
		holder := w.acquire(w.locker(lock.Options{}))
		w.mem.Inject(isolate(0)) // the holder dies right after its acquisition
		time.Sleep(time.Minute)  // no process reads the record: this time does not count
		begin := w.now()
		waiter := w.locker(lock.Options{Lease: lock.MinLease})
		next := w.acquire(waiter)
		w.between("wait of the first observer", w.now()-begin, lock.Standstill(lease), lock.Standstill(lease)+time.Millisecond)
		if next.Token() != holder.Token()+1 {
			t.Errorf("token %d after %d", next.Token(), holder.Token())
		}
		if got := waiter.Stats().TakenOver; got != 1 {
			t.Errorf("counted %d takeovers", got)
		}
	})
}

func TestRepeatedTriesEndADeadLease(t *testing.T) {
	virtually(t, func(w *world) {
		w.acquire(w.locker(lock.Options{}), lock.WithWhy("first"))
		w.mem.Inject(isolate(0))
		l := w.locker(lock.Options{})
		begin := w.now()
		var held *lock.HeldError
		for {
			le, err := l.TryAcquire(w.Context(), "n")
			if err == nil {
				w.between("dead lease ended after", w.now()-begin, lock.Standstill(lease), lock.Standstill(lease)+time.Second)
				if held.Observed < lease || held.Why != "first" {
					t.Errorf("the last refusal: %+v", held)
				}
				w.must(le.Check(0))
				return
			}
			if !errors.As(err, &held) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestANewVersionStartsTheWaitAgain(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		w.mem.Inject(isolate(0))
		l := w.locker(lock.Options{})
		w.refused(l)
		time.Sleep(lock.Standstill(lease) - time.Second)
		w.refused(l)
		// A renewal at the last moment, for example one that was delayed for long.
		w.mem.Inject(nil)
		_, ok, err := w.store().Renew(w.Context(), "n", holdOf(le), lock.NewVersion())
		w.must(err)
		if !ok {
			t.Fatal("not renewed")
		}
		w.mem.Inject(isolate(0))
		time.Sleep(2 * time.Second)
		w.refused(l)
		time.Sleep(lock.Standstill(lease) - time.Millisecond)
		w.refused(l)
		time.Sleep(time.Millisecond)
		w.try(l)
	})
}

// After a release the lock goes to a waiter within one poll.
func TestHandOff(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		waiter := w.locker(lock.Options{})
		var wg sync.WaitGroup
		var got time.Duration
		wg.Go(func() {
			w.acquire(waiter)
			got = w.now()
		})
		time.Sleep(time.Minute)
		released := w.now()
		w.must(le.Release(w.Context()))
		wg.Wait()
		w.between("hand-off", got-released, 0, 250*time.Millisecond)
		w.between("reads per minute of a waiter", time.Duration(waiter.Stats().Polls), 240, 1000)
	})
}

func TestLostAtTheDeadlineWhateverTheRenewerDoes(t *testing.T) {
	for name, fault := range map[string]locktest.Fault{
		"requests lost":                {LoseRequest: true},
		"replies lost":                 {LoseReply: true},
		"connections broken":           {BreakReply: true},
		"refused":                      {Refuse: true},
		"calls that ignore everything": {Hang: true},
		"rolled back":                  {Rollback: time.Minute},
		"very late":                    {Late: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) { lostAtTheDeadline(w, fault) })
		})
	}
}

func lostAtTheDeadline(w *world, fault locktest.Fault) {
	le := w.acquire(w.locker(lock.Options{}))
	renewed := lease / 5 * 3 // the third renewal is the last one that works
	time.Sleep(renewed + time.Millisecond)
	w.mem.Inject(only(locktest.Renew, fault))
	deadline := renewed + lease - lock.Margin(lease)
	w.between("remaining", w.now()+le.Remaining(), deadline, deadline)
	select {
	case <-le.Lost():
	case <-time.After(2 * lease):
		w.Errorf("not lost %v after the deadline", w.now()-deadline)
	}
	w.between("Lost", w.now(), deadline, deadline+50*time.Millisecond)
	lost, ok := errors.AsType[*lock.LostError](context.Cause(le.Context()))
	if !ok || lost.Reason != lock.LostExpired || lost.Token != le.Token() || lost.Name != "n" || lost.Cause == nil {
		w.Errorf("cause: %v", context.Cause(le.Context()))
	}
	if err := le.Check(0); !errors.Is(err, lock.ErrLost) {
		w.Errorf("check: %v", err)
	}
	if le.Remaining() != 0 {
		w.Errorf("%v remain", le.Remaining())
	}
	w.mem.Inject(nil)
	if err := le.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
		w.Errorf("release: %v", err)
	}
	w.mem.Stop()
}

// Renewals that fail more often than not are retried: the lock is kept.
func TestFailingRenewalsAreRepeated(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			if c.Op != locktest.Renew || c.N%4 == 3 {
				return locktest.Fault{}
			}
			return []locktest.Fault{{Refuse: true}, {LoseReply: true}, {BreakReply: true}}[c.N%4]
		})
		time.Sleep(30 * time.Minute)
		w.must(le.Check(lease / 4))
	})
}

func TestTheDeadlineCountsFromTheSending(t *testing.T) {
	virtually(t, deadlineFromSending)
}

// deadlineFromSending: the answers to all operations take two seconds, which count towards the lease.
func deadlineFromSending(w *world) {
	const slow = 2 * time.Second
	w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{Reply: slow} })
	le := w.acquire(w.locker(lock.Options{}))
	w.between("remaining after a slow acquisition", le.Remaining(), 0, lease-lock.Margin(lease)-slow)
	const often = 100 * time.Millisecond
	for range lease / often { // also just after the answer to a renewal
		time.Sleep(often)
		w.between("remaining, with slow renewals", le.Remaining(), lease/2, lease-lock.Margin(lease)-slow)
	}
}

// Whatever store and network do to one operation of an acquisition, the caller gets the lock, no other process does, and
// nothing is left locked afterwards.
func TestUnclearAnswersOfAnAcquisition(t *testing.T) {
	faults := map[string]locktest.Fault{
		"reply lost":       {LoseReply: true},
		"reply broken":     {BreakReply: true},
		"request lost":     {LoseRequest: true},
		"refused":          {Refuse: true},
		"late by a moment": {Late: 3 * time.Millisecond},
		"late by a lot":    {Late: 7 * time.Second},
		"rolled back":      {Rollback: 10 * time.Second},
		"hung":             {Hang: true},
	}
	for _, op := range []locktest.Op{locktest.Create, locktest.Acquire, locktest.TakeOver, locktest.Confirm} {
		for name, fault := range faults {
			t.Run(fmt.Sprint(op, " ", name), func(t *testing.T) {
				virtually(t, func(w *world) { unclearAcquisition(w, op, fault) })
			})
		}
	}
}

func unclearAcquisition(w *world, op locktest.Op, fault locktest.Fault) {
	var before int64
	if op != locktest.Create {
		first := w.acquire(w.locker(lock.Options{}))
		before = first.Token()
		if op == locktest.TakeOver {
			w.mem.Inject(isolate(0))
			time.Sleep(time.Second)
		} else {
			w.must(first.Release(w.Context()))
		}
	}
	l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
	isolated := op == locktest.TakeOver
	faulty := 3 // operations of the kind under test that fail
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		switch {
		case isolated && c.Handle == 0:
			return locktest.Fault{LoseRequest: true}
		case op == locktest.Confirm && c.Op == locktest.Acquire && faulty == 3:
			faulty--
			return locktest.Fault{BreakReply: true} // makes a Confirm necessary
		case c.Op == op && faulty > 0:
			faulty--
			return fault
		}
		return locktest.Fault{}
	})
	le := w.acquire(l)
	if le.Token() <= before {
		w.Errorf("token %d after %d", le.Token(), before)
	}
	r, _ := w.mem.Get("n")
	if r.Hold == nil || r.Hold.ID != lock.HoldOf(le) || r.Token != le.Token() {
		w.Fatalf("a lease with token %d, but the record says %+v", le.Token(), r)
	}
	if held := w.refused(other); held.Token != le.Token() {
		w.Errorf("others see token %d, want %d", held.Token, le.Token())
	}
	time.Sleep(3 * lease) // all late requests have arrived
	w.must(le.Check(lease / 2))
	w.refused(other)
	w.must(le.Release(w.Context()))
	next := w.try(other) // at once
	if next.Token() <= le.Token() {
		w.Errorf("token %d after %d", next.Token(), le.Token())
	}
	if fault.Hang {
		w.mem.Stop()
	}
}

// The caller's context ends while the outcome is unclear: it gets the context's error, and the lock is freed in the background.
func TestAnAbandonedAttemptIsUndone(t *testing.T) {
	for name, tc := range map[string]struct {
		fault locktest.Fault
		free  time.Duration // after the end of the context
	}{
		"reply lost":    {locktest.Fault{LoseReply: true}, lock.OpTimeout(lease)},
		"reply broken":  {locktest.Fault{BreakReply: true}, 50 * time.Millisecond},
		"reply slow":    {locktest.Fault{Reply: 2 * time.Second}, 2 * time.Second},
		"request slow":  {locktest.Fault{Request: 2 * time.Second}, 2 * time.Second},
		"never arrived": {locktest.Fault{LoseRequest: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
				w.must(w.acquire(other).Release(w.Context()))
				ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
				defer cancel()
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					switch {
					case c.Handle == 0 && c.Op == locktest.Acquire:
						return tc.fault
					case c.Handle == 0 && c.Op == locktest.Confirm:
						return locktest.Fault{Refuse: true}
					}
					return locktest.Fault{}
				})
				begin := w.now()
				_, err := l.Acquire(ctx, "n")
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("got %v, want the context's error", err)
				}
				w.between("the wait", w.now()-begin, 100*time.Millisecond, 100*time.Millisecond)
				ended := w.now()
				w.acquire(other)
				w.between("freed after", w.now()-ended, 0, tc.free+300*time.Millisecond)
			})
		})
	}
}

// An attempt that arrives after it was undone is an orphan: this Locker takes it over at once, other Lockers after one lease.
func TestAnOrphan(t *testing.T) {
	orphan := func(w *world) (own, other *lock.Locker) {
		own, other = w.locker(lock.Options{}), w.locker(lock.Options{})
		w.must(w.acquire(other).Release(w.Context()))
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			switch c.Op {
			case locktest.Acquire:
				return locktest.Fault{Late: 5 * time.Second}
			case locktest.Confirm:
				return locktest.Fault{Refuse: true}
			}
			return locktest.Fault{}
		})
		if _, err := own.TryAcquire(w.Context(), "n"); !errors.Is(err, lock.ErrUnavailable) {
			w.Fatalf("got %v", err)
		}
		w.mem.Inject(nil)
		time.Sleep(6 * time.Second)
		if r, _ := w.mem.Get("n"); r.Hold == nil {
			w.Fatal("the late attempt has not arrived: this test proves nothing")
		}
		return own, other
	}
	t.Run("own", func(t *testing.T) {
		virtually(t, func(w *world) {
			own, _ := orphan(w)
			w.try(own)
		})
	})
	t.Run("other", func(t *testing.T) {
		virtually(t, func(w *world) {
			_, other := orphan(w)
			begin := w.now()
			w.acquire(other)
			w.between("wait", w.now()-begin, lock.Standstill(lease), lock.Standstill(lease)+time.Millisecond)
		})
	})
}

// No wait outlives its context, whatever the store does.
func TestWaitsEndWithTheirContext(t *testing.T) {
	for name, fault := range map[string]locktest.Fault{
		"held":         {},
		"no answer":    {LoseRequest: true},
		"hung":         {Hang: true},
		"failing":      {Refuse: true},
		"slow replies": {Reply: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				w.acquire(w.locker(lock.Options{}))
				l := w.locker(lock.Options{})
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					if c.Handle == 1 {
						return fault
					}
					return locktest.Fault{}
				})
				ctx, cancel := context.WithCancelCause(w.Context())
				boom := errors.New("boom")
				time.AfterFunc(7777*time.Millisecond, func() { cancel(boom) })
				begin := w.now()
				_, err := l.Acquire(ctx, "n")
				w.between("returned after", w.now()-begin, 7777*time.Millisecond, 7777*time.Millisecond)
				if !errors.Is(err, context.Canceled) || !errors.Is(err, boom) {
					t.Errorf("got %v, want the context's error and its cause", err)
				}
				if name == "held" && !errors.Is(err, lock.ErrHeld) {
					t.Errorf("got %v, want it to say that the lock is held", err)
				}
				if name == "failing" && !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("got %v, want it to say that the store fails", err)
				}
				w.mem.Inject(nil)
				w.mem.Stop()
			})
		})
	}
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if _, err := l.Acquire(ctx, "n"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if n := w.mem.Calls(locktest.Acquire) + w.mem.Calls(locktest.Read); n != 0 {
			t.Errorf("%d operations were sent", n)
		}
	})
}

func TestTimedWait(t *testing.T) {
	virtually(t, func(w *world) {
		w.acquire(w.locker(lock.Options{}), lock.WithWhy("export"))
		l := w.locker(lock.Options{})
		begin := w.now()
		_, err := l.Acquire(w.Context(), "n", lock.WithWait(3*time.Second))
		w.between("waited", w.now()-begin, 3*time.Second, 3*time.Second)
		held, ok := errors.AsType[*lock.HeldError](err)
		if !ok || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want a HeldError that is not a context error", err)
		}
		if held.Why != "export" || held.Own || held.Owner.PID == 0 || held.Lease != lease || held.Observed < 2*time.Second {
			t.Errorf("the error has %+v", held)
		}
		for _, part := range []string{`"n"`, "export", held.Owner.Instance} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	})
}

// A wait that is shorter than the store's answers ends with the first of them.
func TestWaitShorterThanAnAnswer(t *testing.T) {
	slow := func(locktest.Call) locktest.Fault {
		return locktest.Fault{Request: 100 * time.Millisecond, Reply: 100 * time.Millisecond}
	}
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}), lock.WithWhy("export"))
		l, fresh := w.locker(lock.Options{}), w.locker(lock.Options{})
		w.mem.Inject(slow)
		_, err := l.Acquire(w.Context(), "n", lock.WithWait(50*time.Millisecond))
		if held, ok := errors.AsType[*lock.HeldError](err); !ok || held.Why != "export" {
			t.Errorf("held by another process: got %v", err)
		}
		w.mem.Inject(nil)
		w.must(le.Release(w.Context()))

		w.mem.Inject(slow)
		for _, l := range []*lock.Locker{l, fresh} {
			le, err := l.Acquire(w.Context(), "n", lock.WithWait(50*time.Millisecond))
			if err != nil {
				t.Fatalf("a free lock: got %v", err)
			}
			w.must(le.Check(0))
			w.must(le.Release(w.Context()))
		}
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
		began := w.now()
		if _, err := l.Acquire(w.Context(), "n", lock.WithWait(50*time.Millisecond)); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("a store that does not answer: got %v", err)
		}
		w.between("the wait", w.now()-began, 0, 3*lock.OpTimeout(lease))
		ctx, cancel := context.WithTimeout(w.Context(), 70*time.Millisecond)
		defer cancel()
		began = w.now()
		if _, err := l.Acquire(ctx, "n", lock.WithWait(50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a context that ends: got %v", err)
		}
		w.between("the wait", w.now()-began, 70*time.Millisecond, 75*time.Millisecond)
		w.mem.Inject(nil)
	})
}

func TestAProcessThatWaitsForItselfIsToldSo(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.acquire(l)
		if held := w.refused(l); !held.Own || !strings.Contains(held.Error(), "itself") {
			t.Errorf("%v", held)
		}
	})
}

func TestAnUnavailableStoreIsABoundedError(t *testing.T) {
	for name, fault := range map[string]locktest.Fault{"no answer": {LoseRequest: true}, "refused": {Refuse: true}, "hung": {Hang: true}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				l := w.locker(lock.Options{})
				w.mem.Inject(func(locktest.Call) locktest.Fault { return fault })
				begin := w.now()
				_, err := l.TryAcquire(w.Context(), "n")
				unavailable, ok := errors.AsType[*lock.UnavailableError](err)
				if !ok || !strings.Contains(err.Error(), "check that it runs") || unavailable.Cause == nil {
					t.Errorf("TryAcquire: %v", err)
				}
				w.between("TryAcquire", w.now()-begin, 0, 2*lock.OpTimeout(lease)+time.Second)
				begin = w.now()
				_, err = l.Acquire(w.Context(), "n")
				if !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("Acquire: %v", err)
				}
				w.between("Acquire", w.now()-begin, lock.DefaultGiveUpAfter, lock.DefaultGiveUpAfter+lock.OpTimeout(lease)+2*time.Second)
				w.mem.Inject(nil)
				w.mem.Stop()
			})
		})
	}
}

// A full disk refuses writes and answers reads.
func TestWritesThatFailAreABoundedError(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"no record":   func(*world) {},
		"free":        func(w *world) { w.must(w.acquire(w.locker(lock.Options{})).Release(w.Context())) },
		"dead holder": func(w *world) { w.acquire(w.locker(lock.Options{})) },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				prepare(w)
				full := func(c locktest.Call) locktest.Fault {
					return locktest.Fault{Refuse: c.Op != locktest.Read && c.Op != locktest.Confirm}
				}
				w.mem.Inject(full)
				time.Sleep(lock.Standstill(lease))
				l := w.locker(lock.Options{})
				ctx, cancel := context.WithTimeout(w.Context(), time.Hour)
				defer cancel()
				dead := 0 * time.Second // how long it takes to find the holder dead
				if name == "dead holder" {
					dead = lock.Standstill(lease)
				}
				begin := w.now()
				_, err := l.Acquire(ctx, "n")
				unavailable, ok := errors.AsType[*lock.UnavailableError](err)
				if !ok || !errors.Is(unavailable.Cause, locktest.ErrInjected) || ctx.Err() != nil {
					t.Errorf("Acquire: %v", err)
				}
				w.between("Acquire", w.now()-begin, dead+lock.DefaultGiveUpAfter, dead+lock.DefaultGiveUpAfter+2*time.Second)
				begin = w.now()
				if _, err := l.TryAcquire(ctx, "n"); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, locktest.ErrInjected) {
					t.Errorf("TryAcquire: %v", err)
				}
				w.between("TryAcquire", w.now()-begin, 0, 3*time.Second)
				begin = w.now()
				var line sync.WaitGroup
				for range 5 {
					line.Go(func() {
						if _, err := l.Acquire(ctx, "n"); !errors.Is(err, lock.ErrUnavailable) {
							t.Errorf("Acquire in a queue: %v", err)
						}
					})
				}
				line.Wait()
				w.between("a queue of five", w.now()-begin, lock.DefaultGiveUpAfter, lock.DefaultGiveUpAfter+5*2*time.Second) // each tries at least once more
				w.mem.Inject(nil)
				w.acquire(l)
			})
		})
	}
}

// Two writes fail, long after each other. In between the waiter only reads, because another process holds the lock.
func TestAWaiterThatOnlyReadsDoesNotGiveUp(t *testing.T) {
	virtually(t, func(w *world) {
		holder := w.acquire(w.locker(lock.Options{}), lock.WithWhy("export"))
		l := w.locker(lock.Options{})
		fails := true // the next acquisition
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			f := locktest.Fault{Refuse: fails && c.Op == locktest.Acquire}
			fails = fails && !f.Refuse
			return f
		})
		if held := w.refused(l); held.Why != "export" {
			t.Errorf("TryAcquire: %v", held)
		}
		again := w.locker(lock.Options{}) // tries to acquire before it reads
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			return locktest.Fault{Refuse: c.Op == locktest.Acquire && w.now() < 3*lock.DefaultGiveUpAfter+time.Second}
		})
		time.AfterFunc(3*lock.DefaultGiveUpAfter, func() { w.must(holder.Release(w.Context())) })
		w.acquire(again)
		w.between("acquired", w.now(), 3*lock.DefaultGiveUpAfter+time.Second, 3*lock.DefaultGiveUpAfter+3*time.Second)
	})
}

// Two writes fail, long after each other. In between other writes get clear answers, although they do not win.
func TestAWriteWithAClearAnswerShowsThatTheStoreWorks(t *testing.T) {
	virtually(t, func(w *world) {
		w.must(w.acquire(w.locker(lock.Options{})).Release(w.Context()))
		const until = 2 * lock.DefaultGiveUpAfter
		losing := &racing{until: w.start.Add(until)}
		w.wrap = func(s lock.Store) lock.Store { losing.Store = s; return losing }
		w.acquire(w.locker(lock.Options{}))
		w.between("acquired", w.now(), until, until+2*time.Second)
		if losing.failed != 2 {
			t.Errorf("%d writes failed, want 2", losing.failed)
		}
	})
}

// racing fails the first acquisition and the first after until. Those in between lose a race.
type racing struct {
	lock.Store
	until  time.Time
	failed int
}

func (r *racing) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	late := !time.Now().Before(r.until)
	switch {
	case r.failed == 0, r.failed == 1 && late:
		r.failed++
		return 0, false, locktest.ErrInjected
	case !late:
		return 0, false, nil
	}
	return r.Store.Acquire(ctx, name, h, v)
}

// Reads keep showing a write of ours that was rolled back.
func TestATryWhoseWriteIsRolledBackIsNotToldThatTheLockIsHeld(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.mem.Inject(only(locktest.Create, locktest.Fault{Rollback: time.Hour}))
		_, err := l.TryAcquire(w.Context(), "n")
		if !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, locktest.ErrInjected) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAcquireSurvivesAnElection(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			if w.now() < 12*time.Second {
				return locktest.Fault{Refuse: true}
			}
			return locktest.Fault{}
		})
		w.acquire(l)
		w.between("acquired", w.now(), 12*time.Second, 14*time.Second)
	})
}

func TestAPermanentErrorIsNotRepeated(t *testing.T) {
	virtually(t, func(w *world) {
		denied := fmt.Errorf("no role: %w", lock.ErrPermanent)
		w.wrap = func(s lock.Store) lock.Store { return denying{s, denied} }
		_, err := w.locker(lock.Options{}).Acquire(w.Context(), "n")
		if !errors.Is(err, denied) || w.now() != 0 {
			t.Errorf("after %v: %v", w.now(), err)
		}
		w.wrap = nil
	})
}

type denying struct {
	lock.Store
	err error
}

func (d denying) Acquire(context.Context, string, lock.Hold, lock.Version) (int64, bool, error) {
	return 0, false, d.err
}

// A refusal ends RaiseToken at once, while the lease is still held.
func TestRefusedRaiseIsNotRepeated(t *testing.T) {
	virtually(t, func(w *world) {
		denied := fmt.Errorf("no role: %w", lock.ErrPermanent)
		w.wrap = func(s lock.Store) lock.Store { return denyingConfirm{s, denied} }
		le := w.acquire(w.locker(lock.Options{}))
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		_, err := le.RaiseToken(ctx, raiseTo)
		if !errors.Is(err, denied) || w.now() != 0 || le.Check(0) != nil {
			t.Errorf("after %v: %v", w.now(), err)
		}
	})
}

const raiseTo = 1 << 60

// denyingConfirm refuses to raise a token above raiseTo.
type denyingConfirm struct {
	lock.Store
	err error
}

func (d denyingConfirm) Confirm(ctx context.Context, name string, h lock.Hold, floor int64, v lock.Version) (int64, bool, error) {
	if floor == raiseTo {
		return 0, false, d.err
	}
	return d.Store.Confirm(ctx, name, h, floor, v) // the lock is being acquired
}

// A server that refuses has answered: the error is not ErrUnavailable.
func TestARefusedRelease(t *testing.T) {
	virtually(t, func(w *world) {
		denied := fmt.Errorf("no role: %w", lock.ErrPermanent)
		w.wrap = func(s lock.Store) lock.Store { return denyingRelease{s, denied} }
		err := w.acquire(w.locker(lock.Options{})).Release(w.Context())
		if !errors.Is(err, denied) || errors.Is(err, lock.ErrUnavailable) || w.now() != 0 {
			t.Errorf("after %v: %v", w.now(), err)
		}
	})
}

type denyingRelease struct {
	lock.Store
	err error
}

func (d denyingRelease) Release(context.Context, string, lock.Hold, lock.Version) (bool, error) {
	return false, d.err
}

func TestReleaseIsIdempotent(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		le := w.acquire(l)
		w.mem.Inject(only(locktest.Release, locktest.Fault{Request: time.Second}))
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { w.must(le.Release(w.Context())) })
		}
		wg.Wait()
		w.must(le.Release(w.Context()))
		if n := w.mem.Calls(locktest.Release); n != 1 {
			t.Errorf("released %d times", n)
		}
		if err := le.Check(0); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("check after release: %v", err)
		}
		if cause := context.Cause(le.Context()); !errors.Is(cause, lock.ErrReleased) {
			t.Errorf("cause after release: %v", cause)
		}
		if w.lost(le) {
			t.Error("released is not lost")
		}
		if _, err := le.RaiseToken(w.Context(), 5); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("raise after release: %v", err)
		}
		time.Sleep(2 * lease)
		if n := w.mem.Calls(locktest.Renew); n != 0 {
			t.Errorf("renewed %d times after release", n)
		}
	})
}

func TestReleaseRunsOnItsOwnContext(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		le := w.acquire(l)
		w.mem.Inject(only(locktest.Release, locktest.Fault{Request: time.Second}))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if err := le.Release(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		w.between("returned", w.now(), 0, 0)
		w.acquire(other, lock.WithWait(time.Minute))
		w.between("free", w.now(), time.Second, time.Second+250*time.Millisecond)
		w.must(le.Release(w.Context())) // the release has ended by now
	})
}

func TestReleaseRepeatsUntilAnswered(t *testing.T) {
	for name, fault := range map[string]locktest.Fault{
		"reply lost": {LoseReply: true}, "reply broken": {BreakReply: true}, "refused": {Refuse: true},
		"request lost": {LoseRequest: true}, "hung": {Hang: true}, "rolled back": {Rollback: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				le := w.acquire(w.locker(lock.Options{}))
				other := w.locker(lock.Options{})
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					if c.Op == locktest.Release && c.N < 3 {
						return fault
					}
					return locktest.Fault{}
				})
				w.must(le.Release(w.Context()))
				w.between("released", w.now(), 0, 3*lock.OpTimeout(lease)+2*time.Second)
				w.try(other)
				w.mem.Stop()
			})
		})
	}
}

func TestReleaseGivesUpAfterOneLease(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		le := w.acquire(l)
		w.mem.Inject(only(locktest.Release, locktest.Fault{Refuse: true}))
		err := le.Release(w.Context())
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "frees itself") {
			t.Errorf("got %v", err)
		}
		w.between("gave up", w.now(), lease, lease+2*time.Second)
		// The process itself knows that the hold is dead.
		w.try(l)
	})
}

func TestReleaseAfterLossFreesTheLockEarly(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		le := w.acquire(l)
		w.mem.Inject(isolate(0))
		<-le.Lost()
		w.mem.Inject(nil)
		// Until the code that used the lease calls Release, the lock stays held, even for the same process.
		w.refused(l)
		w.refused(other)
		err := le.Release(w.Context())
		lost, ok := errors.AsType[*lock.LostError](err)
		if !ok || lost.Reason != lock.LostExpired {
			t.Errorf("release after loss: %v", err)
		}
		if !errors.Is(le.Release(w.Context()), lock.ErrLost) {
			t.Error("a second release after the loss must also return ErrLost")
		}
		begin := w.now()
		w.acquire(other)
		w.between("free", w.now()-begin, 0, 250*time.Millisecond)
	})
}

func TestAZombieNeverTouchesItsSuccessor(t *testing.T) {
	virtually(t, zombie)
}

// zombie: a holder is cut off for so long that another one takes over; then its late requests arrive.
func zombie(w *world) {
	old := w.acquire(w.locker(lock.Options{}))
	w.mem.Inject(isolate(0))
	next := w.acquire(w.locker(lock.Options{}))
	if next.Token() <= old.Token() {
		w.Errorf("token %d after %d", next.Token(), old.Token())
	}
	w.mem.Inject(nil)
	before, _ := w.mem.Get("n")
	_, ok, err := w.store().Renew(w.Context(), "n", holdOf(old), lock.NewVersion())
	w.must(err)
	if ok {
		w.Errorf("the zombie's late renewal matched")
	}
	if after, _ := w.mem.Get("n"); after.Version != before.Version {
		w.Errorf("the zombie prolonged its successor's lease")
	}
	if err := old.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
		w.Errorf("the zombie's release: %v", err)
	}
	time.Sleep(lease)
	after, _ := w.mem.Get("n")
	if after.Hold == nil || after.Hold.ID != lock.HoldOf(next) {
		w.Errorf("the zombie released its successor's lock")
	}
	if err := next.Check(lease / 2); err != nil {
		w.Errorf("the successor: %v", err)
	}
}

// A holder that lost the lock before its deadline (forced release, an operator) notices at its next renewal.
func TestAHolderNoticesThatItsHoldIsGone(t *testing.T) {
	for name, edit := range map[string]func(*lock.Record) bool{
		"deleted":  func(*lock.Record) bool { return false },
		"released": func(r *lock.Record) bool { r.Hold = nil; return true },
		"replaced": func(r *lock.Record) bool {
			r.Hold = &lock.Hold{ID: lock.NewHoldID(), Lease: lease}
			r.Token++
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				l := w.locker(lock.Options{})
				le := w.acquire(l)
				w.mem.Edit("n", edit)
				<-le.Lost()
				w.between("noticed", w.now(), 0, lease/5)
				lost, ok := errors.AsType[*lock.LostError](context.Cause(le.Context()))
				if !ok || lost.Reason != lock.LostGone {
					t.Errorf("cause: %v", context.Cause(le.Context()))
				}
				if l.Stats().LostGone != 1 {
					t.Errorf("stats: %+v", l.Stats())
				}
			})
		})
	}
}

func TestReleaseOfAHoldThatIsGone(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		w.mem.Edit("n", func(r *lock.Record) bool { r.Hold = nil; return true })
		if err := le.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v, want ErrLost: another process may have held the lock meanwhile", err)
		}
	})
}

func TestTokensGrowOverDeletionOfTheRecord(t *testing.T) {
	virtually(t, func(w *world) {
		a, b := w.locker(lock.Options{}), w.locker(lock.Options{})
		var last int64
		for i := range 6 {
			l := []*lock.Locker{a, b, b}[i%3]
			le := w.acquire(l)
			if le.Token() <= last {
				t.Errorf("token %d after %d", le.Token(), last)
			}
			last = le.Token()
			time.Sleep(time.Millisecond)
			w.mem.Edit("n", func(*lock.Record) bool { return false })
			_ = le.Release(w.Context())
		}
	})
}

// The wall clock only seeds the token of a name without a record. It may jump, and be wrong by years.
func TestWallClockJumpsDoNotMatter(t *testing.T) {
	virtually(t, func(w *world) {
		wall := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		o := lock.Options{Wall: func() time.Time { return wall }}
		l, other := w.locker(o), w.locker(o)
		le := w.acquire(l)
		for _, jump := range []time.Duration{time.Hour, -3 * time.Hour, 87600 * time.Hour, -200000 * time.Hour} {
			wall = wall.Add(jump)
			time.Sleep(lease)
			w.must(le.Check(lease / 2))
			w.refused(other)
		}
		// The wall clock is now in 2013. A process that has seen the name continues above the tokens that it has seen.
		last := le.Token()
		w.mem.Edit("n", func(*lock.Record) bool { return false })
		_ = le.Release(w.Context())
		for i, l := range []*lock.Locker{l, other} {
			le := w.acquire(l)
			if le.Token() <= last {
				t.Errorf("token %d after %d", le.Token(), last)
			}
			last = le.Token()
			w.refused([]*lock.Locker{other, l}[i]) // the other one sees the token
			w.mem.Edit("n", func(*lock.Record) bool { return false })
			_ = le.Release(w.Context())
		}
		// A process that has not needs the token from a resource that remembers it, such as the file.
		fresh := w.acquire(w.locker(o))
		token, err := fresh.RaiseToken(w.Context(), last)
		w.must(err)
		if token != last+1 || fresh.Token() != token {
			t.Errorf("raised to %d (%d), want %d", token, fresh.Token(), last+1)
		}
	})
}

func TestRaiseToken(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		le := w.acquire(l)
		first := le.Token()
		token, err := le.RaiseToken(w.Context(), first-1)
		w.must(err)
		if token != first {
			t.Errorf("a floor below the token changed it from %d to %d", first, token)
		}
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			return locktest.Fault{BreakReply: c.Op == locktest.Confirm && c.N%3 != 0} // to be retried
		})
		token, err = le.RaiseToken(w.Context(), first+1000)
		w.must(err)
		if token != first+1001 || le.Token() != token {
			t.Errorf("raised to %d, lease says %d, want %d", token, le.Token(), first+1001)
		}
		if _, err := le.RaiseToken(w.Context(), math.MaxInt64); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("an invalid floor: %v", err)
		}
		w.mem.Inject(nil)
		time.Sleep(lease)
		w.must(le.Release(w.Context()))
		if next := w.acquire(other); next.Token() <= token {
			t.Errorf("token %d after %d", next.Token(), token)
		}
	})
}

func TestRaiseTokenEndsWithItsContextAndTheLease(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		w.mem.Inject(isolate(0))
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		if _, err := le.RaiseToken(ctx, 1<<61); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.between("gave up", w.now(), 5*time.Second, 5*time.Second)
		if _, err := le.RaiseToken(w.Context(), 1<<61); !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
		w.between("gave up", w.now(), lease-lock.Margin(lease), lease-lock.Margin(lease))
		w.mem.Inject(nil)
		le = w.acquire(w.locker(lock.Options{}))
		w.must(le.Release(w.Context()))
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{Request: time.Second} })
		if _, err := le.RaiseToken(w.Context(), 1<<61); !errors.Is(err, lock.ErrReleased) || err.Error() != le.Check(0).Error() {
			t.Errorf("after the release: %v, want %v", err, le.Check(0))
		}
	})
}

func TestCheck(t *testing.T) {
	virtually(t, func(w *world) {
		le := w.acquire(w.locker(lock.Options{}))
		all := lease - lock.Margin(lease)
		w.must(le.Check(all))
		if err := le.Check(all + 1); !errors.Is(err, lock.ErrTooShort) {
			t.Errorf("got %v", err)
		}
		w.must(le.Check(-time.Hour))
	})
}

// The process is stopped (SIGSTOP, a suspended machine) while the clock runs on. When it resumes, it notices the loss at once.
func TestAPauseBeyondTheLease(t *testing.T) {
	virtually(t, func(w *world) {
		var paused atomic.Int64
		l := w.locker(lock.Options{Clock: func() time.Duration { return w.now() + time.Duration(paused.Load()) }})
		le := w.acquire(l)
		time.Sleep(time.Second)
		paused.Store(int64(time.Minute))
		// Before any timer has fired:
		if err := le.Check(0); !errors.Is(err, lock.ErrLost) {
			t.Errorf("check: %v", err)
		}
		if !w.lost(le) {
			t.Error("not lost")
		}
		other := w.acquire(w.locker(lock.Options{}))
		w.must(other.Check(0))
	})
}

// As before, but Check is not called: the timer notices at its next regular check, not only when it would have reached the deadline.
func TestASuspendedMachine(t *testing.T) {
	virtually(t, func(w *world) {
		var suspended atomic.Int64
		le := w.acquire(w.locker(lock.Options{Clock: func() time.Duration { return w.now() + time.Duration(suspended.Load()) }}))
		w.mem.Inject(isolate(0))
		time.Sleep(time.Second)
		begin := w.now()
		suspended.Store(int64(time.Hour))
		<-le.Lost()
		w.between("noticed", w.now()-begin, 0, lease/16)
	})
}

// The machine sleeps past the deadline while a renewal is in flight, and its answer is processed before the timer fires.
func TestAnAnswerAfterTheDeadlineRevivesNothing(t *testing.T) {
	virtually(t, func(w *world) {
		var suspended atomic.Int64
		le := w.acquire(w.locker(lock.Options{Clock: func() time.Duration { return w.now() + time.Duration(suspended.Load()) }}))
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			if c.Op == locktest.Renew {
				suspended.CompareAndSwap(0, int64(lease-lease/5)) // the lease has expired; one that counts from the renewal would not have
			}
			return locktest.Fault{}
		})
		time.Sleep(lease/5 + time.Millisecond)
		if suspended.Load() == 0 {
			t.Fatal("not renewed yet")
		}
		if !w.lost(le) || le.Check(0) == nil {
			t.Errorf("the lease lasts for another %v", le.Remaining())
		}
	})
}

// The machine sleeps for an hour while a request is in flight, and then the connection is broken. That is one failure, not an hour of failures.
func TestASuspensionIsNoOutage(t *testing.T) {
	virtually(t, func(w *world) {
		var (
			suspended atomic.Int64
			sleeps    atomic.Bool // during the next request
		)
		l := w.locker(lock.Options{Clock: func() time.Duration { return w.now() + time.Duration(suspended.Load()) }})
		w.mem.Inject(func(locktest.Call) locktest.Fault {
			lost := sleeps.CompareAndSwap(true, false)
			if lost {
				suspended.Add(int64(time.Hour))
			}
			return locktest.Fault{LoseRequest: lost}
		})
		sleeps.Store(true)
		le := w.acquire(l)
		w.must(le.Check(0))
		sleeps.Store(true)
		w.must(le.Release(w.Context()))
		sleeps.Store(true)
		if _, err := l.Inspect(w.Context(), "n"); err != nil {
			t.Error(err)
		}
		if n := time.Duration(suspended.Load()); n != 3*time.Hour {
			t.Errorf("slept for %v, want one hour for each of the three", n)
		}
	})
}

// The machine is suspended while a read, or a confirmation, is on its way between two failed writes.
func TestASuspensionBetweenFailedWritesIsNoOutage(t *testing.T) {
	for _, during := range []locktest.Op{locktest.Read, locktest.Confirm} {
		t.Run(string(during), func(t *testing.T) {
			virtually(t, func(w *world) {
				w.must(w.acquire(w.locker(lock.Options{})).Release(w.Context()))
				var suspended atomic.Int64
				l := w.locker(lock.Options{Clock: func() time.Duration { return w.now() + time.Duration(suspended.Load()) }})
				failed := 0
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					switch {
					case c.Op == locktest.Acquire && failed < 2:
						failed++
						return locktest.Fault{Refuse: true}
					case c.Op == during && failed == 1:
						suspended.Store(int64(time.Hour))
					}
					return locktest.Fault{}
				})
				w.acquire(l)
				if failed != 2 || suspended.Load() == 0 {
					t.Errorf("%d writes failed, suspended for %v", failed, time.Duration(suspended.Load()))
				}
			})
		})
	}
}

// The answer to an acquisition is so old when it is processed that the lease may have expired.
func TestAStaleGrantIsConfirmedFirst(t *testing.T) {
	for _, op := range []locktest.Op{locktest.Create, locktest.Acquire} {
		t.Run(string(op), func(t *testing.T) {
			virtually(t, func(w *world) {
				var paused atomic.Int64
				l := w.locker(lock.Options{Clock: func() time.Duration { return w.now() + time.Duration(paused.Load()) }})
				if op == locktest.Acquire {
					w.must(w.acquire(l).Release(w.Context())) // there is a record
				}
				confirmed := w.mem.Calls(locktest.Confirm)
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					if c.Op == op {
						paused.Store(int64(time.Minute)) // the process is stopped while its request is in flight
					}
					return locktest.Fault{}
				})
				le := w.acquire(l)
				if n := w.mem.Calls(locktest.Confirm) - confirmed; n != 1 {
					t.Errorf("confirmed %d times, want once", n)
				}
				w.must(le.Check(lease / 2))
			})
		})
	}
}

// The context ends after the answer has arrived, but before it is processed.
func TestACallerWhoseContextEndedGetsNoLock(t *testing.T) {
	for range 10 { // the end of the context and the answer arrive at the same moment: in most rounds the answer is seen first
		virtually(t, contextEndsWithTheAnswer)
	}
}

func contextEndsWithTheAnswer(w *world) {
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	var armed, answered atomic.Bool
	l := w.locker(lock.Options{Clock: func() time.Duration {
		if answered.Load() {
			cancel()
		}
		return w.now()
	}})
	w.must(w.acquire(l).Release(w.Context()))
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		if armed.Load() && c.Op == locktest.Acquire {
			answered.Store(true) // before the clock is read again
		}
		return locktest.Fault{}
	})
	armed.Store(true)
	if le, err := l.Acquire(ctx, "n"); !errors.Is(err, context.Canceled) {
		w.Fatalf("got %v and a lease (%v), want the context's error", err, le != nil)
	}
	if !answered.Load() {
		w.Fatal("the context ended too early: this test proves nothing")
	}
	time.Sleep(lock.OpTimeout(lease))
	w.must(w.try(w.locker(lock.Options{})).Release(w.Context()))
}

// hearsIDs is a store that records the ids with which records are created and places in the queue are taken.
type hearsIDs struct {
	lock.Store
	created, queued *[]lock.HoldID
}

func (s hearsIDs) Create(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	*s.created = append(*s.created, h.ID)
	return s.Store.Create(ctx, name, h, v)
}

func (s hearsIDs) Enqueue(ctx context.Context, name string, e lock.Entry) (lock.Record, bool, error) {
	*s.queued = append(*s.queued, e.ID)
	return s.Store.Enqueue(ctx, name, e)
}

// An insert whose answer was lost may arrive at any later time. So its id is not used again.
func TestAnIDIsInsertedOnce(t *testing.T) {
	for _, taken := range []bool{false, true} { // the lock, by another process meanwhile
		t.Run(fmt.Sprintf("taken %v", taken), func(t *testing.T) {
			virtually(t, func(w *world) {
				var created, queued []lock.HoldID
				w.wrap = func(s lock.Store) lock.Store { return hearsIDs{s, &created, &queued} }
				l := w.locker(lock.Options{})
				w.wrap = nil
				other := w.locker(lock.Options{})
				w.mem.Inject(func(c locktest.Call) locktest.Fault {
					if c.Handle == 0 && c.Op == locktest.Create && len(created) == 1 {
						return locktest.Fault{LoseRequest: true}
					}
					return locktest.Fault{}
				})
				ctx, cancel := context.WithTimeout(w.Context(), lease)
				defer cancel()
				done := make(chan error, 1)
				go func() {
					_, err := l.Acquire(ctx, "n", lock.WithFair())
					done <- err
				}()
				time.Sleep(500 * time.Millisecond)
				if taken {
					w.try(other)
				}
				err := <-done
				later := append(created[1:], queued...)
				if (err == nil) == taken || len(later) == 0 || slices.Contains(later, created[0]) {
					t.Errorf("%v; created the record as %v, then used %v", err, created[0], later)
				}
			})
		})
	}
}

// The clock of the holder is slow and that of the waiter fast, each by a sixteenth: the waiter gets the lock only after the holder lost it.
func TestClocksMayDisagreeByAnEighth(t *testing.T) {
	virtually(t, func(w *world) {
		slow := w.locker(lock.Options{Clock: func() time.Duration { return w.now() * 15 / 16 }})
		fast := w.locker(lock.Options{Clock: func() time.Duration { return w.now() * 16 / 15 }})
		le := w.acquire(slow)
		w.mem.Inject(isolate(0))
		w.acquire(fast)
		if left := le.Remaining(); left > 0 {
			t.Errorf("taken over after %v, when the holder's lease still had %v left", w.now(), left)
		}
	})
}

// An abandoned attempt is undone before the store is closed.
func TestCloseWaitsForWhatIsUndone(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.must(w.acquire(l).Release(w.Context()))
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			switch {
			case c.Handle == 0 && c.Op == locktest.Acquire:
				return locktest.Fault{Reply: time.Minute}
			case c.Handle == 0 && c.Op == locktest.Release:
				return locktest.Fault{Request: time.Second}
			}
			return locktest.Fault{}
		})
		ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Acquire(ctx, "n"); err == nil {
			t.Fatal("acquired without an answer")
		}
		w.must(l.Close(w.Context()))
		w.must(w.try(w.locker(lock.Options{})).Release(w.Context()))
	})
}

func TestLeaseOutlivesTheContextOfTheAcquisition(t *testing.T) {
	virtually(t, func(w *world) {
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(w.Context(), key{}, "v"), time.Second)
		le, err := w.locker(lock.Options{}).Acquire(ctx, "n")
		w.must(err)
		cancel()
		time.Sleep(10 * lease)
		w.must(le.Check(lease / 2))
		if le.Context().Value(key{}) != "v" {
			t.Error("the values of the context are gone")
		}
	})
}

// A caller that sees a holder for the first time has not observed it for any time.
func TestHeldErrorText(t *testing.T) {
	for observed, want := range map[time.Duration]string{
		0:                      `lock "n" is held by h/7: export`,
		499 * time.Microsecond: `lock "n" is held by h/7: export`,
		time.Second:            `lock "n" is held by h/7: export, seen for 1s`,
	} {
		err := &lock.HeldError{Name: "n", Owner: lock.Process{Host: "h", PID: 7}, Why: "export", Observed: observed}
		if err.Error() != want {
			t.Errorf("after %v: %q, want %q", observed, err, want)
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		names := []string{"", strings.Repeat("x", lock.MaxName+1), "a\x00b", "line\nbreak", "\xff", "del\x7f"}
		for _, name := range names {
			_, err := l.Acquire(w.Context(), name)
			bad, ok := errors.AsType[*lock.InvalidError](err)
			if !ok || !errors.Is(err, lock.ErrInvalid) || bad.What != "lock name" {
				t.Errorf("name %q: %v", name, err)
			}
			if _, err := l.TryAcquire(w.Context(), name); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("name %q: %v", name, err)
			}
		}
		for what, opt := range map[string]lock.Option{
			"zero lease":      lock.WithLease(0),
			"negative lease":  lock.WithLease(-time.Second),
			"short lease":     lock.WithLease(lock.MinLease - 1),
			"long lease":      lock.WithLease(lock.MaxLease + 1),
			"zero wait":       lock.WithWait(0),
			"negative wait":   lock.WithWait(-1),
			"long why":        lock.WithWhy(strings.Repeat("x", lock.MaxWhy+1)),
			"why not in utf8": lock.WithWhy("\xff"),
		} {
			if _, err := l.Acquire(w.Context(), "n", opt); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, o := range map[string]lock.Options{
			"short lease":      {Lease: time.Millisecond},
			"negative lease":   {Lease: -1},
			"negative give up": {GiveUpAfter: -1},
			"long host":        {Owner: lock.Process{Host: strings.Repeat("x", lock.MaxWhy+1)}},
		} {
			if _, err := lock.New(w.store(), o); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := lock.New(nil, lock.Options{}); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("no store: %v", err)
		}
		if n := w.mem.Calls(locktest.Acquire); n != 0 {
			t.Errorf("%d operations were sent for invalid arguments", n)
		}
		w.must(w.acquire(l, lock.WithLease(lock.MinLease)).Check(lock.MinLease / 2))
	})
}

func TestCloseReleasesAndEndsWaits(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		le := w.acquire(l)
		second, err := l.Acquire(w.Context(), "m")
		w.must(err)
		w.must(func() error { _, err := other.Acquire(w.Context(), "o"); return err }())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Acquire(w.Context(), "o"); !errors.Is(err, lock.ErrClosed) {
				t.Errorf("a waiter got %v", err)
			}
		})
		time.Sleep(time.Second)
		w.must(l.Close(w.Context()))
		wg.Wait()
		w.between("closed", w.now(), time.Second, time.Second)
		for _, le := range []*lock.Lease{le, second} {
			if !errors.Is(context.Cause(le.Context()), lock.ErrReleased) {
				t.Errorf("cause: %v", context.Cause(le.Context()))
			}
			w.must(le.Release(w.Context())) // returns the result of the release by Close
		}
		w.try(other)
		for what, f := range map[string]func() error{
			"acquire":  func() error { _, err := l.Acquire(w.Context(), "n"); return err },
			`lock "o"`: func() error { _, err := l.TryAcquire(w.Context(), "o"); return err },
			"list":     func() error { _, err := l.List(w.Context()); return err },
			"raise":    func() error { _, err := le.RaiseToken(w.Context(), 1); return err },
		} {
			if err := f(); !errors.Is(err, lock.ErrClosed) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s after close: %v", what, err)
			}
		}
		w.must(l.Close(w.Context()))
	})
}

func TestCloseIsBoundedByItsContext(t *testing.T) {
	for name, fault := range map[string]locktest.Fault{"no answer": {LoseRequest: true}, "hung": {Hang: true}, "failing": {Refuse: true}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				l, err := lock.New(w.store(), lock.Options{Clock: w.now})
				w.must(err)
				w.acquire(l)
				w.mem.Inject(func(locktest.Call) locktest.Fault { return fault })
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				if err := l.Close(ctx); err == nil {
					t.Error("no error, although the lock could not be released")
				}
				w.between("closed", w.now(), 2*time.Second, 2*time.Second+100*time.Millisecond)
				w.mem.Stop()
			})
		})
	}
}

func TestList(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{Owner: lock.Process{Host: "h", PID: 1, Instance: "i"}})
		w.acquire(l, lock.WithWhy("because"))
		le, err := l.Acquire(w.Context(), "a")
		w.must(err)
		w.must(le.Release(w.Context()))
		list, err := l.List(w.Context())
		w.must(err)
		if len(list) != 2 || list[0].Name != "a" || list[0].Hold != nil || list[1].Hold == nil ||
			list[1].Hold.Why != "because" || list[1].Hold.Owner.String() != "h/1 (i)" {
			t.Errorf("list: %+v", list)
		}
	})
}

func TestLeasePerLock(t *testing.T) {
	virtually(t, func(w *world) {
		holder := w.locker(lock.Options{})
		w.acquire(holder, lock.WithLease(2*time.Second+999*time.Microsecond))
		w.mem.Inject(isolate(0))
		begin := w.now()
		w.acquire(w.locker(lock.Options{}))
		// Stores keep milliseconds: the holder does not rely on a longer lease than other processes see.
		w.between("wait", w.now()-begin, lock.Standstill(2*time.Second), lock.Standstill(2*time.Second)+time.Millisecond)
	})
}

// A hundred thousand acquisitions leave no goroutine and no timer behind, and only one record per name.
func TestManyCyclesLeaveNothing(t *testing.T) {
	cycles := 100_000
	if testing.Short() {
		cycles /= 10
	}
	w := newWorld(t)
	l := w.locker(lock.Options{})
	names := []string{"a", "b", "c"}
	cycle := func(n int) {
		for i := range n {
			var opts []lock.Option
			if i%10 == 0 {
				opts = append(opts, lock.WithShared())
			}
			le, err := l.Acquire(t.Context(), names[i%len(names)], opts...)
			w.must(err)
			w.must(le.Release(t.Context()))
		}
	}
	cycle(1000)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	cycle(cycles)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if now := runtime.NumGoroutine(); now > goroutines+2 {
		t.Errorf("%d goroutines, were %d", now, goroutines)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	records, err := l.List(t.Context())
	w.must(err)
	if len(records) != len(names) {
		t.Errorf("%d records of %d names", len(records), len(names))
	}
}
