// Package locktest tests whether a lock store fulfils the contract of [lock.Store], and has test doubles for code that uses one.
//
//   - [Run] is the conformance suite: a new backend calls it from one of its tests. [Damaged] tests a record that cannot be decoded.
//   - [Memory] is an in-memory store that fails on command ([Fault]), in the virtual time of testing/synctest.
//   - [Record] records the operations on any store, and [Check] decides whether working locks can have such a history.
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

// Backend is one empty store under test, supplied by the caller of [Run].
type Backend struct {
	// Open opens another handle on the store, as another process would. Run closes the handles.
	Open func() lock.Store
	// Delete removes the record of a name without going through the protocol, as an operator or garbage collection would.
	Delete func(name string) error
}

// Run tests a backend. It calls setup for each of its tests; setup must return an empty store that lives as long as t. The tests run in
// real time and in parallel; together they take about 10 s.
func Run(t *testing.T, setup func(t testing.TB) Backend) {
	for _, c := range checks {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			c.run(t, setup(t))
		})
	}
}

// check is one test of the suite. Its name states the property, and becomes the name of the subtest.
type check struct {
	name string
	run  func(t testing.TB, b Backend)
}

// checks is the suite. The first ones test single operations of the store, the later ones run Lockers on it.
var checks = []check{
	{"create inserts a held record once", checkCreate},
	{"acquire takes a free record only", checkAcquire},
	{"release keeps the record and its token", checkRelease},
	{"renew and confirm are bound to the hold", checkRenew},
	{"renewals in a batch are bound to their holds", checkRenewMany},
	{"a batch of many renewals", checkLargeBatch},
	{"requests are found in a batch", checkRequests},
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
	{"many leases of one locker are kept", checkManyLeases},
	{"a renewing holder keeps the lock and a dead one loses it", checkTakeoverAfterDeath},
	{"a lost lease cannot touch its successor", checkZombie},
	{"deleting the record loses the lock and keeps tokens growing", checkDeletion},
	{"close releases", checkClose},
}

// use opens a handle that is closed with the test.
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

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// want fails the test unless got == want.
func want(t testing.TB, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// read returns the record of name, which must exist.
func read(t testing.TB, s lock.Store, name string) lock.Record {
	t.Helper()
	r, found, err := s.Read(t.Context(), name)
	must(t, err)
	if !found {
		t.Fatalf("no record of %q", name)
	}
	return r
}

// unchanged fails if an operation whose condition was not met has written something.
func unchanged(t testing.TB, s lock.Store, before lock.Record, what string) {
	t.Helper()
	after := read(t, s, before.Name)
	if after.Version != before.Version || after.Token != before.Token || !slices.Equal(after.Holds(), before.Holds()) {
		t.Fatalf("%s changed the record:\n%+v\n%+v", what, before, after)
	}
}

// create creates a held record with the given token.
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

// checkCreate: a record is created once, with all its fields, and a second create changes nothing. Otherwise two waiters that find no
// record would both hold the lock.
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
	// The server's clock may differ from ours, but this detects a date that was not set at all.
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

// checkAcquire: only a free record can be acquired, and each grant has the next token.
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

// checkRelease: a release needs the ID of the hold, and keeps the record with its token. If the token were lost, later grants would have
// tokens that a resource has already seen.
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

// checkRenew: only the holder can renew and confirm, and every renewal changes the version. If a renewal did not, waiters would presume
// the holder dead.
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

// checkConfirm: a confirmation raises the token above the floor, and never lowers it.
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

// checkTakeOver: a takeover needs the observed version, so it fails after any renewal; and after a takeover the old holder can no longer
// change anything.
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
	// The old holder's writes fail and change nothing.
	_, ok, err = s.Renew(ctx, "n", h, lock.NewVersion())
	must(t, err)
	want(t, "renewed after a takeover", ok, false)
	ok, err = s.Release(ctx, "n", h, lock.NewVersion())
	must(t, err)
	want(t, "released after a takeover", ok, false)
	unchanged(t, s, r, "the old holder")
}

// checkBigTokens: tokens are exact. A backend that stores them as floating-point numbers would grant the same token twice.
func checkBigTokens(t testing.TB, b Backend) {
	s := use(t, b)
	const big = math.MaxInt64/2 + 1 // a float64 cannot distinguish it from its neighbours
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

// checkNames: no two names are the same lock, whatever collation, normalization or quoting the backend uses.
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

// checkList: the list has all records, including free ones, complete and sorted.
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

// race runs f in n goroutines that start together, and returns how many of them succeed.
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

// checkConcurrent: of concurrent operations of one kind, through several handles, exactly one succeeds.
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

// checkContext: every operation returns the error of an ended context. The timeouts of package lock rely on that.
func checkContext(t testing.TB, b Backend) {
	s := use(t, b)
	create(t, s, "n", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h, v := newHold(time.Second), lock.NewVersion()
	for what, f := range map[string]func() error{
		"read":        func() error { _, _, err := s.Read(ctx, "n"); return err },
		"create":      func() error { _, err := s.Create(ctx, "m", newHold(time.Second), v); return err },
		"acquire":     func() error { _, _, err := s.Acquire(ctx, "n", newHold(time.Second), v); return err },
		"take over":   func() error { _, _, err := s.TakeOver(ctx, "n", v, newHold(time.Second), v); return err },
		"hand over":   func() error { _, _, err := s.HandOff(ctx, "n", h.ID, h, v); return err },
		"renew":       func() error { _, _, err := s.Renew(ctx, "n", h, v); return err },
		"confirm":     func() error { _, _, err := s.Confirm(ctx, "n", h, 0, v); return err },
		"release":     func() error { _, err := s.Release(ctx, "n", h, v); return err },
		"expire":      func() error { _, err := s.Expire(ctx, "n", lock.Entry{Hold: h, Version: v}, v); return err },
		"ask":         func() error { _, err := s.Ask(ctx, "n", h, "why"); return err },
		"force":       func() error { _, err := s.Force(ctx, "n", h, "why", v); return err },
		"enqueue":     func() error { _, _, err := s.Enqueue(ctx, "n", lock.Entry{Hold: h, Version: v}); return err },
		"renew place": func() error { _, err := s.RenewPlace(ctx, "n", lock.Entry{Hold: h, Version: v}); return err },
		"dequeue":     func() error { _, err := s.Dequeue(ctx, "n", h.ID, v); return err },
		"list":        func() error { _, err := s.List(ctx); return err },
	} {
		if err := f(); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s on an ended context returned %v", what, err)
		}
	}
}
