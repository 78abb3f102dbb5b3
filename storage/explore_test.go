package storage_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// The crash explorer. A run of one or several workers is recorded: each call that changes something is preceded by a moment, a
// snapshot of the machine and of the acknowledged messages. Then the power fails at every moment, and in the middle of every
// write, in every possible way unless there are too many: each dirty block is lost, or on the device, or on it as it was after
// an earlier append; the file's length and new names survive or do not. Each resulting image must be one that a crash may leave
// (see exploration.judge). FENCEPOST_TEST_LONG=1 tears writes at every byte, and takes all subsets of a dozen blocks.

// exploration is a recorded run.
type exploration struct {
	x       *world
	mem     *storagetest.Mem
	tap     *storagetest.Tap
	moments []moment
	ends    map[string][]int64 // where the appends to each file ended

	during func(storagetest.Call) *storagetest.Fault // called before each call, if not nil
}

// moment is the machine right before a call.
type moment struct {
	x    *world
	mem  *storagetest.Mem
	call storagetest.Call
	data []byte // bytes that the call appends
	ends map[string][]int64
}

func newExploration(t *testing.T, block int64, r run) *exploration {
	t.Helper()
	e := &exploration{x: newWorld("/data/files"), mem: storagetest.NewMem(block), ends: map[string][]int64{}}
	if r.prepare != nil {
		r.prepare(e.mem)
	}
	if !r.first {
		firstSession(t, e.x, e.mem)
	}
	e.x.Published = 16
	e.tap = &storagetest.Tap{FS: e.mem, Before: e.before, After: func(c storagetest.Call) {
		if name := e.name(c); c.Op == storagetest.OpAppend {
			e.ends[name] = append(e.ends[name], int64(len(e.mem.ReadFile(name))))
		}
	}}
	return e
}

// name returns the current name of a call's file: a successor is first written under a temporary name.
func (e *exploration) name(c storagetest.Call) string {
	if _, err := e.mem.Stat(c.Name); err != nil {
		return e.x.Path()
	}
	return c.Name
}

func (e *exploration) before(c storagetest.Call) *storagetest.Fault {
	switch c.Op {
	case storagetest.OpAppend, storagetest.OpDatasync, storagetest.OpAllocate, storagetest.OpLink, storagetest.OpRemove, storagetest.OpSyncDir, storagetest.OpClose:
		e.record(c)
	}
	if e.during != nil {
		return e.during(c)
	}
	return nil
}

// record keeps the moment before a call.
func (e *exploration) record(c storagetest.Call) {
	c.Name = e.name(c)
	m := moment{x: e.x.Clone(), mem: e.mem.Clone(), call: c, data: slices.Clone(c.Data), ends: map[string][]int64{}}
	for name, ends := range e.ends {
		m.ends[name] = slices.Clone(ends)
	}
	m.mem.SetFree(1 << 40) // workers after the crash find space
	e.moments = append(e.moments, m)
}

func (e *exploration) open() (*holder, error) { return e.x.Open(e.tap) }

// work is a session that does everything.
func (e *exploration) work() error {
	h, err := e.open()
	if err != nil {
		return err
	}
	return h.Work()
}

// run is a scenario of one or several workers. do returns an error if something unexpected happens.
type run struct {
	name    string
	first   bool // no file exists yet
	prepare func(*storagetest.Mem)
	do      func(e *exploration) error
}

// may ignores the errors of a worker that is fenced, or whose device fails or is full.
func may(err error) error {
	var dead *storage.PoisonedError
	if err == nil || errors.As(err, &dead) || errors.Is(err, storage.ErrFenced) || errors.Is(err, syscall.EIO) || errors.Is(err, storage.ErrNoSpace) {
		return nil
	}
	return err
}

var runs = []run{
	{name: "one writer", do: func(e *exploration) error {
		h, err := e.open()
		if err != nil {
			return err
		}
		return steps(appends(h, 2), appends(h, 1), h.Ack, appends(h, 1), appends(h, 3), h.Ack, h.Writer.Close)
	}},
	{name: "a whole session", do: (*exploration).work}, {name: "the first session", first: true, do: (*exploration).work},
	{name: "checkpoints", do: func(e *exploration) error {
		h, err := e.open()
		if err != nil {
			return err
		}
		return steps(appends(h, 2), h.Checkpoint, appends(h, 2), appends(h, 1), h.Checkpoint, h.Checkpoint, appends(h, 1), h.Ack, h.Writer.Close)
	}},
	{name: "takeover", do: func(e *exploration) error {
		a, err := e.open()
		if err != nil {
			return err
		}
		if err := steps(appends(a, 1), a.Ack, appends(a, 2)); err != nil { // and A's process is killed
			return err
		}
		b, err := e.open()
		if err != nil {
			return err
		}
		return steps(appends(b, 1), b.Ack, appends(b, 1), b.Checkpoint, b.Writer.Close)
	}},
	zombie(0), zombie(1), zombie(2), zombie(3),
	failedSync("all blocks", func(int64) bool { return true }), failedSync("odd blocks", func(b int64) bool { return b%2 == 1 }),
	failedSync("no block", func(int64) bool { return false }),
	{name: "failed sync on ext4, and takeover", prepare: func(m *storagetest.Mem) { m.FailedStay = true }, do: failedSync("", func(int64) bool { return true }).do},
	{name: "the successor's sync takes the error", prepare: func(m *storagetest.Mem) { m.ErrorOnce = true }, do: func(e *exploration) error {
		a, err := e.open()
		if err == nil {
			err = a.Append(3)
		}
		if err != nil {
			return err
		}
		path := e.x.Path()
		e.during = func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpDatasync {
				e.during = nil
				e.mem.FailWriteback(path, nil)
			}
			return nil
		}
		if _, err := e.open(); !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("the successor's sync did not fail: %w", err)
		}
		return may(a.Ack())
	}},
	{name: "a short write that a fence completes", do: func(e *exploration) error {
		a, err := e.open()
		if err != nil {
			return err
		}
		fence := int64(0)
		probe := &storagetest.Tap{FS: e.mem.Clone(), Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpAppend && fence == 0 {
				fence = c.Len
			}
			return nil
		}}
		if _, err := e.x.Clone().Open(probe); err != nil {
			return err
		}
		e.during = func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpAppend {
				e.during = nil
				return &storagetest.Fault{Short: int(c.Len - fence)}
			}
			return nil
		}
		if err := may(a.Append(3)); err != nil {
			return err
		}
		e.during = func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpDatasync { // the fence has landed
				e.during = nil
				a.Ack() // with the rule A is dead
			}
			return nil
		}
		b, err := e.open()
		if err != nil {
			return err
		}
		return may(steps(appends(b, 1), b.Ack, b.Writer.Close))
	}},
	{name: "a full device without fallocate", prepare: func(m *storagetest.Mem) { m.NoAllocate = true }, do: func(e *exploration) error {
		a, err := e.open()
		if err == nil {
			err = steps(appends(a, 1), a.Ack)
		}
		if err != nil {
			return err
		}
		e.mem.SetFree(100)
		var short *storage.ShortWriteError
		if err := a.Append(3); !errors.As(err, &short) {
			return fmt.Errorf("no short write: %w", err)
		}
		e.mem.SetFree(1 << 30)
		b, err := e.open()
		if err != nil {
			return err
		}
		return steps(appends(b, 2), b.Ack, b.Writer.Close)
	}},
	{name: "rotation", do: func(e *exploration) error {
		h, err := e.open()
		if err == nil {
			err = steps(appends(h, 2), h.Rotate)
		}
		if err != nil {
			return err
		}
		return steps(appends(h, 1), h.Ack, h.Writer.Close)
	}},
	{name: "compaction", do: func(e *exploration) error {
		h, err := e.open()
		if err == nil {
			err = steps(appends(h, 2), h.Compact)
		}
		if err != nil {
			return err
		}
		return steps(appends(h, 1), h.Ack, h.Writer.Close)
	}},
	{name: "takeover of a sealed file", do: func(e *exploration) error {
		a, err := e.open()
		if err == nil {
			err = a.Append(2)
		}
		if err != nil {
			return err
		}
		e.during = func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpLink {
				e.during = nil
				return &storagetest.Fault{Err: syscall.EIO}
			}
			return nil
		}
		if err := a.Rotate(); !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("the rotation did not fail: %w", err)
		}
		b, err := e.open()
		if err != nil {
			return err
		}
		return steps(appends(b, 2), b.Ack, b.Writer.Close)
	}},
}

// zombie lets the old holder append and acknowledge before the k-th write or sync of its successor's opening.
func zombie(k int) run {
	return run{name: fmt.Sprintf("a zombie works before step %d of its successor", k), do: func(e *exploration) error {
		a, err := e.open()
		if err == nil {
			err = steps(appends(a, 1), a.Ack, appends(a, 1))
		}
		if err != nil {
			return err
		}
		n, zerr := 0, error(nil)
		e.during = func(c storagetest.Call) *storagetest.Fault {
			if c.Op != storagetest.OpAppend && c.Op != storagetest.OpDatasync {
				return nil
			}
			if n++; n-1 == k {
				e.during = nil
				zerr = may(steps(appends(a, 2), a.Ack, appends(a, 1), a.Ack))
			}
			return nil
		}
		b, err := e.open()
		if err == nil {
			err = steps(appends(b, 2), b.Ack, appends(b, 1), b.Ack)
		}
		return errors.Join(zerr, may(err), may(steps(appends(a, 1), a.Ack)))
	}}
}

// failedSync makes the device refuse the blocks that lose chooses, once; then a successor takes over.
func failedSync(what string, lose func(int64) bool) run {
	return run{name: "failed sync, losing " + what + ", and takeover", do: func(e *exploration) error {
		a, err := e.open()
		if err == nil {
			err = steps(a.Ack, appends(a, 3), appends(a, 3))
		}
		if err == nil { // more than a page; otherwise the fence would be written together with it
			err = a.Writer.Checkpoint(a.State())
		}
		if err == nil {
			err = steps(appends(a, 1), appends(a, 2), appends(a, 1))
		}
		if err != nil {
			return err
		}
		e.mem.FailWriteback(e.x.Path(), lose)
		if err := may(a.Ack()); err != nil {
			return err
		}
		b, err := e.open()
		if errors.Is(err, syscall.EIO) { // its fence was in one of the blocks
			b, err = e.open()
		}
		if err != nil {
			return err
		}
		b.Fetch(2) // duplicates of messages it found, and messages it did not find
		err = b.Ack()
		b.Read = 0
		return may(errors.Join(err, steps(appends(b, 2), b.Ack, b.Writer.Close)))
	}}
}

// TestCrashExplorer explores every run.
func TestCrashExplorer(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	limit, step := 48, 19 // images of a moment; bytes between two places where a write is torn, odd so that all alignments occur
	switch {
	case os.Getenv("FENCEPOST_TEST_LONG") == "1":
		limit, step = 1<<13, 1
	case testing.Short() || race.Enabled:
		limit, step = 20, 61
	}
	for _, block := range []int64{512, 4096} {
		for _, r := range runs {
			t.Run(fmt.Sprintf("%s, blocks of %d", r.name, block), func(t *testing.T) {
				t.Parallel()
				e := record(t, r, block)
				images, err := e.explore(limit, step)
				if err != nil {
					t.Errorf("image %d: %v", images, err)
				}
				t.Logf("%d moments, %d images", len(e.moments), images)
			})
		}
	}
}

// record runs r.
func record(t *testing.T, r run, block int64) *exploration {
	t.Helper()
	e := newExploration(t, block, r)
	must(t, r.do(e))
	e.record(storagetest.Call{}) // the end
	return e
}

// explore judges up to limit images of each moment, and one or two for every step-th byte at which the write in progress is torn.
func (e *exploration) explore(limit, step int) (images int, err error) {
	for i, m := range e.moments {
		before, err := view(m.mem)
		if err != nil {
			return images, violated("moment %d, before %s: %v", i, m.call.Op, err)
		}
		try := func(mem *storagetest.Mem, what string) error {
			images++
			if err := e.judge(&m, mem, before); err != nil {
				return violated("moment %d, before %s at %d: %s: %v", i, m.call.Op, m.call.N, what, err)
			}
			return nil
		}
		if err := try(m.mem.Clone(), "all processes killed"); err != nil {
			return images, err
		}
		for _, c := range m.crashes(limit) {
			after := m.mem.Clone()
			after.Crash(c.crash)
			if err := try(after, c.what); err != nil {
				return images, err
			}
		}
		for n := 1; n < len(m.data); n += step {
			torn := m
			torn.mem = m.mem.Clone()
			if err := appendTo(torn.mem, m.call.Name, m.data[:n]); err != nil {
				return images, err
			}
			if n%4 == 0 {
				if err := try(torn.mem.Clone(), fmt.Sprintf("killed after byte %d", n)); err != nil {
					return images, err
				}
			}
			ways := torn.crashes(16)
			way := ways[n%len(ways)]
			torn.mem.Crash(way.crash)
			if err := try(torn.mem, fmt.Sprintf("byte %d, %s", n, way.what)); err != nil {
				return images, err
			}
		}
	}
	return images, nil
}

func appendTo(mem *storagetest.Mem, name string, data []byte) error {
	f, err := mem.Open(name, storage.ModeAppend)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, err = f.Append(data)
	return err
}

// judge checks an image that a crash at the moment m left; before has the records that readers saw until then. No acknowledged
// message may be missing or at another index, no message present twice, no index missing; Verify finds no problem, because a crash
// is not damage (world.check). Every record in the image was there before; epochs increase. The next worker continues with every
// record in the image.
func (e *exploration) judge(m *moment, mem *storagetest.Mem, before map[uint64]int) error {
	x := m.x.Clone()
	if err := x.Check(mem); err != nil {
		return err
	}
	shown, err := view(mem)
	if err != nil {
		return err
	}
	if err := within(shown, before); err != nil {
		return violated("compared with the records before the crash: %v", err)
	}
	if err := x.Finish(mem); err != nil {
		return err
	}
	after, err := view(mem)
	if err != nil {
		return err
	}
	if err := within(shown, after); err != nil {
		return violated("compared with the records before the next worker: %v", err)
	}
	return nil
}

// view returns the message at each index, as every reader sees it, and checks that epochs increase.
func view(mem *storagetest.Mem) (map[uint64]int, error) {
	at := map[uint64]int{}
	for _, path := range mem.Names() {
		if !strings.HasSuffix(path, ".fpl") {
			continue
		}
		rep, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: mem, Visit: func(r storage.Record) error { at[r.Index] = number(r.ID); return nil }})
		if err != nil {
			return nil, err
		}
		for i := 1; i < len(rep.Regions); i++ {
			if rep.Regions[i].Epoch <= rep.Regions[i-1].Epoch {
				return nil, violated("epoch %d follows epoch %d", rep.Regions[i].Epoch, rep.Regions[i-1].Epoch)
			}
		}
	}
	return at, nil
}

func within(part, all map[uint64]int) error {
	for i, n := range part {
		if have, ok := all[i]; !ok || have != n {
			return violated("index %d has message %d, but another one or none in the other set: %v, %v", i, n, part, all)
		}
	}
	return nil
}

type crash struct {
	what  string
	crash storagetest.Crash
}

// crashes returns the ways in which the power may fail: all of them, or limit of them, the systematic ones first.
func (m *moment) crashes(limit int) []crash {
	// Each element of a choice selects one of n[i] possibilities.
	type block struct {
		name string
		b    int64
	}
	cuts := map[block][]int64{} // sizes of the file while it ended in the block, and its current size
	var blocks []block
	for _, name := range m.mem.Names() {
		size := int64(len(m.mem.ReadFile(name)))
		for _, b := range m.mem.Dirty(name) {
			k := block{name, b}
			blocks = append(blocks, k)
			for _, end := range m.ends[name] {
				if from, to := b*m.mem.Block(), (b+1)*m.mem.Block(); end > from && end < min(to, size) {
					cuts[k] = append(cuts[k], end)
				}
			}
			cuts[k] = append(cuts[k], size)
		}
	}
	var names []string
	m.mem.Clone().Crash(storagetest.Crash{KeepName: func(name string) bool { names = append(names, name); return false }})

	n := []int{2} // the sizes
	for _, k := range blocks {
		n = append(n, 1+len(cuts[k]))
	}
	for range names {
		n = append(n, 2)
	}
	var all []crash
	for _, choice := range choices(n, limit) {
		kept, at := map[block]bool{}, map[block]int64{}
		for i, k := range blocks {
			if c := choice[1+i]; c > 0 {
				kept[k], at[k] = true, cuts[k][c-1]
			}
		}
		keptNames := map[string]bool{}
		for i, name := range names {
			keptNames[name] = choice[1+len(blocks)+i] == 1
		}
		all = append(all, crash{fmt.Sprintf("size %d, blocks %v, names %v", choice[0], slices.Sorted(maps.Values(at)), keptNames), storagetest.Crash{
			Keep:     func(name string, b int64) bool { return kept[block{name, b}] },
			At:       func(name string, b int64) int64 { return at[block{name, b}] },
			KeepSize: func(string) bool { return choice[0] == 1 },
			KeepName: func(name string) bool { return keptNames[name] },
		}})
	}
	return all
}

// choices returns every vector v with 0 <= v[i] < n[i] if there are at most limit. Otherwise it returns those in which one element
// differs from all others, those that change value once, and random ones.
func choices(n []int, limit int) (all [][]int) {
	total := 1
	for _, k := range n {
		if total *= k; total > limit {
			break
		}
	}
	if total <= limit {
		for i := range total {
			v := make([]int, len(n))
			for j, k := range n {
				v[j], i = i%k, i/k
			}
			all = append(all, v)
		}
		return all
	}
	add := func(f func(j int) bool) {
		v := make([]int, len(n))
		for j := range v {
			if f(j) {
				v[j] = n[j] - 1
			}
		}
		all = append(all, v)
	}
	for i := range n {
		add(func(j int) bool { return j == i })
		add(func(j int) bool { return j != i })
		add(func(j int) bool { return j < i })
		add(func(j int) bool { return j >= i })
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(n))))
	for len(all) < limit {
		v := make([]int, len(n))
		for j, k := range n {
			v[j] = rng.IntN(k)
		}
		all = append(all, v)
	}
	return all[:limit]
}
