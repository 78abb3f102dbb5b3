package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// newLocker returns a Locker on s that is closed at the end of the test.
func newLocker(t testing.TB, s lock.Store, o lock.Options) *lock.Locker {
	t.Helper()
	l, err := lock.New(s, o)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close the locker: %v", err)
		}
	})
	return l
}

// checkContention: of many contending Lockers one holds the lock at a time, each of them eventually gets it, and tokens grow in the order
// of the grants.
func checkContention(t testing.TB, b Backend) {
	const lockers, each = 16, 4
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var (
		inside atomic.Int64
		mu     sync.Mutex
		tokens []int64
		wg     sync.WaitGroup
	)
	for i := range lockers {
		l := newLocker(t, b.Open(), lock.Options{Lease: 15 * time.Second})
		wg.Go(func() {
			for range each {
				le, err := l.Acquire(ctx, "n", lock.WithWhy(fmt.Sprint("locker ", i)))
				if err != nil {
					t.Errorf("locker %d: %v", i, err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				mu.Lock()
				tokens = append(tokens, le.Token())
				mu.Unlock()
				if err := le.Check(time.Second); err != nil {
					t.Errorf("locker %d holds: %v", i, err)
				}
				inside.Add(-1)
				if err := le.Release(ctx); err != nil {
					t.Errorf("locker %d: release: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	want(t, "grants", len(tokens), lockers*each)
	for i := 1; i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			t.Fatalf("token %d was granted after %d", tokens[i], tokens[i-1])
		}
	}
}

// cut is a connection to a store that can be cut, by closing dead: then renewals and releases get no answer.
type cut struct {
	lock.Store
	dead    chan struct{}
	renewed atomic.Pointer[time.Time] // when the last successful renewal was sent
}

func newCut(s lock.Store) *cut { return &cut{Store: s, dead: make(chan struct{})} }

// blocked waits until ctx ends if the connection is cut.
func (c *cut) blocked(ctx context.Context) error {
	select {
	case <-c.dead:
		<-ctx.Done()
		return ctx.Err()
	default:
		return nil
	}
}

// Renew implements lock.Store. On a cut connection it gets no answer.
func (c *cut) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (string, bool, error) {
	if err := c.blocked(ctx); err != nil {
		return "", false, err
	}
	sent := time.Now()
	why, ok, err := c.Store.Renew(ctx, name, h, v)
	if ok {
		c.renewed.Store(&sent)
	}
	return why, ok, err
}

// Release implements lock.Store. On a cut connection it gets no answer.
func (c *cut) Release(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	if err := c.blocked(ctx); err != nil {
		return false, err
	}
	return c.Store.Release(ctx, name, h, v)
}

// checkTakeoverAfterDeath: a holder that renews keeps the lock. When its connection is cut, a waiter takes over, but only after the
// holder's lease has passed, and by then the holder knows that it lost the lock.
func checkTakeoverAfterDeath(t testing.TB, b Backend) {
	const lease = 8 * time.Second // a busy server may not answer for seconds
	conn := newCut(b.Open())
	holder := newLocker(t, conn, lock.Options{Lease: lease})
	waiter := newLocker(t, b.Open(), lock.Options{Lease: lease / 2}) // its own lease must not matter
	ctx := t.Context()
	first, err := holder.Acquire(ctx, "n", lock.WithWhy("first"))
	must(t, err)

	// While the holder renews, a waiter never gets the lock, however long it waits.
	err = lock.ErrUnavailable
	for errors.Is(err, lock.ErrUnavailable) { // on a busy machine an answer may take longer than the waiter's timeout
		_, err = waiter.Acquire(ctx, "n", lock.WithWait(2*lease))
	}
	var held *lock.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("waiting for a renewing holder: %v", err)
	}
	if held.Why != "first" || held.Observed < lease || held.Own || held.Lease != lease {
		t.Fatalf("the error lacks details of the holder: %+v", held)
	}
	must(t, first.Check(0))

	close(conn.dead)
	begin := time.Now()
	var second *lock.Lease
	err = lock.ErrUnavailable
	for errors.Is(err, lock.ErrUnavailable) {
		second, err = waiter.Acquire(ctx, "n")
	}
	must(t, err)
	waited := time.Since(begin)
	if least := lease*17/16 + 250*time.Millisecond; time.Since(*conn.renewed.Load()) < least {
		t.Fatalf("taken over %v after the last renewal was sent, want at least %v", time.Since(*conn.renewed.Load()), least)
	}
	if waited > lease*17/16+time.Minute {
		t.Fatalf("taken over only after %v", waited)
	}
	select {
	case <-first.Lost():
	default:
		t.Fatal("the old holder does not know yet")
	}
	if second.Token() <= first.Token() {
		t.Fatalf("token %d after %d", second.Token(), first.Token())
	}
	must(t, second.Release(ctx))
}

// checkZombie: a holder that has lost the lock and does not know it cannot change the record of its successor.
func checkZombie(t testing.TB, b Backend) {
	a, successor := newLocker(t, b.Open(), lock.Options{}), newLocker(t, b.Open(), lock.Options{})
	s := use(t, b)
	ctx := t.Context()
	zombie, err := a.Acquire(ctx, "n")
	must(t, err)
	// The hold is removed; the zombie has not noticed when the successor acquires the lock.
	_, err = s.Release(ctx, "n", *read(t, s, "n").Hold, lock.NewVersion())
	must(t, err)
	next, err := successor.TryAcquire(ctx, "n")
	must(t, err)
	if next.Token() <= zombie.Token() {
		t.Fatalf("token %d after %d", next.Token(), zombie.Token())
	}
	before := read(t, s, "n")
	_, err = zombie.RaiseToken(ctx, 1<<60)
	var lost *lock.LostError
	if !errors.As(err, &lost) || lost.Reason != lock.LostGone {
		t.Fatalf("a zombie raising its token got %v", err)
	}
	if err := zombie.Release(ctx); !errors.Is(err, lock.ErrLost) {
		t.Fatalf("a zombie releasing got %v", err)
	}
	unchanged(t, s, before, "the zombie")
	must(t, next.Check(time.Second))
	must(t, next.Release(ctx))
}

// checkDeletion: when the record is deleted, the holder notices, and the next grant still has a greater token.
func checkDeletion(t testing.TB, b Backend) {
	a, other := newLocker(t, b.Open(), lock.Options{Lease: 10 * time.Second}), newLocker(t, b.Open(), lock.Options{})
	ctx := t.Context()
	first, err := a.Acquire(ctx, "n")
	must(t, err)
	must(t, b.Delete("n"))
	select {
	case <-first.Lost():
	case <-time.After(time.Minute):
		t.Fatal("the holder does not notice that its record is gone")
	}
	second, err := other.TryAcquire(ctx, "n")
	must(t, err)
	if second.Token() <= first.Token() {
		t.Fatalf("token %d after %d", second.Token(), first.Token())
	}
	must(t, second.Release(ctx))
}

// checkClose: Close releases the leases at once, so that waiters need not wait for them to expire.
func checkClose(t testing.TB, b Backend) {
	a, err := lock.New(b.Open(), lock.Options{})
	must(t, err)
	other := newLocker(t, b.Open(), lock.Options{})
	ctx := t.Context()
	le, err := a.Acquire(ctx, "n")
	must(t, err)
	must(t, a.Close(ctx))
	if cause := context.Cause(le.Context()); !errors.Is(cause, lock.ErrReleased) {
		t.Fatalf("cause after close: %v", cause)
	}
	if _, err := a.TryAcquire(ctx, "n"); !errors.Is(err, lock.ErrClosed) {
		t.Fatalf("acquire after close: %v", err)
	}
	next, err := other.TryAcquire(ctx, "n")
	must(t, err)
	must(t, next.Release(ctx))
}

// checkAdministration: an operator inspects a lock, requests its release, then releases it by force; the holder is notified of both.
func checkAdministration(t testing.TB, b Backend) {
	ctx := t.Context()
	holder, admin := newLocker(t, b.Open(), lock.Options{Lease: 10 * time.Second}), newLocker(t, b.Open(), lock.Options{})
	if _, err := admin.Inspect(ctx, "n"); !errors.Is(err, lock.ErrUnknown) {
		t.Fatalf("inspecting nothing: %v", err)
	}
	le, err := holder.Acquire(ctx, "n", lock.WithWhy("work"))
	must(t, err)
	must(t, admin.RequestRelease(ctx, "n", "maintenance"))
	select {
	case <-le.ReleaseRequested():
		want(t, "reason", le.RequestReason(), "maintenance")
	case <-time.After(time.Minute):
		t.Fatal("the holder does not receive the request")
	}
	must(t, le.Check(0))
	r, err := admin.Inspect(ctx, "n")
	must(t, err)
	if r.Hold == nil || r.Hold.Why != "work" || r.Hold.Asked != "maintenance" {
		t.Fatalf("inspected: %+v", r)
	}
	// The victim does not wait long for the reason of its loss: on a busy machine it may have to try again.
	for attempt := 1; ; attempt++ {
		must(t, admin.ForceRelease(ctx, "n", "it hangs"))
		next, err := admin.TryAcquire(ctx, "n")
		must(t, err)
		if next.Token() <= le.Token() {
			t.Fatalf("token %d after %d", next.Token(), le.Token())
		}
		select {
		case <-le.Lost():
		case <-time.After(time.Minute):
			t.Fatal("the victim does not notice")
		}
		must(t, next.Release(ctx))
		var lost *lock.LostError
		err = le.Check(0)
		if !errors.As(err, &lost) || lost.Reason == lock.LostForced && lost.Why != "it hangs" || lost.Reason != lock.LostForced && attempt == 10 {
			t.Fatalf("the victim got %v", err)
		}
		if lost.Reason == lock.LostForced {
			break
		}
		le, err = holder.Acquire(ctx, "n")
		must(t, err)
	}
	if err := admin.ForceRelease(ctx, "n", "again"); !errors.Is(err, lock.ErrNotHeld) {
		t.Fatalf("forcing a free lock: %v", err)
	}
}

// checkLine: many goroutines of two Lockers take turns, most of them by a handoff inside their Locker.
func checkLine(t testing.TB, b Backend) {
	const lockers, goroutines, each = 2, 8, 5
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var (
		inside atomic.Int64
		mu     sync.Mutex
		last   int64
		wg     sync.WaitGroup
		handed int64
		all    []*lock.Locker
	)
	for range lockers {
		l := newLocker(t, b.Open(), lock.Options{})
		all = append(all, l)
		for range goroutines {
			wg.Go(func() {
				for range each {
					le, err := l.Acquire(ctx, "n")
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d holders at once", n)
					}
					mu.Lock()
					if le.Token() <= last {
						t.Errorf("token %d after %d", le.Token(), last)
					}
					last = le.Token()
					mu.Unlock()
					time.Sleep(time.Millisecond)
					inside.Add(-1)
					if err := le.Release(ctx); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
	for _, l := range all {
		handed += l.Stats().HandedOff
	}
	if handed < lockers*goroutines*each/2 {
		t.Errorf("only %d of %d grants were handed over", handed, lockers*goroutines*each)
	}
}

// checkSharing: readers share the lock and keep it by renewals; they exclude a writer and count towards permits; and a waiting writer keeps
// new readers out.
func checkSharing(t testing.TB, b Backend) {
	ctx := t.Context()
	one, two := newLocker(t, b.Open(), lock.Options{Lease: 8 * time.Second}), newLocker(t, b.Open(), lock.Options{})
	r1, err := one.Acquire(ctx, "n", lock.WithShared())
	must(t, err)
	r2, err := two.TryAcquire(ctx, "n", lock.WithShared())
	must(t, err)
	if r1.Token() == r2.Token() {
		t.Errorf("two grants have token %d", r1.Token())
	}
	if _, err := two.TryAcquire(ctx, "n"); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("a writer among readers: %v", err)
	}
	if _, err := two.TryAcquire(ctx, "n", lock.WithPermits(2)); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("a third of two: %v", err)
	}
	time.Sleep(9 * time.Second) // renewals keep both
	must(t, r1.Check(time.Second))
	writer := make(chan *lock.Lease, 1)
	go func() {
		le, err := two.Acquire(ctx, "n", lock.WithWait(time.Minute))
		if err != nil {
			t.Errorf("the writer: %v", err)
		}
		writer <- le
	}()
	// Once the writer waits in the queue, new readers are refused.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r, err := one.Inspect(ctx, "n")
		must(t, err)
		if len(r.Queue) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the writer does not enter the queue")
		}
	}
	if _, err := one.TryAcquire(ctx, "n", lock.WithShared()); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("a reader overtakes a writer: %v", err)
	}
	must(t, r1.Release(ctx))
	must(t, r2.Release(ctx))
	w := <-writer
	if w == nil {
		return
	}
	if w.Token() <= r2.Token() || w.Token() <= r1.Token() {
		t.Errorf("the writer's token %d, the readers' %d and %d", w.Token(), r1.Token(), r2.Token())
	}
	must(t, w.Release(ctx))
}

// checkFairness: waiters of several Lockers get the lock in order of arrival. A place in the queue expires after about a second without a
// renewal. On a machine that is too busy to renew it, a waiter may lose its place; then another round decides.
func checkFairness(t testing.TB, b Backend) {
	const rounds = 20
	for round := range rounds {
		order, lost := waitInTurn(t, b, fmt.Sprint("n", round))
		switch {
		case slices.Equal(order, []int{0, 1, 2, 3}):
			return
		case !lost:
			t.Fatalf("order: %v", order)
		}
		t.Logf("order: %v, because a waiter lost its place", order)
	}
	t.Errorf("waiters lost their places in each of %d rounds", rounds)
}

// waitInTurn makes four Lockers wait, one after the other, and returns the order in which they got the lock. lost means that one of them
// removed the place of another, presuming it dead.
func waitInTurn(t testing.TB, b Backend, name string) (order []int, lost bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	le, err := newLocker(t, b.Open(), lock.Options{}).Acquire(ctx, name)
	must(t, err)
	admin := newLocker(t, b.Open(), lock.Options{})
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		removed atomic.Bool
	)
	for i := range 4 {
		l := newLocker(t, watchPlaces(b.Open(), &removed), lock.Options{})
		wg.Go(func() {
			le, err := l.Acquire(ctx, name, lock.WithFair(), lock.WithWait(time.Minute))
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			if err := le.Release(ctx); err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
		for deadline := time.Now().Add(30 * time.Second); !removed.Load(); time.Sleep(5 * time.Millisecond) {
			r, err := admin.Inspect(ctx, name)
			must(t, err)
			if len(r.Queue) == i+1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d in the queue, want %d", len(r.Queue), i+1)
			}
		}
	}
	must(t, le.Release(ctx))
	wg.Wait()
	return order, removed.Load()
}

// placeWatcher records whether a waiter removes the place of another waiter from the queue.
type placeWatcher struct {
	lock.Store
	removed *atomic.Bool
}

// watchPlaces wraps s in a placeWatcher. If s is a lock.Watcher, the result is one, too, so that the Locker behaves as it does on s.
func watchPlaces(s lock.Store, removed *atomic.Bool) lock.Store {
	p := placeWatcher{s, removed}
	if w, ok := s.(lock.Watcher); ok {
		return struct {
			placeWatcher
			lock.Watcher
		}{p, w}
	}
	return p
}

// Dequeue implements lock.Store. A waiter that leaves the queue passes no version; one that removes another, presumed dead, does.
func (p placeWatcher) Dequeue(ctx context.Context, name string, id lock.HoldID, seen lock.Version) (bool, error) {
	ok, err := p.Store.Dequeue(ctx, name, id, seen)
	if seen != (lock.Version{}) && (ok || err != nil) {
		p.removed.Store(true)
	}
	return ok, err
}
