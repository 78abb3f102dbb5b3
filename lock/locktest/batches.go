package locktest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// batches is a store that implements the optional lock.BatchRenewer.
type batches interface {
	lock.Store
	lock.BatchRenewer
}

// useBatches is use for tests of batches. It skips the test if the store is not a lock.BatchRenewer.
func useBatches(t testing.TB, b Backend) batches {
	t.Helper()
	s, ok := use(t, b).(batches)
	if !ok {
		t.Skip("the store cannot renew many holds at once")
	}
	return s
}

// renewal makes a renewal with a fresh version.
func renewal(name string, h lock.Hold) lock.Renewal {
	return lock.Renewal{Name: name, Hold: h, Version: lock.NewVersion()}
}

// checkRenewMany: each renewal of a batch has the effect of a single one, and one that is not found does not stop the others.
func checkRenewMany(t testing.TB, b Backend) {
	s := useBatches(t, b)
	ctx := t.Context()
	found, err := s.RenewMany(ctx, []lock.Renewal{renewal("none", newHold(time.Second)), renewal("nothing", newHold(time.Second))})
	must(t, err)
	want(t, "renewed without records", found, 0)

	a, _ := create(t, s, "a", 7)
	_, other := create(t, s, "b", 7)
	released, _ := create(t, s, "c", 7)
	_, err = s.Release(ctx, "c", released, lock.NewVersion())
	must(t, err)
	free := read(t, s, "c")
	first, second := share(3), share(3)
	ok, err := s.Create(ctx, "s", first, lock.NewVersion())
	must(t, err)
	want(t, "shared", ok, true)
	_, ok, err = s.Acquire(ctx, "s", second, lock.NewVersion())
	must(t, err)
	want(t, "shared with another one", ok, true)
	shared := read(t, s, "s")

	all := []lock.Renewal{renewal("none", newHold(time.Second)), renewal("a", a), renewal("b", newHold(time.Second)), renewal("c", released),
		renewal("s", second)}
	found, err = s.RenewMany(ctx, all)
	must(t, err)
	want(t, "found", found, 2)
	got := read(t, s, "a")
	want(t, "version", got.Version, all[1].Version)
	want(t, "token", got.Token, int64(7))
	want(t, "hold", *got.Hold, a)
	unchanged(t, s, other, "a renewal with another id")
	unchanged(t, s, free, "a renewal after release")
	got = read(t, s, "s")
	want(t, "version of the record", got.Version, all[4].Version)
	want(t, "version of the other entry", got.Shares[0].Version, shared.Shares[0].Version)
	want(t, "version of the entry", got.Shares[1].Version, all[4].Version)
	want(t, "entry", got.Shares[1].Hold, second)

	for range 2 { // the version is not a condition: an earlier renewal that was applied without an answer must not block the next
		found, err = s.RenewMany(ctx, []lock.Renewal{renewal("a", a), renewal("s", second), renewal("s", first)})
		must(t, err)
		want(t, "found again", found, 3)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if found, err := s.RenewMany(ended, []lock.Renewal{renewal("a", a)}); err == nil {
		t.Errorf("renewed %d with an ended context", found)
	}
}

// checkLargeBatch: a batch of the largest size works, even if most of its holds are not found.
func checkLargeBatch(t testing.TB, b Backend) {
	s := useBatches(t, b)
	ctx := t.Context()
	const size = 250
	var all []lock.Renewal
	for i := range size {
		h := newHold(20 * time.Second)
		name := fmt.Sprintf("n%04d", i)
		ok, err := s.Create(ctx, name, h, lock.NewVersion())
		must(t, err)
		want(t, "created", ok, true)
		all = append(all, renewal(name, h))
	}
	for i := size; i < lock.MaxRenewals; i++ {
		all = append(all, renewal(fmt.Sprintf("n%04d", i), newHold(20*time.Second)))
	}
	found, err := s.RenewMany(ctx, all)
	must(t, err)
	want(t, "found", found, size)
	list, err := s.List(ctx)
	must(t, err)
	want(t, "records", len(list), size)
	for i, r := range list {
		want(t, "version of "+r.Name, r.Version, all[i].Version)
	}
}

// checkRequests: requests are found by the ID of the hold, including those to shares, and only in the named records.
func checkRequests(t testing.TB, b Backend) {
	s := useBatches(t, b)
	ctx := t.Context()
	a, _ := create(t, s, "a", 7)
	x, _ := create(t, s, "b", 7)
	quiet, _ := create(t, s, "c", 7)
	first, second := share(3), share(3)
	_, err := s.Create(ctx, "s", first, lock.NewVersion())
	must(t, err)
	_, _, err = s.Acquire(ctx, "s", second, lock.NewVersion())
	must(t, err)
	names := []string{"a", "c", "s", "none"}
	asked, err := s.Requests(ctx, names)
	must(t, err)
	want(t, "requests", len(asked), 0)
	for name, h := range map[string]lock.Hold{"a": a, "b": x, "s": second} {
		ok, err := s.Ask(ctx, name, h, "please, "+name)
		must(t, err)
		want(t, "asked", ok, true)
	}
	_, err = s.RenewMany(ctx, []lock.Renewal{renewal("a", a), renewal("c", quiet), renewal("s", second)})
	must(t, err)
	asked, err = s.Requests(ctx, names)
	must(t, err)
	want(t, "requests", len(asked), 2)
	want(t, "asked", asked[a.ID], "please, a")
	want(t, "asked a shared holder", asked[second.ID], "please, s")
	_, err = s.Release(ctx, "a", a, lock.NewVersion())
	must(t, err)
	asked, err = s.Requests(ctx, names)
	must(t, err)
	want(t, "requests after a release", len(asked), 1)
}

// checkManyLeases: leases that are renewed together stay held. When one of them is taken away, only that one is lost.
func checkManyLeases(t testing.TB, b Backend) {
	l := newLocker(t, b.Open(), lock.Options{Lease: 20 * time.Second}) // a busy server may not answer for seconds
	var leases []*lock.Lease
	for i := range 20 {
		le, err := l.Acquire(t.Context(), fmt.Sprint("n", i))
		must(t, err)
		leases = append(leases, le)
	}
	renewed := l.Stats().Renewed
	for deadline := time.Now().Add(time.Minute); l.Stats().Renewed < renewed+2*20; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d renewals of 20 leases in a minute", l.Stats().Renewed-renewed)
		}
	}
	admin := newLocker(t, b.Open(), lock.Options{})
	must(t, admin.RequestRelease(t.Context(), "n3", "please"))
	must(t, admin.ForceRelease(t.Context(), "n4", "now"))
	for what, c := range map[string]<-chan struct{}{"asked": leases[3].ReleaseRequested(), "lost": leases[4].Lost()} {
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Errorf("not %s within a minute", what)
		}
	}
	for i, le := range leases {
		if err := le.Check(0); (err != nil) != (i == 4) {
			t.Errorf("lease %d: %v", i, err)
		}
	}
}
