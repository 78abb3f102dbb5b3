package simulation

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

var (
	count    = flag.Uint64("schedules", 0, "number of schedules; 0 = a few hundred")
	first    = flag.Uint64("first", 1, "seed of the first schedule")
	progress = flag.String("progress", "", "a file for the seed of the schedule that is played, for who starts this program")
	seed     = flag.Uint64("seed", 0, "play this schedule only, and print everything that happens")
)

// outcome is the result of a schedule.
type outcome struct {
	failures []string
	history  []string
	digest   uint64
	census
}

var runs int

// run plays one schedule in a bubble of its own.
func run(t *testing.T, seed uint64, trace func(string)) (o outcome) {
	// A garbage collection would change the order of goroutines, so none happens during a schedule.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if runs++; runs%16 == 0 {
		runtime.GC()
	}
	if *progress != "" {
		if err := os.WriteFile(*progress, fmt.Append(nil, seed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if failure := recover(); failure != nil { // goroutines that do not end
			fmt.Fprintln(os.Stderr, again(seed))
			panic(failure)
		}
	}()
	cryptotest.SetGlobalRandom(t, seed)
	seedRuntime(seed)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed)
		w.trace = trace
		w.play()
		w.check()
		w.damage()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen.Steps = w.steps
		o = outcome{w.failures, w.last, w.digest, w.seen}
	})
	return o
}

// again returns instructions for replaying a schedule.
func again(seed uint64) string {
	if patched {
		return fmt.Sprintf("to see all of it again:\n  make sim ARGS=-seed=%d", seed)
	}
	return fmt.Sprintf("to see almost the same again (see the package's documentation):\n  go test ./integration/simulation -run TestSimulation -seed=%d", seed)
}

// A seed determines its schedule to the nanosecond, whether or not it is traced, and whatever was played before. This is the first test in
// the package, so that nothing has been played before its first round.
func TestSameSeedSameHistory(t *testing.T) {
	if !patched {
		t.Skip("what Go leaves to chance is the seed's only in the program that make sim builds")
	}
	const n = 100
	var digests [n]uint64
	for i := range uint64(n) {
		digests[i] = run(t, *first+i, nil).digest
	}
	for i := range uint64(n) {
		s := *first + n - 1 - i // after other schedules than the first time
		if o := run(t, s, func(string) {}); o.digest != digests[s-*first] {
			t.Errorf("seed %d: digest %016x, and %016x the second time", s, digests[s-*first], o.digest)
		}
	}
	var all uint64
	for _, d := range digests {
		all = mix(all ^ d)
	}
	fmt.Printf("digest of %d schedules from %d on: %016x\n", n, *first, all)
}

func TestSimulation(t *testing.T) {
	if *seed != 0 {
		o := run(t, *seed, func(line string) { fmt.Fprintln(os.Stderr, line) })
		for _, f := range o.failures {
			t.Error(f)
		}
		t.Logf("digest %016x, %+v", o.digest, o.census)
		return
	}
	n := *count
	if n == 0 {
		n = 300
		if testing.Short() {
			n = 30
		}
	}
	var total census
	began := time.Now()
	played := t.Run("schedules", func(t *testing.T) { // a separate test for mutants, which need not make everything happen
		for s := *first; s < *first+n; s++ {
			o := run(t, s, nil)
			if len(o.failures) > 0 {
				t.Fatalf("seed %d:\n%s\nthe last events:\n%s\n%s", s, strings.Join(o.failures, "\n"), strings.Join(o.history, "\n"), again(s))
			}
			total.add(o.census)
		}
	})
	if !played {
		return
	}
	d := time.Since(began)
	for name, happened := range total.all() {
		enough := uint64(300)
		switch name {
		case "Reused", "Compactions", "Refused", "Full", "Slow", "Stale", "Stragglers", "Disasters": // in a few of a hundred schedules
			enough = 3000
		}
		if happened == 0 && n >= enough {
			t.Errorf("%s: none in %d schedules", name, n)
		}
	}
	t.Logf("%d schedules, %v each, %v of virtual time: %+v", n, d/time.Duration(n), total.Virtual, total)
}

// all returns the counters by name.
func (c census) all() map[string]int64 {
	v, all := reflect.ValueOf(c), map[string]int64{}
	for i := range v.NumField() {
		all[v.Type().Field(i).Name] = v.Field(i).Int()
	}
	return all
}

func (c *census) add(o census) {
	longest := max(c.Recovery, o.Recovery)
	v := reflect.ValueOf(c).Elem()
	for name, n := range o.all() {
		f := v.FieldByName(name)
		f.SetInt(f.Int() + n)
	}
	c.Recovery = longest
}
