package storage_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func TestMain(m *testing.M) {
	if os.Getenv("FENCEPOST_TEST_CHILD") != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestRandomSchedules interleaves the steps of several workers, with every fault that the memory file system supports.
func TestRandomSchedules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mem := storagetest.NewMem(rapid.SampledFrom([]int64{512, 4096}).Draw(rt, "block"))
		mem.NoAllocate = rapid.Bool().Draw(rt, "no fallocate")
		x := newWorld("/data")
		x.Published = 30
		s := &schedule{rt: rt, mem: mem, Crew: oracle.Crew{World: x}}
		rt.Repeat(map[string]func(*rapid.T){
			"open": func(*rapid.T) { s.open() },
			"append": func(rt *rapid.T) {
				s.step(rt, func(h *holder) error { return h.Append(rapid.IntRange(1, 4).Draw(rt, "k")) })
			},
			"ack":        func(rt *rapid.T) { s.step(rt, (*holder).Ack) },
			"checkpoint": func(rt *rapid.T) { s.step(rt, (*holder).Checkpoint) },
			"rotate":     func(rt *rapid.T) { s.step(rt, (*holder).Rotate) },
			"compact":    func(rt *rapid.T) { s.step(rt, (*holder).Compact) },
			"merge":      func(rt *rapid.T) { s.step(rt, (*holder).Merge) },
			"close":      func(rt *rapid.T) { s.step(rt, func(h *holder) error { return h.Writer.Close() }) },
			"kill":       func(rt *rapid.T) { s.Kill(who(rt)) },
			"crash":      func(rt *rapid.T) { s.crash(rt) },
			"writeback":  func(rt *rapid.T) { mem.Writeback(s.anyFile(rt), s.choose(rt)) },
			"io error":   func(rt *rapid.T) { mem.FailWriteback(s.anyFile(rt), s.choose(rt)) },
			"publish":    func(rt *rapid.T) { x.Published += 3 },
			"full":       func(rt *rapid.T) { mem.SetFree(rapid.Int64Range(0, 3000).Draw(rt, "free")) },
			"space":      func(rt *rapid.T) { mem.SetFree(1 << 40) },
			"replace":    func(rt *rapid.T) { s.replace(rt) },
		})
		s.check(mem.Clone())
		mem.Crash(storagetest.Crash{})
		s.check(mem)
	})
}

// schedule is the state of one random run.
type schedule struct {
	oracle.Crew
	rt    *rapid.T
	mem   *storagetest.Mem
	depth int
}

// tap lets other workers run in the middle of a worker's calls, and injects faults.
func (s *schedule) tap() storage.FS {
	return &storagetest.Tap{FS: s.mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if s.depth > 1 || c.Op == storagetest.OpRead || c.Op == storagetest.OpClose {
			return nil
		}
		s.depth++
		defer func() { s.depth-- }()
		switch rapid.IntRange(0, 60).Draw(s.rt, "in the middle of "+string(c.Op)) {
		case 1:
			s.open()
		case 2, 3:
			s.step(s.rt, func(h *holder) error { return h.Append(1) })
		case 4:
			s.step(s.rt, (*holder).Ack)
		case 5:
			s.mem.Writeback(s.anyFile(s.rt), s.choose(s.rt))
		case 6:
			if c.Op == storagetest.OpDatasync {
				s.mem.FailWriteback(c.Name, s.choose(s.rt))
			}
		case 7:
			if c.Op == storagetest.OpAppend {
				return &storagetest.Fault{Short: rapid.IntRange(0, int(c.Len)-1).Draw(s.rt, "short")}
			}
		case 8:
			if c.Op == storagetest.OpAllocate {
				return &storagetest.Fault{Err: errNoSpace}
			}
		case 9:
			if c.Op == storagetest.OpAppend {
				return &storagetest.Fault{Err: syscall.EIO, Short: rapid.IntRange(0, int(c.Len)).Draw(s.rt, "written in spite of the error")}
			}
		}
		return nil
	}}
}

var errNoSpace = fmt.Errorf("injected: %w", syscall.ENOSPC)

func (s *schedule) choose(rt *rapid.T) func(int64) bool {
	mask := rapid.Uint16().Draw(rt, "blocks")
	return func(b int64) bool { return mask>>(b%16)&1 == 1 }
}

// anyFile returns the path of one of the files, finished or not.
func (s *schedule) anyFile(rt *rapid.T) string {
	names := s.mem.Names()
	if len(names) == 0 {
		return ""
	}
	return rapid.SampledFrom(names).Draw(rt, "file")
}

func (s *schedule) open() { s.expected(s.Open(s.tap())) }

// step runs do with one of the workers.
func (s *schedule) step(rt *rapid.T, do func(*holder) error) { s.expected(s.Step(who(rt), do)) }

func who(rt *rapid.T) func(n int) int {
	return func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "who") }
}

// expected fails for errors that no fault of this test explains.
func (s *schedule) expected(err error) {
	var dead *storage.PoisonedError
	var short *storage.ShortWriteError
	ok := err == nil || errors.Is(err, storage.ErrFenced) || errors.Is(err, storage.ErrClosed) || errors.Is(err, storage.ErrNoSpace) ||
		errors.As(err, &dead) || errors.As(err, &short) || errors.Is(err, syscall.EIO)
	if !ok {
		s.rt.Fatalf("a worker: %v", err)
	}
}

// replace removes the file, or moves another one over it, while workers use it, and puts a copy back. No worker acknowledges
// records that are only in the removed file, and none continues in another file.
func (s *schedule) replace(rt *rapid.T) {
	path := s.World.Path()
	data := s.mem.ReadFile(path)
	if data == nil || !s.World.Registered {
		return
	}
	if rapid.Bool().Draw(rt, "removed") {
		s.mem.Remove(path)
	} else {
		s.mem.WriteFile("/data/other", []byte("another file"))
		s.mem.Rename("/data/other", path)
	}
	s.depth += 2 // nothing else happens meanwhile
	defer func() { s.depth -= 2 }()
	for range s.Holders {
		s.step(rt, func(h *holder) error { return h.Append(1) })
		s.step(rt, (*holder).Ack)
	}
	if _, err := s.World.Open(s.mem); !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) {
		rt.Fatalf("opened in place of the file: %v", err)
	}
	s.mem.WriteFile(path, data)
}

func (s *schedule) crash(rt *rapid.T) {
	keep := s.choose(rt)
	size := rapid.Bool().Draw(rt, "size survives")
	s.mem.Crash(storagetest.Crash{
		Keep:     func(_ string, b int64) bool { return keep(b) },
		KeepSize: func(string) bool { return size },
		KeepName: func(string) bool { return size },
	})
	s.KillAll()
	s.check(s.mem.Clone())
}

// check lets one more worker finish all the work on mem.
func (s *schedule) check(mem *storagetest.Mem) {
	y := s.World.Clone()
	mem.SetFree(1 << 40)
	if err := y.Finish(mem); err != nil {
		s.rt.Fatal(err)
	}
}

// TestManyWritersAtOnce runs writers that take over the file from each other as fast as they can, on a real file system.
func TestManyWritersAtOnce(t *testing.T) {
	x := newWorld(t.TempDir())
	x.Published = 400
	var mu sync.Mutex // the queue and the registry; not the file
	reg := &lockedRegistry{mu: &mu, x: x}
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			for {
				mu.Lock()
				done := len(x.Acked) >= x.Published
				x.Epoch++
				epoch := x.Epoch
				mu.Unlock()
				if done {
					return nil
				}
				if err := reg.session(epoch); err != nil {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := x.Check(nil); err != nil {
		t.Error(err)
	}
}

type lockedRegistry struct {
	mu *sync.Mutex
	x  *world
}

func (r *lockedRegistry) Lookup(ctx context.Context, typ string) (storage.Entry, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.x.Lookup(ctx, typ)
}

func (r *lockedRegistry) Register(ctx context.Context, typ string, e storage.Entry) (storage.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.x.Register(ctx, typ, e)
}

func (r *lockedRegistry) Succeed(ctx context.Context, typ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.x.Succeed(ctx, typ, old, e)
}

func (r *lockedRegistry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.x.Update(ctx, typ, e)
}

// session opens the file with the epoch and appends ten batches unless it is fenced earlier. It appends and syncs in
// separate goroutines.
func (r *lockedRegistry) session(epoch uint64) error {
	h := &holder{World: r.x, Index: map[int]uint64{}}
	w, err := storage.Open(context.Background(), r.x.Dir, "orders", epoch, storage.Options{Registry: r, CheckpointBatches: 5, Restore: h.Restore, Replay: h.Replay})
	if errors.Is(err, storage.ErrFenced) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	h.Writer = w
	landed := make(chan struct{}, 1)
	var g errgroup.Group
	g.Go(func() error {
		defer close(landed)
		for range 10 {
			r.mu.Lock()
			recs := h.Fetch(3)
			r.mu.Unlock()
			next := w.NextIndex()
			if err := w.Append(recs); err != nil {
				return err
			}
			r.mu.Lock()
			for i, rec := range recs {
				h.Index[number(rec.ID)] = next + uint64(i)
				h.Tail = append(h.Tail, number(rec.ID))
			}
			r.mu.Unlock()
			landed <- struct{}{}
			if w.CheckpointDue() {
				r.mu.Lock()
				state := h.State()
				r.mu.Unlock()
				if err := w.Checkpoint(state); err != nil {
					return err
				}
			}
		}
		return nil
	})
	g.Go(func() error {
		for range landed {
			next, err := w.Sync()
			if err != nil {
				for range landed {
				}
				return err
			}
			r.mu.Lock()
			for _, n := range h.Dups {
				if h.Index[n] < next {
					r.x.Acked[n] = h.Index[n]
				}
			}
			for len(h.Tail) > 0 && h.Index[h.Tail[0]] < next {
				r.x.Acked[h.Tail[0]] = h.Index[h.Tail[0]]
				h.Tail = h.Tail[1:]
			}
			r.mu.Unlock()
		}
		return nil
	})
	if err := g.Wait(); err != nil && !errors.Is(err, storage.ErrFenced) {
		return err
	}
	return nil
}

// TestCreatedByManyAtOnce: all writers find no file and create one; one wins, and all continue with its file.
func TestCreatedByManyAtOnce(t *testing.T) {
	const n = 8
	dir := filepath.Join(t.TempDir(), "new", "directory")
	var ready sync.WaitGroup // each of them has written its own file, and is about to link it
	ready.Add(n)
	linked := make([]error, n)
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			fsys := &storagetest.Tap{FS: storage.OS(), Before: func(c storagetest.Call) *storagetest.Fault {
				if c.Op == storagetest.OpLink {
					ready.Done()
					ready.Wait()
				}
				return nil
			}, Failed: func(c storagetest.Call, err error) {
				if c.Op == storagetest.OpLink {
					linked[i] = err
				}
			}}
			w, err := storage.Open(context.Background(), dir, "orders", uint64(i+1), storage.Options{FS: fsys})
			if err == nil {
				err = w.Close()
			}
			if errors.Is(err, storage.ErrFenced) { // by one of the others, which is fine here
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	losers := 0
	for _, err := range linked {
		if errors.Is(err, os.ErrExist) || errors.Is(err, os.ErrNotExist) { // the winner has cleaned up already
			losers++
		}
	}
	if losers != n-1 {
		t.Errorf("%d of %d found that another writer was first", losers, n)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "orders.fpl" {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	info, _ := os.Stat(filepath.Join(dir, "orders.fpl"))
	parent, _ := os.Stat(dir)
	if info.Mode().Perm()&^0o640 != 0 || parent.Mode().Perm()&^0o750 != 0 {
		t.Errorf("modes %v, %v", info.Mode(), parent.Mode())
	}
	must(t, mustOpen(t, dir, n+1, storage.Options{}).Close())
}

// TestKilledInTheMiddleOfAWrite kills a process with SIGKILL while it appends large batches.
func TestKilledInTheMiddleOfAWrite(t *testing.T) {
	race.Skip(t)
	dir := t.TempDir()
	acked, torn := uint64(0), 0
	for round := range 8 {
		out := startChild(t, dir, uint64(round+1))
		// Let it acknowledge a few batches, then kill it at a random moment during the next one.
		for range 1 + rand.IntN(3) {
			line, err := out.ReadString('\n')
			if err != nil {
				t.Fatalf("round %d: the child ended: %q, %v", round, line, err)
			}
			if _, err := fmt.Sscan(line, &acked); err != nil {
				t.Fatalf("round %d: %q", round, line)
			}
		}
		out.killAfter(time.Duration(rand.IntN(20)) * time.Millisecond)
		for {
			line, err := out.ReadString('\n')
			if err != nil {
				break
			}
			fmt.Sscan(line, &acked)
		}
		out.wait()
		rep := mustVerify(t, nil, filepath.Join(dir, "orders.fpl"))
		if rep.Err() != nil || rep.NextIndex < acked {
			t.Fatalf("round %d: %d acknowledged, %d in the file, %v", round, acked, rep.NextIndex, rep.Err())
		}
		if rep.Torn.End != 0 {
			torn++
		}
	}
	w := mustOpen(t, dir, 100, storage.Options{})
	if w.NextIndex() < acked {
		t.Errorf("%d acknowledged, the writer continues at %d", acked, w.NextIndex())
	}
	must(t, w.Close())
	rep := mustVerify(t, nil, filepath.Join(dir, "orders.fpl"))
	if rep.Err() != nil || rep.Torn.End != 0 || len(rep.Void) != torn {
		t.Errorf("%d torn tails became %d void ranges, %v", torn, len(rep.Void), rep.Err())
	}
	t.Logf("%d of 8 kills tore a batch; %d records of 64 KiB", torn, rep.Messages)
}

type childProcess struct {
	*bufio.Reader
	cmd *exec.Cmd
}

func startChild(t *testing.T, dir string, epoch uint64) *childProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FENCEPOST_TEST_CHILD="+dir, fmt.Sprintf("FENCEPOST_TEST_EPOCH=%d", epoch))
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return &childProcess{bufio.NewReader(pipe), cmd}
}

// killAfter kills the child after d. The delay is deliberate: it decides how far the child's write gets.
func (c *childProcess) killAfter(d time.Duration) {
	<-time.After(d)
	c.cmd.Process.Kill()
}

func (c *childProcess) wait() {
	io.Copy(io.Discard, c)
	c.cmd.Wait()
}

// child appends batches of 8 MiB until it is killed, and prints after each Sync how many records are durable.
func child() {
	var epoch uint64
	fmt.Sscan(os.Getenv("FENCEPOST_TEST_EPOCH"), &epoch)
	w, err := storage.Open(context.Background(), os.Getenv("FENCEPOST_TEST_CHILD"), "orders", epoch, storage.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for n := 0; ; n++ {
		recs := make([]storage.Record, 128)
		for i := range recs {
			recs[i] = storage.Record{ID: fmt.Appendf(nil, "%d-%d-%d", epoch, n, i), Payload: []byte(strings.Repeat("x", 64<<10))}
		}
		if err := w.Append(recs); err != nil {
			fmt.Println(err)
			return
		}
		next, err := w.Sync()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(next)
	}
}
