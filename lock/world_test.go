package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const lease = 20 * time.Second

// virtually runs f in virtual time on an empty in-memory store: waits cost nothing, and time passes only while all goroutines
// are waiting, so durations are exact.
func virtually(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newWorld(t)) })
}

// world is a store and the processes that use it.
type world struct {
	testing.TB
	mem   *locktest.Memory
	start time.Time
	wrap  func(lock.Store) lock.Store // breaks a rule of the store, for removal tests
}

func newWorld(t testing.TB) *world {
	w := &world{TB: t, mem: locktest.NewMemory(), start: time.Now()}
	t.Cleanup(w.mem.Stop)
	return w
}

// now is the time since the start of the world.
func (w *world) now() time.Duration { return time.Since(w.start) }

func (w *world) store() lock.Store {
	s := w.mem.Open()
	if w.wrap != nil {
		s = w.wrap(s)
	}
	return s
}

// locker adds a process. It is closed, without faults, when the world ends.
func (w *world) locker(o lock.Options) *lock.Locker {
	w.Helper()
	if o.Clock == nil {
		o.Clock = w.now
	}
	l, err := lock.New(w.store(), o)
	w.must(err)
	w.Cleanup(func() {
		w.mem.Inject(nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			w.Errorf("close: %v", err)
		}
	})
	return l
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("at %v: unexpected error: %v", w.now(), err)
	}
}

func (w *world) acquire(l *lock.Locker, opts ...lock.Option) *lock.Lease {
	w.Helper()
	le, err := l.Acquire(w.Context(), "n", opts...)
	w.must(err)
	return le
}

func (w *world) try(l *lock.Locker, opts ...lock.Option) *lock.Lease {
	w.Helper()
	le, err := l.TryAcquire(w.Context(), "n", opts...)
	w.must(err)
	return le
}

// refused checks that the lock is held and returns the HeldError.
func (w *world) refused(l *lock.Locker, opts ...lock.Option) *lock.HeldError {
	w.Helper()
	le, err := l.TryAcquire(w.Context(), "n", opts...)
	if err == nil {
		w.Fatalf("at %v: got the lock with token %d, want it held", w.now(), le.Token())
	}
	held, ok := errors.AsType[*lock.HeldError](err)
	if !ok || !errors.Is(err, lock.ErrHeld) {
		w.Fatalf("at %v: got %v, want a HeldError", w.now(), err)
	}
	return held
}

func (w *world) lost(le *lock.Lease) bool {
	select {
	case <-le.Lost():
		return true
	default:
		return false
	}
}

// between checks a duration.
func (w *world) between(what string, d, least, most time.Duration) {
	w.Helper()
	if d < least || d > most {
		w.Fatalf("%s: %v, want %v to %v", what, d, least, most)
	}
}

// only applies a fault to one operation.
func only(op locktest.Op, f locktest.Fault) func(locktest.Call) locktest.Fault {
	return func(c locktest.Call) locktest.Fault {
		if c.Op == op {
			return f
		}
		return locktest.Fault{}
	}
}

// isolate cuts off the handle with the given number: no request of it arrives.
func isolate(handle int) func(locktest.Call) locktest.Fault {
	return func(c locktest.Call) locktest.Fault {
		return locktest.Fault{LoseRequest: c.Handle == handle}
	}
}

// holdOf is enough of the hold of a lease to find it in the store.
func holdOf(le *lock.Lease) lock.Hold { return lock.Hold{ID: lock.HoldOf(le)} }
