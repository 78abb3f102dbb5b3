package lock_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// TestScenarios checks the guarantees of the protocol in the situations that its rules are for. Zombie, forced and some other scenarios are
// tests of their own. tools/mutants removes the rules of the engine, and the stores below lack rules of a store: then a scenario fails.
func TestScenarios(t *testing.T) {
	for name, scenario := range map[string]func(w *world){
		"renewing holder":     renewingHolder,
		"slow replies":        slowReplies,
		"lost reply":          lostReply,
		"lost renewal reply":  lostRenewalReply,
		"slow insert":         slowInsert,
		"two takers":          twoTakers,
		"tokens over release": tokensOverRelease,
		"rolled back renewal": rolledBackRenewal,
		"robbed":              robbed,
		"hand-overs":          handOvers,
		"living shares":       livingShares,
		"tokens of shares":    shareTokens,
		"asked dead":          askedDead,
	} {
		t.Run(name, func(t *testing.T) { virtually(t, scenario) })
	}
}

// A test that cannot fail is a defect. Each of these stores lacks one rule: the scenario that the rule is for must fail. With the rule the
// scenario passes in TestScenarios, or in a test of its own.
func TestStoreRulesAreNeeded(t *testing.T) {
	race.Skip(t)
	for _, tc := range []struct {
		rule     string
		scenario func(w *world)
		store    func(w *world, s lock.Store) lock.Store
	}{
		{rule: "renewal is bound to the id of the acquisition", scenario: zombie,
			store: func(w *world, s lock.Store) lock.Store { return renewByName{s} }},
		{rule: "release is bound to the id of the acquisition", scenario: zombie,
			store: func(w *world, s lock.Store) lock.Store { return releaseByName{s} }},
		{rule: "renewal is not bound to the version", scenario: lostRenewalReply,
			store: func(w *world, s lock.Store) lock.Store { return &renewByVersion{Store: s} }},
		{rule: "takeover is a compare-and-swap on the version", scenario: twoTakers,
			store: func(w *world, s lock.Store) lock.Store { return takeOverByName{s, w.mem} }},
		{rule: "the token survives release", scenario: tokensOverRelease,
			store: func(w *world, s lock.Store) lock.Store { return deleteOnRelease{s, w.mem} }},
		{rule: "the token is raised by an acquisition", scenario: tokensOverRelease,
			store: func(w *world, s lock.Store) lock.Store { return sameToken{s} }},
		{rule: "the version is random, not a counter", scenario: rolledBackRenewal,
			store: func(w *world, s lock.Store) lock.Store { return countedVersions{s, w.mem} }},
		{rule: "every renewal changes the version", scenario: renewingHolder,
			store: func(w *world, s lock.Store) lock.Store { return readOnlyRenewal{s} }},
		{rule: "a hand-over is bound to the id of the acquisition", scenario: robbed,
			store: func(w *world, s lock.Store) lock.Store { return handOverByName{s} }},
		{rule: "a hand-over raises the token", scenario: handOvers,
			store: func(w *world, s lock.Store) lock.Store { return handOverSameToken{s} }},
		{rule: "every renewal changes the version of the entry", scenario: livingShares,
			store: func(w *world, s lock.Store) lock.Store { return recordRenewal{s, w.mem} }},
		{rule: "a confirmed share gets a token of its own", scenario: shareTokens,
			store: func(w *world, s lock.Store) lock.Store { return confirmByRecord{s, w.mem} }},
		{rule: "a request to release leaves the version alone", scenario: askedDead,
			store: func(w *world, s lock.Store) lock.Store { return askByVersion{s, w.mem} }},
		{rule: "a forced release raises the token", scenario: forced,
			store: func(w *world, s lock.Store) lock.Store { return forceWithoutToken{s} }},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			failure := outcome(t, tc.scenario, tc.store)
			if failure == "" {
				t.Error("without the rule the scenario passes: it does not test the rule")
			}
			t.Logf("without the rule: %s", failure)
		})
	}
}

// outcome runs a scenario in virtual time on a store that lacks a rule and returns its first failure, or "".
func outcome(t *testing.T, scenario func(w *world), store func(*world, lock.Store) lock.Store) (failure string) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{TB: t}
		w := newWorld(rec)
		w.wrap = func(s lock.Store) lock.Store { return store(w, s) }
		done := make(chan struct{})
		go func() { // FailNow ends its goroutine
			defer close(done)
			scenario(w)
		}()
		<-done
		failure = rec.end()
	})
	return failure
}

// recorder records the first failure of a scenario instead of failing the test.
type recorder struct {
	testing.TB
	mu      sync.Mutex
	failure string
	over    bool // later failures do not count: a broken protocol may fail to clean up
}

func (r *recorder) end() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return r.failure
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == "" && !r.over {
		r.failure = fmt.Sprintf(format, args...)
	}
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// The scenarios. Some are in other files, with the tests of their subject.

// renewingHolder: a waiter with a short lease waits long for a holder with a long lease that renews it; then the holder dies.
func renewingHolder(w *world) {
	holder := w.acquire(w.locker(lock.Options{Lease: time.Minute}))
	waiter := w.locker(lock.Options{Lease: lock.MinLease})
	if le, err := waiter.Acquire(w.Context(), "n", lock.WithWait(10*time.Minute)); err == nil {
		w.Fatalf("at %v: token %d was granted although the holder of token %d has kept renewing", w.now(), le.Token(),
			holder.Token())
	}
	w.must(holder.Check(0))
	w.mem.Inject(isolate(0))
	w.acquire(waiter)
	if !w.lost(holder) {
		w.Errorf("taken over while the holder still believed in its lease: %v remain", holder.Remaining())
	}
}

// slowReplies: the holder's renewals are applied at once, but their answers take nearly the whole timeout. Then the holder
// dies. Its lease must have ended when another one begins.
func slowReplies(w *world) {
	const lease = 60 * time.Second // margin 3.75 s; the taker waits 4 s more than the lease
	holder := w.locker(lock.Options{Lease: lease})
	waiter := w.locker(lock.Options{})
	le := w.acquire(holder)
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		if c.Handle == 0 && c.Op == locktest.Renew {
			if c.N > 5 {
				return locktest.Fault{LoseRequest: true}
			}
			return locktest.Fault{Reply: lock.OpTimeout(lease) - time.Millisecond}
		}
		return locktest.Fault{}
	})
	next := w.acquire(waiter)
	w.must(next.Check(0))
	// The margins are for clocks, not for slow answers: they must be fully intact.
	r, _ := w.mem.Get("n")
	if r.Hold.ID != lock.HoldOf(next) {
		w.Fatalf("the waiter does not hold the lock")
	}
	<-le.Lost()
	least := lock.Standstill(lease) - (lease - lock.Margin(lease))
	if gap := lostFor(le, w); gap < least {
		w.Errorf("the old lease ended %v before the new one began, want at least %v", gap, least)
	}
}

// lostFor is how long ago a lease that was not renewed ended, by its own deadline.
func lostFor(le *lock.Lease, w *world) time.Duration { return w.now() - lock.DeadlineOf(le) }

// lostReply: the answer to an acquisition is lost. The caller must get the lock soon, not after the lease of its own orphan.
func lostReply(w *world) {
	l := w.locker(lock.Options{})
	w.must(w.acquire(l).Release(w.Context()))
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		return locktest.Fault{BreakReply: c.Op == locktest.Acquire && c.N == 1}
	})
	begin := w.now()
	le := w.acquire(l)
	w.must(le.Check(0))
	w.between("acquired", w.now()-begin, 0, time.Second)
}

// lostRenewalReply: a renewal is applied and its answer is lost. The holder must keep the lock.
func lostRenewalReply(w *world) {
	le := w.acquire(w.locker(lock.Options{}))
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		return locktest.Fault{BreakReply: c.Op == locktest.Renew && c.N%2 == 0}
	})
	time.Sleep(5 * lease)
	w.must(le.Check(lease / 2))
}

// slowInsert: an insert arrives late; meanwhile another process creates the record and is granted its first token, and the record is deleted.
func slowInsert(w *world) {
	slow, fast := w.locker(lock.Options{}), w.locker(lock.Options{})
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		if c.Handle == 0 && c.Op == locktest.Create {
			return locktest.Fault{Request: 2 * time.Second}
		}
		return locktest.Fault{}
	})
	var wg sync.WaitGroup
	var last *lock.Lease
	wg.Go(func() { last = w.acquire(slow) })
	time.Sleep(time.Second)
	first := w.acquire(fast)
	w.must(first.Release(w.Context()))
	w.mem.Edit("n", func(*lock.Record) bool { return false })
	wg.Wait()
	if n := w.mem.Calls(locktest.Create); n != 2 {
		w.Errorf("%d inserts, want the slow one and the other: this proves nothing", n)
	}
	if last.Token() <= first.Token() {
		w.Errorf("token %d was granted after %d", last.Token(), first.Token())
	}
}

// twoTakers: two waiters presume the holder dead. One of them is slow: its takeover arrives when the other has the lock.
func twoTakers(w *world) {
	w.acquire(w.locker(lock.Options{}))
	first, second := w.locker(lock.Options{}), w.locker(lock.Options{})
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		return locktest.Fault{LoseRequest: c.Handle == 0}
	})
	w.refused(first)
	w.refused(second)
	time.Sleep(lock.Standstill(lease))
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		switch {
		case c.Handle == 0:
			return locktest.Fault{LoseRequest: true}
		case c.Handle == 2 && c.Op == locktest.TakeOver:
			return locktest.Fault{Request: time.Second}
		}
		return locktest.Fault{}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if le, err := second.TryAcquire(context.WithoutCancel(w.Context()), "n"); err == nil {
			w.Errorf("a second taker got the lock with token %d", le.Token())
		}
	})
	time.Sleep(time.Millisecond)
	le := w.try(first)
	time.Sleep(2 * time.Second)
	if err := le.Check(0); err != nil {
		w.Errorf("the first taker: %v", err)
	}
	time.Sleep(lease)
	if err := le.Check(0); err != nil {
		w.Errorf("the first taker: %v", err)
	}
	wg.Wait()
}

// tokensOverRelease: several processes acquire and release in turn.
func tokensOverRelease(w *world) {
	var last int64
	for range 3 {
		for _, l := range []*lock.Locker{w.locker(lock.Options{}), w.locker(lock.Options{})} {
			le := w.acquire(l)
			if le.Token() <= last {
				w.Errorf("token %d was granted after %d", le.Token(), last)
			}
			last = le.Token()
			w.must(le.Release(w.Context()))
		}
	}
}

// rolledBackRenewal: a waiter reads a renewal on a primary that is about to be deposed. The renewal is rolled back; the
// holder, which has no answer, renews again on the new primary. The waiter must recognize this version as new, not take
// it for the one rolled back.
func rolledBackRenewal(w *world) {
	le := w.acquire(w.locker(lock.Options{}))
	waiter := w.locker(lock.Options{})
	time.Sleep(time.Second)
	w.mem.Inject(func(c locktest.Call) locktest.Fault {
		switch {
		case c.Op != locktest.Renew:
			return locktest.Fault{}
		case c.N == 0:
			return locktest.Fault{Rollback: time.Minute} // readers see it for a while
		case w.now() < 15*time.Second:
			return locktest.Fault{Refuse: true}
		case w.now() < 17*time.Second:
			return locktest.Fault{}
		}
		return locktest.Fault{LoseRequest: true}
	})
	w.acquire(waiter)
	if gap := lostFor(le, w); gap < lock.Margin(lease) {
		w.Errorf("taken over %v after the end of the holder's lease, want at least %v", gap, lock.Margin(lease))
	}
}

// The stores below lack one rule each.

type renewByName struct{ lock.Store }

func (s renewByName) Renew(ctx context.Context, name string, _ lock.Hold, v lock.Version) (string, bool, error) {
	r, _, err := s.Read(ctx, name)
	if err != nil || r.Hold == nil {
		return "", false, err
	}
	return s.Store.Renew(ctx, name, *r.Hold, v)
}

type releaseByName struct{ lock.Store }

func (s releaseByName) Release(ctx context.Context, name string, _ lock.Hold, v lock.Version) (bool, error) {
	r, _, err := s.Read(ctx, name)
	if err != nil || r.Hold == nil {
		return false, err
	}
	return s.Store.Release(ctx, name, *r.Hold, v)
}

// takeOverByName replaces any hold that the record has when the request arrives.
type takeOverByName struct {
	lock.Store
	mem *locktest.Memory
}

func (s takeOverByName) TakeOver(ctx context.Context, name string, _ lock.Version, h lock.Hold, v lock.Version) (token int64,
	ok bool, err error) {
	if _, _, err := s.Store.TakeOver(ctx, name, lock.NewVersion(), h, v); err != nil { // delays the request
		return 0, false, err
	}
	s.mem.Edit(name, func(r *lock.Record) bool {
		r.Token++
		r.Hold, r.Version, token = &h, v, r.Token
		return true
	})
	return token, true, nil
}

// renewByVersion binds renewals to the version that the holder last wrote.
type renewByVersion struct {
	lock.Store
	known lock.Version
}

func (s *renewByVersion) Create(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	s.known = v
	return s.Store.Create(ctx, name, h, v)
}

func (s *renewByVersion) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (string, bool, error) {
	if r, _, err := s.Read(ctx, name); err != nil || r.Version != s.known {
		return "", false, err
	}
	asked, ok, err := s.Store.Renew(ctx, name, h, v)
	if err == nil && ok {
		s.known = v
	}
	return asked, ok, err
}

// deleteOnRelease deletes the record and its token at release, as many libraries do.
type deleteOnRelease struct {
	lock.Store
	mem *locktest.Memory
}

func (s deleteOnRelease) Confirm(ctx context.Context, name string, h lock.Hold, _ int64, v lock.Version) (int64, bool, error) {
	token, ok, err := s.Store.Confirm(ctx, name, h, 0, v)
	return token + 1<<41, ok, err // each record counts its acquisitions from the same number
}

func (s deleteOnRelease) Release(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	ok, err := s.Store.Release(ctx, name, h, v)
	if ok {
		s.mem.Edit(name, func(*lock.Record) bool { return false })
	}
	return ok, err
}

// sameToken returns the token from before the acquisition.
type sameToken struct{ lock.Store }

func (s sameToken) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	token, ok, err := s.Store.Acquire(ctx, name, h, v)
	return token - 1, ok, err
}

// countedVersions numbers the versions of a record instead of choosing them at random.
type countedVersions struct {
	lock.Store
	mem *locktest.Memory
}

func (s countedVersions) next(name string) lock.Version {
	r, _ := s.mem.Get(name)
	r.Version[0]++
	return r.Version
}

func (s countedVersions) Create(ctx context.Context, name string, h lock.Hold, _ lock.Version) (bool, error) {
	return s.Store.Create(ctx, name, h, s.next(name))
}

func (s countedVersions) Renew(ctx context.Context, name string, h lock.Hold, _ lock.Version) (string, bool, error) {
	return s.Store.Renew(ctx, name, h, s.next(name))
}

// readOnlyRenewal checks whether the lock is still ours, and changes nothing.
type readOnlyRenewal struct{ lock.Store }

func (s readOnlyRenewal) Renew(ctx context.Context, name string, h lock.Hold, _ lock.Version) (string, bool, error) {
	r, found, err := s.Read(ctx, name)
	if err != nil {
		return "", false, err
	}
	return "", found && r.Hold != nil && r.Hold.ID == h.ID, nil
}

// askByVersion writes a new version with the request, as a holder's writes do.
type askByVersion struct {
	lock.Store
	mem *locktest.Memory
}

func (s askByVersion) Ask(ctx context.Context, name string, h lock.Hold, why string) (bool, error) {
	ok, err := s.Store.Ask(ctx, name, h, why)
	if ok {
		s.mem.Edit(name, func(r *lock.Record) bool { r.Version = lock.NewVersion(); return true })
	}
	return ok, err
}

// forceWithoutToken releases a hold as its holder would.
type forceWithoutToken struct{ lock.Store }

func (s forceWithoutToken) Force(ctx context.Context, name string, h lock.Hold, _ string, v lock.Version) (bool, error) {
	return s.Release(ctx, name, h, v)
}

type handOverByName struct{ lock.Store }

func (s handOverByName) HandOff(ctx context.Context, name string, from lock.HoldID, h lock.Hold, v lock.Version) (int64, bool, error) {
	if r, _, err := s.Read(ctx, name); err == nil && r.Hold != nil {
		from = r.Hold.ID
	}
	return s.Store.HandOff(ctx, name, from, h, v)
}

// handOverSameToken hands off the lock together with its token.
type handOverSameToken struct{ lock.Store }

func (s handOverSameToken) HandOff(ctx context.Context, name string, from lock.HoldID, h lock.Hold, v lock.Version) (int64, bool,
	error) {
	token, ok, err := s.Store.HandOff(ctx, name, from, h, v)
	return token - 1, ok, err
}

// recordRenewal renews the record, not the entry: one lease for all shared holders.
type recordRenewal struct {
	lock.Store
	mem *locktest.Memory
}

func (s recordRenewal) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (asked string, ok bool, err error) {
	s.mem.Edit(name, func(r *lock.Record) bool {
		for _, e := range r.Shares {
			ok = ok || e.ID == h.ID
		}
		r.Version = v
		return true
	})
	return "", ok, nil
}

// confirmByRecord returns the record's token for a share.
type confirmByRecord struct {
	lock.Store
	mem *locktest.Memory
}

func (s confirmByRecord) Confirm(ctx context.Context, name string, h lock.Hold, floor int64, v lock.Version) (int64, bool, error) {
	token, ok, err := s.Store.Confirm(ctx, name, h, floor, v)
	if ok && h.Shared() {
		s.mem.Edit(name, func(r *lock.Record) bool {
			r.Token = max(r.Token-1, floor+1)
			token = r.Token
			return true
		})
	}
	return token, ok, err
}

// expireByID removes a share even if it was renewed meanwhile.
type expireByID struct{ lock.Store }

func (s expireByID) Expire(ctx context.Context, name string, e lock.Entry, v lock.Version) (bool, error) {
	return s.Release(ctx, name, e.Hold, v)
}
