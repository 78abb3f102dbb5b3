package storage

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/storage"
)

// allocCount is the number of heap allocations of a piece of work after it has warmed up.
type allocCount struct {
	what     string
	messages uint64
	syncs    uint64
	mallocs  uint64
	sites    []string // where they are made, if there are any per message
}

// budget is the least number of allocations per message that counts as more than none: a buffer that grew is not an
// allocation per message.
const budget = 0.001

// perMessage excludes one allocation per Sync: the file's name in the form that the kernel requires.
func (a *allocCount) perMessage() float64 {
	return float64(a.mallocs-min(a.mallocs, a.syncs)) / float64(a.messages)
}

// measureAllocs counts allocations on the paths that every message takes.
func measureAllocs(ctx context.Context, o suite.Options) ([]allocCount, error) {
	dir, err := os.MkdirTemp(o.Dir, "allocs")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	calls := 2000
	if o.Quick {
		calls = 20
	}
	var counts []allocCount
	for _, batch := range []int{1, 256} {
		for _, durable := range []bool{false, true} {
			c, err := appendAllocs(filepath.Join(dir, fmt.Sprint(batch, durable)), batch, calls, durable)
			if err != nil {
				return nil, err
			}
			counts = append(counts, c)
		}
	}
	f, err := buildFile(ctx, dir, "scan", 256, int64(calls)<<14, 0)
	if err != nil {
		return nil, err
	}
	for _, c := range []struct {
		what string
		work func() error
	}{{"Reader, a whole file", f.scan}, {"Verify, a whole file", func() error { return f.verify(ctx) }}} {
		count := allocCount{what: c.what, messages: f.records}
		if err := count.count(c.work); err != nil {
			return nil, err
		}
		counts = append(counts, count)
	}
	return counts, nil
}

func appendAllocs(dir string, batch, calls int, durable bool) (allocCount, error) {
	w, err := storage.Open(context.Background(), dir, "allocs", 1, storage.Options{})
	if err != nil {
		return allocCount{}, err
	}
	defer w.Close()
	c := allocCount{what: fmt.Sprintf("append, batches of %d", batch), messages: uint64(batch * calls)}
	if durable {
		c.what += ", durable"
		c.syncs = uint64(calls)
	}
	log := &fencepost{w: w, recs: records(newSource(batch)), durable: durable}
	err = c.count(func() error {
		for range calls {
			if err := log.append(0, batch); err != nil {
				return err
			}
		}
		return nil
	})
	return c, err
}

// count counts the allocations of f in its second run, and finds their sites if there are too many.
func (a *allocCount) count(f func() error) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // no other goroutine allocates meanwhile
	if err := f(); err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	err := f()
	runtime.ReadMemStats(&after)
	a.mallocs = after.Mallocs - before.Mallocs
	if err == nil && a.perMessage() >= budget {
		a.sites, err = allocSites(a.messages, f)
	}
	return err
}

// allocSites returns the lines of Fencepost that allocate the most in f, with allocations per message.
func allocSites(messages uint64, f func() error) ([]string, error) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	before := memProfile()
	if err := f(); err != nil {
		return nil, err
	}
	lines := map[string]int64{}
	for stack, n := range memProfile() {
		if n -= before[stack]; n > 0 {
			lines[ourLine(stack)] += n
		}
	}
	var top []string
	for line := range lines {
		top = append(top, line)
	}
	slices.SortFunc(top, func(a, b string) int { return int(lines[b] - lines[a]) })
	top = top[:min(len(top), 4)]
	for i, line := range top {
		top[i] = fmt.Sprintf("%s: %.3f", line, float64(lines[line])/float64(messages))
	}
	return top, nil
}

// memProfile returns the number of objects allocated so far, by call stack.
func memProfile() map[[32]uintptr]int64 {
	runtime.GC() // the profile is that of the last collection but one
	runtime.GC()
	n, _ := runtime.MemProfile(nil, true)
	recs := make([]runtime.MemProfileRecord, n+100)
	n, _ = runtime.MemProfile(recs, true)
	objects := map[[32]uintptr]int64{}
	for i := range recs[:n] {
		objects[recs[i].Stack0] += recs[i].AllocObjects
	}
	return objects
}

// ourLine returns the innermost line of the package under test, without its path.
func ourLine(stack [32]uintptr) string {
	end := slices.Index(stack[:], 0)
	if end < 0 {
		end = len(stack)
	}
	frames := runtime.CallersFrames(stack[:end])
	for more := end > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.HasPrefix(f.Function, "github.com/fencepost/fencepost/storage.") {
			return fmt.Sprintf("storage/%s:%d", path.Base(f.File), f.Line)
		}
	}
	return "elsewhere"
}
