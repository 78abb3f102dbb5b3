package lock_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// recorded runs a schedule and returns the operations of its processes on the store. All processes write into one buffer.
func recorded(t *testing.T, s schedule) []locktest.Step {
	t.Helper()
	var mu sync.Mutex
	var out bytes.Buffer
	inner, n := s.wrap, 0
	s.wrap = func(w *world, st lock.Store) lock.Store {
		if inner != nil {
			st = inner(w, st)
		}
		n++
		return locktest.Record(st, fmt.Sprint("process ", n), func() int64 { return int64(time.Since(w.start)) }, &lockedWriter{mu: &mu, w: &out})
	}
	s.run(t) // the schedule's own oracle does not matter here
	steps, err := locktest.ReadHistory(&out)
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(b)
}

// TestHistoriesAreLinearizable: whatever clocks and networks do, there is an order of all operations in which every answer is
// correct and tokens grow.
func TestHistoriesAreLinearizable(t *testing.T) {
	race.Skip(t)
	var total locktest.Verdict
	for _, skew := range []float64{1.0 / 16, 0.9} {
		for seed := range min(*schedules, 15) {
			v, err := locktest.Check(recorded(t, schedule{seed: seed, skew: skew}), 20*time.Second)
			if err != nil {
				t.Fatalf("seed %d, clocks %.0f %% apart: %v", seed, skew*100, err)
			}
			total.Operations += v.Operations
			total.Grants += v.Grants
			total.Unclear += v.Unclear
			total.TakenOver += v.TakenOver
			total.Undecided = append(total.Undecided, v.Undecided...)
		}
	}
	t.Logf("%d operations, %d grants, %d takeovers, %d unclear answers, undecided %v", total.Operations, total.Grants, total.TakenOver, total.Unclear, total.Undecided)
	if total.Grants == 0 || total.TakenOver == 0 || total.Unclear == 0 {
		t.Error("the histories do not exercise the protocol")
	}
	if len(total.Undecided) > 5 {
		t.Error("too many histories took too long to decide")
	}
}

// TestHistoriesCatchMissingRules: without a rule some history has no such order.
func TestHistoriesCatchMissingRules(t *testing.T) {
	race.Skip(t)
	for name, s := range map[string]schedule{
		"release by name":  {wrap: func(_ *world, s lock.Store) lock.Store { return releaseByName{s} }},
		"takeover by name": {wrap: func(w *world, s lock.Store) lock.Store { return takeOverByName{s, w.mem} }},
		"token forgotten":  {wrap: func(w *world, s lock.Store) lock.Store { return deleteOnRelease{s, w.mem} }},
	} {
		t.Run(name, func(t *testing.T) {
			s.skew = 0.9
			for s.seed = range uint64(100) {
				if _, err := locktest.Check(recorded(t, s), 10*time.Second); errors.Is(err, locktest.ErrHistory) {
					t.Logf("seed %d: %v", s.seed, err)
					return
				}
			}
			t.Error("100 histories without this rule look right")
		})
	}
}

// inTurn builds a history of calls, each followed by its answer.
func inTurn(steps []locktest.Step) []locktest.Step {
	for i := range steps {
		steps[i].Process, steps[i].N, steps[i].At, steps[i].Name, steps[i].Done = "p", int64(i/2), int64(i), "n", i%2 == 1
	}
	return steps
}

// An operation without an answer may still have been applied, and later operations may depend on it.
func TestCheckerAllowsTakeoversOfUnknownHolds(t *testing.T) {
	const token = 1 << 50
	var steps []locktest.Step
	var now int64
	op := func(s, answer locktest.Step) {
		now++
		s.Process, s.N, s.Name, s.At = "p", now, "n", now
		steps = append(steps, s)
		if answer != (locktest.Step{}) {
			now++
			answer.Process, answer.N, answer.Done, answer.At = s.Process, s.N, true, now
			steps = append(steps, answer)
		}
	}
	ok, unclear := locktest.Step{OK: true}, locktest.Step{Unclear: true}
	op(locktest.Step{Op: locktest.Create, ID: "a"}, ok)
	op(locktest.Step{Op: locktest.Release, ID: "a"}, ok)
	op(locktest.Step{Op: locktest.Acquire, ID: "b"}, locktest.Step{}) // its process is killed
	op(locktest.Step{Op: locktest.TakeOver, ID: "c", Prev: "b"}, unclear)
	op(locktest.Step{Op: locktest.TakeOver, ID: "d", Prev: "c"}, unclear)
	op(locktest.Step{Op: locktest.Confirm, ID: "d"}, locktest.Step{OK: true, Token: token})
	op(locktest.Step{Op: locktest.Renew, ID: "d"}, ok)
	if _, err := locktest.Check(steps, time.Minute); err != nil {
		t.Error(err)
	}
	op(locktest.Step{Op: locktest.Renew, ID: "b"}, ok) // this is not possible
	if _, err := locktest.Check(steps, time.Minute); !errors.Is(err, locktest.ErrHistory) {
		t.Errorf("two holders: %v", err)
	}
}

// A record may lose its creator before it has a token. A hold that then acquires it, and learns that from a Confirm, draws a token with
// another Confirm.
func TestCheckerKnowsRecordsWithoutToken(t *testing.T) {
	const token = 1 << 50
	history := func(drawn int64) []locktest.Step {
		steps := []locktest.Step{
			{Op: locktest.Create, ID: "a"}, {OK: true}, {Op: locktest.Confirm, ID: "a"}, {OK: true, Token: token}, {Op: locktest.Delete}, {OK: true},
			{Op: locktest.Create, ID: "b"}, {OK: true}, {Op: locktest.Release, ID: "b"}, {OK: true},
			{Op: locktest.Acquire, ID: "c"}, {Unclear: true}, {Op: locktest.Confirm, ID: "c"}, {OK: true, Token: 1},
			{Op: locktest.Confirm, ID: "c"}, {OK: true, Token: drawn},
		}
		return inTurn(steps)
	}
	if _, err := locktest.Check(history(token+1), time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := locktest.Check(history(token-1), time.Minute); !errors.Is(err, locktest.ErrHistory) {
		t.Errorf("a smaller token than before: %v", err)
	}
}

// A deletion that found no record changes nothing, even if the record exists.
func TestCheckerBelievesDeletions(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		steps := []locktest.Step{{Op: locktest.Create, ID: "a"}, {OK: true}, {Op: locktest.Delete}, {OK: deleted}, {Op: locktest.Renew, ID: "a"}, {OK: true}}
		if _, err := locktest.Check(inTurn(steps), time.Minute); (err != nil) != deleted {
			t.Errorf("deleted %v, and renewed after it: %v", deleted, err)
		}
	}
}

// The answer of a half-applied batch that found nothing says nothing about its other half.
func TestHistoryOfABatchThatIsAppliedByHalf(t *testing.T) {
	ctx, mem := t.Context(), locktest.NewMemory()
	defer mem.Stop()
	var out bytes.Buffer
	now := int64(0)
	r := locktest.Record(mem.Open(), "p", func() int64 { now++; return now }, &out)
	held, gone := lock.Hold{ID: lock.NewHoldID(), Lease: time.Minute}, lock.Hold{ID: lock.NewHoldID(), Lease: time.Minute}
	if ok, err := r.Create(ctx, "m", held, lock.NewVersion()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	mem.Inject(func(c locktest.Call) locktest.Fault { return locktest.Fault{Half: c.Op == locktest.RenewMany} })
	found, err := r.RenewMany(ctx, []lock.Renewal{{Name: "m", Hold: gone, Version: lock.NewVersion()}, {Name: "m", Hold: held, Version: lock.NewVersion()}})
	if err != nil || found != 0 {
		t.Fatal(found, err)
	}
	if _, ok, err := r.Renew(ctx, "m", held, lock.NewVersion()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	steps, err := locktest.ReadHistory(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locktest.Check(steps, time.Minute); err != nil {
		t.Error(err)
	}
}
