package lock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

func TestRequestRelease(t *testing.T) {
	virtually(t, func(w *world) {
		holder, admin := w.locker(lock.Options{}), w.locker(lock.Options{})
		le := w.acquire(holder)
		time.Sleep(time.Second)
		w.must(admin.RequestRelease(w.Context(), "n", "upgrade"))
		w.must(admin.RequestRelease(w.Context(), "n", "")) // the first reason is the one that counts for the holder
		<-le.ReleaseRequested()
		w.between("heard", w.now(), 0, lease/5)
		if r := le.RequestReason(); r == "" {
			t.Error("no reason")
		}
		w.must(le.Check(lease / 2))
		w.must(le.Release(w.Context()))
		next := w.acquire(holder)
		time.Sleep(lease)
		if next.RequestReason() != "" {
			t.Errorf("the next holder was asked: %q", next.RequestReason())
		}
	})
}

func TestForceReleaseFencesTheVictim(t *testing.T) {
	virtually(t, forced)
}

// forced: a holder hangs and is released by force.
func forced(w *world) {
	l, admin := w.locker(lock.Options{}), w.locker(lock.Options{})
	le := w.acquire(l)
	time.Sleep(time.Second)
	w.must(admin.ForceRelease(w.Context(), "n", "it hangs"))
	if r, _ := w.mem.Get("n"); r.Token <= le.Token() {
		w.Errorf("the record has token %d, the victim %d: a resource that compares with the record would accept the victim", r.Token, le.Token())
	}
	next := w.try(admin)
	if next.Token() <= le.Token() {
		w.Errorf("token %d after %d", next.Token(), le.Token())
	}
	<-le.Lost()
	w.between("noticed", w.now(), time.Second, lease/5)
	lost, ok := errors.AsType[*lock.LostError](context.Cause(le.Context()))
	if !ok || lost.Reason != lock.LostForced || lost.Why != "it hangs" {
		w.Errorf("cause: %v", context.Cause(le.Context()))
	}
	if err := le.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
		w.Errorf("release: %v", err)
	}
	w.must(next.Check(0))
}

// A holder that releases before it notices gets the reason, too.
func TestReleaseAfterForce(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		le := w.acquire(l)
		w.must(l.ForceRelease(w.Context(), "n", "it hangs"))
		lost, ok := errors.AsType[*lock.LostError](le.Release(w.Context()))
		if !ok || lost.Reason != lock.LostForced || lost.Why != "it hangs" {
			t.Errorf("got %v", lost)
		}
		le = w.acquire(l)
		w.must(l.ForceRelease(w.Context(), "n", ""))
		if err := le.Release(w.Context()); !strings.HasSuffix(err.Error(), "by force: no reason given") {
			t.Errorf("without a reason: %v", err)
		}
	})
}

// askedDead: a dead holder that is repeatedly asked to release is still taken over in time.
func askedDead(w *world) {
	w.acquire(w.locker(lock.Options{}))
	admin, waiter := w.locker(lock.Options{}), w.locker(lock.Options{})
	w.mem.Inject(isolate(0))
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = admin.RequestRelease(ctx, "n", "please")
			pauseFor(ctx, time.Second)
		}
	}()
	begin := w.now()
	_, err := waiter.Acquire(w.Context(), "n", lock.WithWait(2*lock.Standstill(lease)))
	cancel()
	<-done
	if err != nil {
		w.Fatalf("a dead holder that was asked keeps the lock: %v", err)
	}
	w.between("taken over", w.now()-begin, lock.Standstill(lease)-lease/5, lock.Standstill(lease)+time.Second)
}

func TestAdministrationErrors(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		ctx := w.Context()
		want := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		_, err := l.Inspect(ctx, "")
		want("inspect without a name", err, lock.ErrInvalid)
		_, err = l.Inspect(ctx, "n")
		want("inspect nothing", err, lock.ErrUnknown)
		want("ask nobody", l.RequestRelease(ctx, "n", "x"), lock.ErrNotHeld)
		want("force nobody", l.ForceRelease(ctx, "n", "x"), lock.ErrNotHeld)
		if err := l.ForceRelease(ctx, "", string(make([]byte, lock.MaxWhy+1))); !errors.Is(err, lock.ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("two invalid arguments: %v", err)
		}
		want("long reason", l.ForceRelease(ctx, "n", string(make([]byte, lock.MaxWhy+1))), lock.ErrInvalid)
		w.must(w.acquire(l).Release(ctx))
		want("force a free lock", l.ForceRelease(ctx, "n", "x"), lock.ErrNotHeld)
		r, err := l.Inspect(ctx, "n")
		w.must(err)
		if r.Held() || r.Token == 0 {
			t.Errorf("inspected %+v", r)
		}
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		begin := w.now()
		_, err = l.Inspect(short, "n")
		want("no answer", err, context.DeadlineExceeded)
		w.between("inspect", w.now()-begin, time.Second, 1100*time.Millisecond)
		begin = w.now()
		_, err = l.Inspect(ctx, "n")
		want("no answer at all", err, lock.ErrUnavailable)
		w.between("inspect", w.now()-begin, lock.DefaultGiveUpAfter, lock.DefaultGiveUpAfter+2*lock.OpTimeout(lease))
		_, err = l.List(ctx)
		want("no answer at all", err, lock.ErrUnavailable)
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{Refuse: true} })
		failing, cancel2 := context.WithTimeout(ctx, time.Second)
		defer cancel2()
		_, err = l.Inspect(failing, "n")
		want("failing", err, context.DeadlineExceeded)
		want("failing", err, lock.ErrUnavailable)
		w.mem.Inject(nil)
		boom := errors.New("boom")
		stopped, stop := context.WithCancelCause(ctx)
		time.AfterFunc(time.Millisecond, func() { stop(boom) })
		held := w.acquire(l)
		w.mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
		_, err = l.Inspect(stopped, "n") // ends during the request
		want("stopped", err, context.Canceled)
		want("stopped", err, boom)
		_, err = l.List(stopped) // before it
		want("not sent", err, context.Canceled)
		want("not sent", err, boom)
		err = held.Release(stopped)
		want("release", err, context.Canceled)
		want("release", err, boom)
		w.mem.Inject(nil)
		w.must(l.Close(ctx))
		_, err = l.Inspect(ctx, "n")
		want("closed", err, lock.ErrClosed)
	})
}

// A request whose answer is lost is repeated; a forced release that was applied counts as one.
func TestForceReleaseWithALostAnswer(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		w.acquire(l)
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			return locktest.Fault{BreakReply: c.Op == locktest.Force && c.N == 0}
		})
		w.must(l.ForceRelease(w.Context(), "n", "x"))
	})
}

// The holder that an operator means releases the lock right after its record was read, and another one acquires it. The new holder keeps
// the lock, and does not receive the request.
func TestAdministrationMeansTheHolderItRead(t *testing.T) {
	for name, do := range map[string]func(*lock.Locker, context.Context) error{
		"request": func(l *lock.Locker, ctx context.Context) error { return l.RequestRelease(ctx, "n", "upgrade") },
		"force":   func(l *lock.Locker, ctx context.Context) error { return l.ForceRelease(ctx, "n", "it hangs") },
	} {
		virtually(t, func(w *world) {
			l, other, admin := w.locker(lock.Options{}), w.locker(lock.Options{}), w.locker(lock.Options{})
			meant := w.acquire(l)
			var next *lock.Lease
			w.mem.Around(func(c locktest.Call) func() {
				if c.Op != locktest.Read {
					return func() {}
				}
				return func() {
					w.mem.Around(nil)
					w.must(meant.Release(w.Context()))
					next = w.acquire(other)
				}
			})
			if err := do(admin, w.Context()); !errors.Is(err, lock.ErrNotHeld) {
				t.Errorf("%s: %v, want %v", name, err, lock.ErrNotHeld)
			}
			time.Sleep(lease) // its renewals would have received a request
			w.must(next.Check(0))
			if why := next.RequestReason(); why != "" {
				t.Errorf("%s: the next holder was asked: %q", name, why)
			}
		})
	}
}

func TestSuspectBeforeLost(t *testing.T) {
	virtually(t, func(w *world) {
		l := w.locker(lock.Options{})
		le := w.acquire(l)
		first := le.Suspect()
		time.Sleep(10 * lease)
		select {
		case <-first:
			t.Fatal("suspect although renewals succeed")
		default:
		}
		w.mem.Inject(only(locktest.Renew, locktest.Fault{Refuse: true}))
		cut := w.now()
		<-first
		w.between("left when suspected", le.Remaining(), lease/2-lease/16, lease/2)
		w.between("suspected", w.now()-cut, lease/4, lease/2)
		w.must(le.Check(0))
		w.mem.Inject(nil)
		time.Sleep(2 * time.Second)
		again := le.Suspect()
		select {
		case <-again:
			t.Fatal("suspect although a renewal succeeded")
		default:
		}
		w.mem.Inject(only(locktest.Renew, locktest.Fault{LoseRequest: true}))
		<-again
		w.must(le.Check(0))
		<-le.Lost()
		if n := l.Stats().Suspected; n != 2 {
			t.Errorf("suspected %d times, want 2", n)
		}
		w.mem.Inject(nil)
	})
}

func TestMaxHold(t *testing.T) {
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		const most = 50 * time.Second
		le := w.acquire(l, lock.WithMaxHold(most))
		w.must(le.Check(lease / 2))
		time.Sleep(most - time.Second)
		w.between("remaining at the end", le.Remaining(), time.Second, time.Second)
		select {
		case <-le.Suspect():
			t.Error("suspect although the store answers")
		default:
		}
		<-le.Lost()
		w.between("lost", w.now(), most, most+50*time.Millisecond)
		lost, _ := errors.AsType[*lock.LostError](context.Cause(le.Context()))
		if lost == nil || lost.Reason != lock.LostMaxHold || l.Stats().LostMaxHold != 1 {
			t.Errorf("cause: %v", lost)
		}
		w.acquire(other) // although the holder does not release
		w.between("the next one", w.now(), most, most+lock.Standstill(lease))
		if err := le.Release(w.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("release: %v", err)
		}
	})
	virtually(t, func(w *world) { // shorter than a lease
		le := w.acquire(w.locker(lock.Options{}), lock.WithMaxHold(time.Second))
		<-le.Lost()
		w.between("lost", w.now(), time.Second, time.Second)
		w.between("renewals", time.Duration(w.mem.Calls(locktest.Renew)), 0, 0)
	})
}

// A lease that lasts until the end set by WithMaxHold is no longer renewed, but still receives requests and forced releases.
func TestMaxHoldHears(t *testing.T) {
	for what, do := range map[string]func(w *world, other *lock.Locker, le *lock.Lease){
		"a request": func(w *world, other *lock.Locker, le *lock.Lease) {
			w.must(other.RequestRelease(w.Context(), "n", "please"))
			<-le.ReleaseRequested()
		},
		"force": func(w *world, other *lock.Locker, le *lock.Lease) {
			w.must(other.ForceRelease(w.Context(), "n", "now"))
			<-le.Lost()
			if lost, _ := errors.AsType[*lock.LostError](context.Cause(le.Context())); lost.Reason != lock.LostForced {
				t.Errorf("cause: %v", lost)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			virtually(t, func(w *world) {
				le := w.acquire(w.locker(lock.Options{}), lock.WithMaxHold(lease*3/4))
				time.Sleep(lease / 4)
				begin := w.now()
				do(w, w.locker(lock.Options{}), le)
				w.between("heard", w.now()-begin, 0, lease/5+time.Millisecond)
			})
		})
	}
	for _, start := range []time.Duration{0, -1000 * time.Hour} { // a clock may start anywhere
		virtually(t, func(w *world) { // up to the longest duration
			l := w.locker(lock.Options{Clock: func() time.Duration { return start + w.now() }})
			for _, most := range []time.Duration{time.Minute, math.MaxInt64} {
				le := w.acquire(l, lock.WithMaxHold(most))
				w.must(le.Check(lease / 2))
				w.must(le.Release(w.Context()))
			}
		})
	}
}

func TestTakeoverDelay(t *testing.T) {
	const delay = 2 * lease // longer than a lease: it is renewed meanwhile
	virtually(t, func(w *world) {
		l, other := w.locker(lock.Options{}), w.locker(lock.Options{})
		w.must(w.acquire(l).Release(w.Context()))
		w.must(w.acquire(other, lock.WithTakeoverDelay(delay)).Release(w.Context()))
		w.between("after a release", w.now(), 0, 0)
		w.acquire(l)
		w.mem.Inject(isolate(0))
		le := w.acquire(other, lock.WithTakeoverDelay(delay), lock.WithMaxHold(time.Minute))
		w.between("after a takeover", w.now(), lock.Standstill(lease)+delay, lock.Standstill(lease)+delay)
		w.must(le.Check(lease / 2))
		time.Sleep(59 * time.Second)
		w.must(le.Check(0)) // it is held from now on
	})
	virtually(t, func(w *world) { // the context ends during the delay: the delay does not
		w.acquire(w.locker(lock.Options{}))
		w.mem.Inject(isolate(0))
		l, next := w.locker(lock.Options{}), w.locker(lock.Options{})
		end := lock.Standstill(lease) + time.Second
		ctx, cancel := context.WithTimeout(w.Context(), end)
		defer cancel()
		_, err := l.Acquire(ctx, "n", lock.WithTakeoverDelay(delay))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.between("ended", w.now(), end, end+time.Millisecond)
		w.acquire(next)
		w.between("the next one", w.now(), lock.Standstill(lease)+delay, lock.Standstill(lease)+delay+2*time.Second)
	})
	virtually(t, func(w *world) { // the Locker is closed during the delay: the next one takes over
		w.acquire(w.locker(lock.Options{}))
		w.mem.Inject(isolate(0))
		l, next := w.locker(lock.Options{}), w.locker(lock.Options{})
		time.AfterFunc(lock.Standstill(lease)+time.Second, func() { w.must(l.Close(w.Context())) })
		if _, err := l.Acquire(w.Context(), "n", lock.WithTakeoverDelay(delay)); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("got %v", err)
		}
		w.acquire(next, lock.WithTakeoverDelay(delay))
		w.between("the next one", w.now(), 2*lock.Standstill(lease)+delay, 2*lock.Standstill(lease)+delay+2*time.Second)
	})
	virtually(t, func(w *world) { // the share of a dead holder is removed
		w.acquire(w.locker(lock.Options{}), lock.WithShared())
		w.mem.Inject(isolate(0))
		w.acquire(w.locker(lock.Options{}), lock.WithTakeoverDelay(delay))
		w.between("after a share", w.now(), lock.Standstill(lease)+delay, lock.Standstill(lease)+delay+2*time.Second)
	})
	virtually(t, func(w *world) { // the lock is lost during the delay, and acquired again
		w.acquire(w.locker(lock.Options{}))
		w.mem.Inject(isolate(0))
		l := w.locker(lock.Options{})
		time.AfterFunc(lock.Standstill(lease)+time.Second, func() {
			w.mem.Edit("n", func(r *lock.Record) bool { r.Hold, r.Version = nil, lock.NewVersion(); return true })
		})
		w.must(w.acquire(l, lock.WithTakeoverDelay(delay)).Check(0))
		w.between("acquired", w.now(), lock.Standstill(lease)+delay, lock.Standstill(lease)+delay+time.Millisecond)
	})
}
