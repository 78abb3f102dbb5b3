// Package locktest proves that a lock store keeps the promises of [lock.Store], and has a store in memory that fails on
// command ([Memory]).
package locktest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// Backend is one empty store to test.
type Backend struct {
	// Open opens one more handle on it, as another process would. Run closes the handles.
	Open func() lock.Store
	// Delete removes the record of a name behind the protocol's back, as an operator or a garbage collection would.
	Delete func(name string) error
}

// Run tests a backend. It calls setup for each of its tests; what setup provides lives as long as its t. The tests run in
// real time and in parallel; together they take some 10 s.
func Run(t *testing.T, setup func(t testing.TB) Backend) {
	for _, c := range checks {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			c.run(t, setup(t))
		})
	}
}

type check struct {
	name string
	run  func(t testing.TB, b Backend)
}

var checks = []check{
	{"create inserts a held record once", checkCreate},
	{"acquire takes a free record only", checkAcquire},
	{"release keeps the record and its token", checkRelease},
	{"renew and confirm are bound to the hold", checkRenew},
	{"confirm raises the token", checkConfirm},
	{"take over compares the version", checkTakeOver},
	{"ask leaves the version", checkAsk},
	{"force is bound to the hold and raises the token", checkForce},
	{"hand over is bound to the hold and the line", checkHandOver},
	{"shares are bounded and have versions of their own", checkShares},
	{"the first in line has the turn", checkQueue},
	{"of concurrent shares as many win as there are permits", checkConcurrentShares},
	{"an operator asks and forces", checkAdministration},
	{"goroutines of one process take turns", checkLine},
	{"readers share and writers wait in line", checkSharing},
	{"fair waiters get the lock in turn", checkFairness},
	{"tokens are exact 64 bit integers", checkBigTokens},
	{"names are compared byte by byte", checkNames},
	{"list is sorted and complete", checkList},
	{"of concurrent operations one wins", checkConcurrent},
	{"an ended context ends an operation", checkContext},
	{"one of 16 contending lockers holds", checkContention},
	{"a renewing holder keeps the lock and a dead one loses it", checkTakeoverAfterDeath},
	{"a lost lease cannot touch its successor", checkZombie},
	{"deleting the record loses the lock and keeps tokens growing", checkDeletion},
	{"close releases", checkClose},
}

func use(t testing.TB, b Backend) lock.Store {
	t.Helper()
	s := b.Open()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return s
}

// newHold returns a hold with all fields in use.
func newHold(lease time.Duration) lock.Hold {
	return lock.Hold{
		ID:    lock.NewHoldID(),
		Lease: lease,
		Owner: lock.Process{Host: "hôst", PID: 4711, Instance: "i-1", Boot: "b", PIDNamespace: "pid:[1]", Started: "99"},
		Why:   "to test “it”",
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

func want(t testing.TB, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func read(t testing.TB, s lock.Store, name string) lock.Record {
	t.Helper()
	r, found, err := s.Read(t.Context(), name)
	must(t, err)
	if !found {
		t.Fatalf("no record of %q", name)
	}
	return r
}

// unchanged fails when an operation that matched nothing wrote something.
func unchanged(t testing.TB, s lock.Store, before lock.Record, what string) {
	t.Helper()
	after := read(t, s, before.Name)
	if after.Version != before.Version || after.Token != before.Token || !slices.Equal(after.Holds(), before.Holds()) {
		t.Fatalf("%s changed the record:\n%+v\n%+v", what, before, after)
	}
}

func create(t testing.TB, s lock.Store, name string, token int64) (lock.Hold, lock.Record) {
	t.Helper()
	h := newHold(20 * time.Second)
	ok, err := s.Create(t.Context(), name, h, lock.NewVersion())
	must(t, err)
	want(t, "created", ok, true)
	_, ok, err = s.Confirm(t.Context(), name, h, token-1, lock.NewVersion())
	must(t, err)
	want(t, "confirmed", ok, true)
	return h, read(t, s, name)
}

func checkCreate(t testing.TB, b Backend) {
	s, other := use(t, b), use(t, b)
	_, found, err := s.Read(t.Context(), "n")
	must(t, err)
	want(t, "found before create", found, false)
	before := time.Now()
	h, v := newHold(1500*time.Millisecond), lock.NewVersion()
	ok, err := s.Create(t.Context(), "n", h, v)
	must(t, err)
	want(t, "created", ok, true)
	r := read(t, other, "n")
	want(t, "name", r.Name, "n")
	want(t, "token", r.Token, int64(0))
	want(t, "version", r.Version, v)
	want(t, "hold", *r.Hold, h)
	// The server's clock may differ from ours, but a date that was not set at all shows.
	if d := r.Since.Sub(before); d < -24*time.Hour || d > 24*time.Hour {
		t.Fatalf("since is %v", r.Since)
	}
	_, _, err = s.Renew(t.Context(), "n", h, lock.NewVersion())
	must(t, err)
	r = read(t, other, "n")
	if d := r.At.Sub(before); d < -24*time.Hour || d > 24*time.Hour {
		t.Fatalf("at is %v after a renewal", r.At)
	}
	ok, err = other.Create(t.Context(), "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "created twice", ok, false)
	unchanged(t, s, r, "a second create")
}

func checkAcquire(t testing.TB, b Backend) {
	s, other := use(t, b), use(t, b)
	_, ok, err := s.Acquire(t.Context(), "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "acquired without a record", ok, false)
	h, r := create(t, s, "n", 7)
	_, ok, err = other.Acquire(t.Context(), "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "acquired a held lock", ok, false)
	unchanged(t, s, r, "acquiring a held lock")
	ok, err = s.Release(t.Context(), "n", h, lock.NewVersion())
	must(t, err)
	want(t, "released", ok, true)
	h2, v2 := newHold(3*time.Second), lock.NewVersion()
	token, ok, err := other.Acquire(t.Context(), "n", h2, v2)
	must(t, err)
	want(t, "acquired a free lock", ok, true)
	want(t, "token", token, int64(8))
	r = read(t, s, "n")
	want(t, "stored token", r.Token, int64(8))
	want(t, "version", r.Version, v2)
	want(t, "hold", *r.Hold, h2)
}

func checkRelease(t testing.TB, b Backend) {
	s := use(t, b)
	ok, err := s.Release(t.Context(), "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "released without a record", ok, false)
	h, r := create(t, s, "n", 7)
	ok, err = s.Release(t.Context(), "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "released with another id", ok, false)
	unchanged(t, s, r, "a release with another id")
	v := lock.NewVersion()
	ok, err = s.Release(t.Context(), "n", h, v)
	must(t, err)
	want(t, "released", ok, true)
	r = read(t, s, "n")
	want(t, "token after release", r.Token, int64(7))
	want(t, "version after release", r.Version, v)
	if r.Hold != nil {
		t.Fatalf("held after release: %+v", r.Hold)
	}
	ok, err = s.Release(t.Context(), "n", h, lock.NewVersion())
	must(t, err)
	want(t, "released twice", ok, false)
	unchanged(t, s, r, "a second release")
}

func checkRenew(t testing.TB, b Backend) {
	s := use(t, b)
	ctx := t.Context()
	_, ok, err := s.Renew(ctx, "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "renewed without a record", ok, false)
	_, ok, err = s.Confirm(ctx, "n", newHold(time.Second), 0, lock.NewVersion())
	must(t, err)
	want(t, "confirmed without a record", ok, false)
	h, r := create(t, s, "n", 7)
	_, ok, err = s.Renew(ctx, "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "renewed with another id", ok, false)
	unchanged(t, s, r, "a renewal with another id")
	_, ok, err = s.Confirm(ctx, "n", newHold(time.Second), 100, lock.NewVersion())
	must(t, err)
	want(t, "confirmed with another id", ok, false)
	unchanged(t, s, r, "a confirmation with another id")
	for range 3 { // every renewal really changes the version
		v := lock.NewVersion()
		_, ok, err = s.Renew(ctx, "n", h, v)
		must(t, err)
		want(t, "renewed", ok, true)
		got := read(t, s, "n")
		want(t, "version", got.Version, v)
		want(t, "token", got.Token, int64(7))
		want(t, "hold", *got.Hold, h)
	}
	_, err = s.Release(ctx, "n", h, lock.NewVersion())
	must(t, err)
	r = read(t, s, "n")
	_, ok, err = s.Renew(ctx, "n", h, lock.NewVersion())
	must(t, err)
	want(t, "renewed after release", ok, false)
	_, ok, err = s.Confirm(ctx, "n", h, 0, lock.NewVersion())
	must(t, err)
	want(t, "confirmed after release", ok, false)
	unchanged(t, s, r, "a renewal after release")
}

func checkConfirm(t testing.TB, b Backend) {
	s := use(t, b)
	h, _ := create(t, s, "n", 7)
	for _, step := range []struct{ floor, token int64 }{
		{0, 7}, {3, 7}, {6, 7}, {7, 8}, {7, 8}, {1000, 1001}, {-5, 1001},
	} {
		v := lock.NewVersion()
		token, ok, err := s.Confirm(t.Context(), "n", h, step.floor, v)
		must(t, err)
		want(t, "confirmed", ok, true)
		want(t, fmt.Sprintf("token over %d", step.floor), token, step.token)
		r := read(t, s, "n")
		want(t, "stored token", r.Token, step.token)
		want(t, "version", r.Version, v)
		want(t, "hold", *r.Hold, h)
	}
}

func checkTakeOver(t testing.TB, b Backend) {
	s := use(t, b)
	ctx := t.Context()
	_, ok, err := s.TakeOver(ctx, "n", lock.NewVersion(), newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "taken over without a record", ok, false)
	h, r := create(t, s, "n", 7)
	_, ok, err = s.TakeOver(ctx, "n", lock.NewVersion(), newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "taken over with another version", ok, false)
	unchanged(t, s, r, "a takeover with another version")
	_, _, err = s.Renew(ctx, "n", h, lock.NewVersion())
	must(t, err)
	_, ok, err = s.TakeOver(ctx, "n", r.Version, newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "taken over with the version before a renewal", ok, false)
	r = read(t, s, "n")
	h2, v2 := newHold(5*time.Second), lock.NewVersion()
	token, ok, err := s.TakeOver(ctx, "n", r.Version, h2, v2)
	must(t, err)
	want(t, "taken over", ok, true)
	want(t, "token", token, int64(8))
	r = read(t, s, "n")
	want(t, "version", r.Version, v2)
	want(t, "hold", *r.Hold, h2)
	want(t, "stored token", r.Token, int64(8))
	// The old holder finds out; it changes nothing.
	_, ok, err = s.Renew(ctx, "n", h, lock.NewVersion())
	must(t, err)
	want(t, "renewed after a takeover", ok, false)
	ok, err = s.Release(ctx, "n", h, lock.NewVersion())
	must(t, err)
	want(t, "released after a takeover", ok, false)
	unchanged(t, s, r, "the old holder")
}

func checkBigTokens(t testing.TB, b Backend) {
	s := use(t, b)
	const big = math.MaxInt64/2 + 1 // no float64 can tell it from its neighbours
	h, r := create(t, s, "n", big)
	want(t, "token", r.Token, int64(big))
	_, err := s.Release(t.Context(), "n", h, lock.NewVersion())
	must(t, err)
	h = newHold(time.Second)
	token, _, err := s.Acquire(t.Context(), "n", h, lock.NewVersion())
	must(t, err)
	want(t, "token", token, int64(big+1))
	token, _, err = s.Confirm(t.Context(), "n", h, big+1, lock.NewVersion())
	must(t, err)
	want(t, "raised token", token, int64(big+2))
}

func checkNames(t testing.TB, b Backend) {
	s := use(t, b)
	names := []string{"a", "A", "a ", " a", "a.b", "a$b", "$a", ".", "_scheduler", "é", "e\u0301", "a/b", `a"b'c`, "a%b_", "0", "1e0",
		"{}", "null", strings.Repeat("x", lock.MaxName), strings.Repeat("x", lock.MaxName-1) + "y"}
	for i, n := range names {
		create(t, s, n, int64(100+i))
	}
	for i, n := range names {
		r := read(t, s, n)
		want(t, "name", r.Name, n)
		want(t, fmt.Sprintf("token of %q", n), r.Token, int64(100+i))
	}
	list, err := s.List(t.Context())
	must(t, err)
	want(t, "records", len(list), len(names))
}

func checkList(t testing.TB, b Backend) {
	s := use(t, b)
	list, err := s.List(t.Context())
	must(t, err)
	want(t, "records of an empty store", len(list), 0)
	for _, n := range []string{"c", "a", "b"} {
		create(t, s, n, 5)
	}
	_, err = s.Release(t.Context(), "b", *read(t, s, "b").Hold, lock.NewVersion())
	must(t, err)
	list, err = s.List(t.Context())
	must(t, err)
	var got []string
	for _, r := range list {
		got = append(got, fmt.Sprintf("%s %d held=%v", r.Name, r.Token, r.Hold != nil))
		if r.Hold != nil && (r.Hold.Owner.Host != "hôst" || r.Hold.Why == "" || r.Hold.Lease != 20*time.Second) {
			t.Fatalf("incomplete: %+v", r)
		}
	}
	if w := []string{"a 5 held=true", "b 5 held=false", "c 5 held=true"}; !slices.Equal(got, w) {
		t.Fatalf("list is %q, want %q", got, w)
	}
}

// race runs f in n goroutines at once and returns how many of them report success.
func race(t testing.TB, n int, f func(i int) (bool, error)) int64 {
	t.Helper()
	var wins atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			ok, err := f(i)
			if err != nil {
				t.Errorf("racer %d: %v", i, err)
			}
			if ok {
				wins.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return wins.Load()
}

func checkConcurrent(t testing.TB, b Backend) {
	const racers, rounds = 8, 15
	stores := make([]lock.Store, 4)
	for i := range stores {
		stores[i] = use(t, b)
	}
	s, ctx := stores[0], t.Context()
	for round := range rounds {
		name := fmt.Sprint("n", round)
		n := race(t, racers, func(i int) (bool, error) {
			return stores[i%len(stores)].Create(ctx, name, newHold(time.Second), lock.NewVersion())
		})
		want(t, "winners of create", n, int64(1))
		seen := read(t, s, name).Version
		n = race(t, racers, func(i int) (bool, error) {
			_, ok, err := stores[i%len(stores)].TakeOver(ctx, name, seen, newHold(time.Second), lock.NewVersion())
			return ok, err
		})
		want(t, "winners of take over", n, int64(1))
		h := *read(t, s, name).Hold
		n = race(t, racers, func(i int) (bool, error) {
			return stores[i%len(stores)].Release(ctx, name, h, lock.NewVersion())
		})
		want(t, "winners of release", n, int64(1))
		n = race(t, racers, func(i int) (bool, error) {
			_, ok, err := stores[i%len(stores)].Acquire(ctx, name, newHold(time.Second), lock.NewVersion())
			return ok, err
		})
		want(t, "winners of acquire", n, int64(1))
		want(t, "token after create, take over and acquire", read(t, s, name).Token, int64(2))
	}
}

func checkContext(t testing.TB, b Backend) {
	s := use(t, b)
	create(t, s, "n", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h, v := newHold(time.Second), lock.NewVersion()
	for what, f := range map[string]func() error{
		"read":      func() error { _, _, err := s.Read(ctx, "n"); return err },
		"create":    func() error { _, err := s.Create(ctx, "m", newHold(time.Second), v); return err },
		"acquire":   func() error { _, _, err := s.Acquire(ctx, "n", newHold(time.Second), v); return err },
		"take over": func() error { _, _, err := s.TakeOver(ctx, "n", v, newHold(time.Second), v); return err },
		"hand over": func() error { _, _, err := s.HandOff(ctx, "n", h.ID, h, v); return err },
		"renew":     func() error { _, _, err := s.Renew(ctx, "n", h, v); return err },
		"confirm":   func() error { _, _, err := s.Confirm(ctx, "n", h, 0, v); return err },
		"release":   func() error { _, err := s.Release(ctx, "n", h, v); return err },
		"expire":    func() error { _, err := s.Expire(ctx, "n", lock.Entry{Hold: h, Version: v}, v); return err },
		"ask":       func() error { _, err := s.Ask(ctx, "n", h, "why"); return err },
		"force":     func() error { _, err := s.Force(ctx, "n", h, "why", v); return err },
		"enqueue":   func() error { _, err := s.Enqueue(ctx, "n", lock.Entry{Hold: h, Version: v}); return err },
		"dequeue":   func() error { _, err := s.Dequeue(ctx, "n", h.ID, v); return err },
		"list":      func() error { _, err := s.List(ctx); return err },
	} {
		if err := f(); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s on an ended context returned %v", what, err)
		}
	}
}

// newLocker makes a Locker on a handle of its own, closed with the test.
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

func checkContention(t testing.TB, b Backend) {
	const lockers, each = 16, 4
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
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

// cut is a connection to a store that can be cut: then nothing gets through, without an answer.
type cut struct {
	lock.Store
	dead chan struct{}
}

func newCut(s lock.Store) *cut { return &cut{Store: s, dead: make(chan struct{})} }

func (c *cut) blocked(ctx context.Context) error {
	select {
	case <-c.dead:
		<-ctx.Done()
		return ctx.Err()
	default:
		return nil
	}
}

func (c *cut) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (string, bool, error) {
	if err := c.blocked(ctx); err != nil {
		return "", false, err
	}
	return c.Store.Renew(ctx, name, h, v)
}

func (c *cut) Release(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	if err := c.blocked(ctx); err != nil {
		return false, err
	}
	return c.Store.Release(ctx, name, h, v)
}

func checkTakeoverAfterDeath(t testing.TB, b Backend) {
	const lease = 4 * time.Second // a busy server does not answer for seconds
	conn := newCut(b.Open())
	holder := newLocker(t, conn, lock.Options{Lease: lease})
	waiter := newLocker(t, b.Open(), lock.Options{Lease: lease / 2}) // its own lease must not matter
	ctx := t.Context()
	first, err := holder.Acquire(ctx, "n", lock.WithWhy("first"))
	must(t, err)

	// While the holder renews nobody gets the lock, however long they wait.
	err = lock.ErrUnavailable
	for errors.Is(err, lock.ErrUnavailable) { // a busy machine: the waiter expects each answer within a fifth of its lease
		_, err = waiter.Acquire(ctx, "n", lock.WithWait(2*lease))
	}
	var held *lock.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("waiting for a renewing holder: %v", err)
	}
	if held.Why != "first" || held.Observed < lease || held.Own || held.Lease != lease {
		t.Fatalf("the error knows little: %+v", held)
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
	// The last renewal came at most lease/5 (and a moment) before the cut.
	if least := lease*17/16 + 250*time.Millisecond - lease/5 - 300*time.Millisecond; waited < least {
		t.Fatalf("taken over after %v, want at least %v", waited, least)
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

func checkZombie(t testing.TB, b Backend) {
	a, successor := newLocker(t, b.Open(), lock.Options{}), newLocker(t, b.Open(), lock.Options{})
	s := use(t, b)
	ctx := t.Context()
	zombie, err := a.Acquire(ctx, "n")
	must(t, err)
	// Somebody releases it by force; the zombie has not noticed when the successor comes.
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

func checkDeletion(t testing.TB, b Backend) {
	a, other := newLocker(t, b.Open(), lock.Options{Lease: 5 * time.Second}), newLocker(t, b.Open(), lock.Options{})
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
