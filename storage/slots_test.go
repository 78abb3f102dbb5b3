package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// slotsOf returns the file system of a store.
func slotsOf(s slots.Store) storage.FS { return slots.New(context.Background(), s) }

// newSlotsWorld returns a world over a new store in memory, with a file that has been written to by one session.
func newSlotsWorld(t testing.TB) (*world, *slotstest.Mem) {
	t.Helper()
	mem := slotstest.NewMem(700) // so that most batches take more than one slot
	x := newWorld("memory:")
	x.Published = 6
	h, err := x.Open(slotsOf(mem))
	if err == nil {
		err = errors.Join(h.Begin(), h.Writer.Close(), x.Check(slotsOf(mem)))
	}
	must(t, err)
	x.Published = 40
	return x, mem
}

// fate is what becomes of a request of a session that others overtake meanwhile.
type fate struct {
	name string
	make func() *slotstest.Fault
	late bool // the request is made when all is over
}

var fates = []fate{
	{name: "made after the pause", make: func() *slotstest.Fault { return nil }},
	{name: "lost", make: func() *slotstest.Fault { return &slotstest.Fault{} }},
	{name: "made before the pause, its answer lost", make: func() *slotstest.Fault { return &slotstest.Fault{Applied: true} }},
	{name: "made late", late: true, make: func() *slotstest.Fault { return &slotstest.Fault{Late: true} }},
}

// TestSlotsPausedAtEveryRequest pauses a session before each of its requests, lets a successor take over and work, and lets
// the paused one go on as if nothing had happened, after its request was made, was lost, or was made with its answer lost,
// or is made when everybody has ended.
func TestSlotsPausedAtEveryRequest(t *testing.T) {
	for _, fate := range fates {
		for _, first := range []bool{true, false} { // the request's fate is decided before the successor takes over, or after
			t.Run(fmt.Sprintf("%s, before %v", fate.name, first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					for k := 0; pausedAtRequest(t, k, fate, first, (*world).TakeOver); k++ {
					}
				})
			})
		}
	}
}

// pausedAtRequest pauses a session at its request number k for what others do. It reports whether there was such a request.
func pausedAtRequest(t *testing.T, k int, fate fate, first bool, others func(*world, storage.FS) (*holder, error)) bool {
	t.Helper()
	x, mem := newSlotsWorld(t)
	tap := &slotstest.Tap{Store: mem}
	var successor *holder
	var took error
	tap.Before = func(c slotstest.Call) *slotstest.Fault {
		if c.N != k {
			return nil
		}
		f := fate.make()
		if f != nil && f.Applied && first {
			if c.Op == slotstest.OpCreate {
				_ = mem.Create(t.Context(), c.Name, c.Data)
			}
			f.Applied = false
		}
		successor, took = others(x, slotsOf(mem))
		return f
	}
	old, err := x.Open(slotsOf(tap))
	if err == nil {
		err = old.Work()
	}
	if err != nil && !errors.Is(err, storage.ErrFenced) {
		t.Errorf("request %d: the paused session: %v", k, err)
	}
	if tap.Calls() <= k {
		old.Close()
		return false
	}
	if took != nil {
		t.Errorf("request %d: the successor, undisturbed so far: %v", k, took)
		return true
	}
	// The paused one may have thrown the successor out, too, by fencing again.
	if err := successor.Work(); err != nil && !errors.Is(err, storage.ErrFenced) {
		t.Errorf("request %d: the successor: %v", k, err)
	}
	old.Close()
	successor.Close()
	for tap.Late() > 0 {
		tap.Deliver(0)
	}
	if err := x.Finish(slotsOf(mem)); err != nil {
		t.Errorf("request %d: %v", k, err)
	}
	return true
}

// TestSlotsEndAtEveryRequest ends a session at each of its requests, which is lost, made, or made when the next session has begun
// or ended.
func TestSlotsEndAtEveryRequest(t *testing.T) {
	for _, fate := range fates[1:] {
		t.Run(fate.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for k := 0; endsAtRequest(t, k, fate); k++ {
				}
			})
		})
	}
}

func endsAtRequest(t *testing.T, k int, fate fate) bool {
	t.Helper()
	x, mem := newSlotsWorld(t)
	tap := &slotstest.Tap{Store: mem}
	over := errors.New("the process has ended")
	tap.Before = func(c slotstest.Call) *slotstest.Fault {
		switch {
		case c.N < k:
			return nil
		case c.N > k: // it asks again, and nothing leaves the machine
			return &slotstest.Fault{Err: over}
		}
		f := fate.make()
		f.Err = over
		return f
	}
	old, err := x.Open(slotsOf(tap))
	if err == nil {
		err = old.Work()
	}
	old.Close()
	if tap.Calls() <= k {
		must(t, err)
		return false
	}
	if fate.late && tap.Late() > 0 {
		for _, when := range []int{0, 1, 2} {
			y, after := x.Clone(), mem.Clone()
			late := &slotstest.Tap{Store: after}
			deliver := func() {
				for _, c := range tap.Pending() {
					_ = after.Create(t.Context(), c.Name, c.Data)
				}
			}
			late.Before = func(c slotstest.Call) *slotstest.Fault {
				if when == 0 && c.N == 0 || when == 1 && c.Op == slotstest.OpCreate {
					deliver()
				}
				return nil
			}
			err := y.Finish(slotsOf(late))
			if when == 2 {
				deliver()
				err = errors.Join(err, y.Finish(slotsOf(after)))
			}
			if err != nil && !(when == 1 && errors.Is(err, storage.ErrFenced)) {
				t.Errorf("request %d, late %d: %v", k, when, err)
			}
		}
	}
	if err := x.Finish(slotsOf(mem)); err != nil {
		t.Errorf("request %d: %v", k, err)
	}
	return true
}

// withoutDeadline hides the deadline of a test from rapid, whose clock is another one in a bubble.
type withoutDeadline struct{ *testing.T }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// TestSlotsRandomSchedules runs several workers whose requests interleave, in a store whose answers are lost, whose requests are made
// late, whose listings are old and which is full at times.
func TestSlotsRandomSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(withoutDeadline{t}, func(rt *rapid.T) {
			x, mem := newWorld("memory:"), slotstest.NewMem(rapid.IntRange(200, 5000).Draw(rt, "largest value"))
			x.Published = 30
			s := &slotSchedule{rt: rt, mem: mem, x: x}
			rt.Repeat(map[string]func(*rapid.T){
				"open": func(rt *rapid.T) { s.open() },
				"append": func(rt *rapid.T) {
					s.step(func(h *holder) error { return h.Append(rapid.IntRange(1, 4).Draw(rt, "k")) })
				},
				"ack":        func(*rapid.T) { s.step((*holder).Ack) },
				"checkpoint": func(*rapid.T) { s.step((*holder).Checkpoint) },
				"rotate":     func(*rapid.T) { s.step((*holder).Rotate) },
				"compact":    func(*rapid.T) { s.step((*holder).Compact) },
				"close":      func(*rapid.T) { s.step(func(h *holder) error { return h.Writer.Close() }) },
				"kill":       func(*rapid.T) { s.kill() },
				"deliver":    func(*rapid.T) { s.deliver() },
				"publish":    func(*rapid.T) { x.Published += 3 },
				"keep":       func(*rapid.T) { s.keep() },
			})
			s.check()
			for s.tap != nil && s.tap.Late() > 0 {
				s.deliver()
			}
			s.check()
		})
	})
}

// slotSchedule is the state of one random run.
type slotSchedule struct {
	rt      *rapid.T
	mem     *slotstest.Mem
	x       *world
	tap     *slotstest.Tap // of all workers
	holders []*holder
	depth   int
}

// store lets other workers run in the middle of a worker's requests, and injects faults.
func (s *slotSchedule) store() slots.Store {
	if s.tap == nil {
		s.tap = &slotstest.Tap{Store: s.mem, Before: s.before}
	}
	return s.tap
}

func (s *slotSchedule) before(c slotstest.Call) *slotstest.Fault {
	// Reads first: a writer reads the name of its file while it creates a slot.
	if c.Op == slotstest.OpRead || c.Op == slotstest.OpDelete || s.depth > 1 {
		return nil
	}
	s.depth++
	defer func() { s.depth-- }()
	switch n := rapid.IntRange(0, 40).Draw(s.rt, "in the middle of "+string(c.Op)); {
	case n == 1:
		s.open()
	case n <= 3 && n > 1:
		s.step(func(h *holder) error { return h.Append(1) })
	case n == 4:
		s.step((*holder).Ack)
	case n == 5:
		s.deliver()
	case n == 6 && c.Op == slotstest.OpList:
		mask := rapid.Uint16().Draw(s.rt, "left out")
		return &slotstest.Fault{Leave: func(e slots.Entry) bool { return mask>>(len(e.Name)*7+int(e.Size))%16&1 == 1 }}
	case n == 7 && c.Op == slotstest.OpCreate:
		return &slotstest.Fault{Err: slots.ErrFull}
	case n == 8:
		return &slotstest.Fault{}
	case n == 9:
		return &slotstest.Fault{Applied: true}
	case n <= 12 && n > 9 && c.Op == slotstest.OpCreate:
		return &slotstest.Fault{Late: true}
	case n == 13:
		s.keep()
	}
	return nil
}

// keep removes all old files.
func (s *slotSchedule) keep() {
	if err := s.x.Keep(slotsOf(s.mem), slotsOf(s.mem)); err != nil && s.x.Registered {
		s.rt.Fatalf("remove old files: %v", err)
	}
}

func (s *slotSchedule) deliver() {
	if s.tap != nil && s.tap.Late() > 0 {
		s.tap.Deliver(rapid.IntRange(0, s.tap.Late()-1).Draw(s.rt, "which is made"))
	}
}

func (s *slotSchedule) open() {
	h, err := s.x.Open(slotsOf(s.store()))
	if err == nil {
		s.holders = append(s.holders, h)
	}
	s.expected(err)
}

// step lets one of the workers, perhaps one that was fenced long ago, do something.
func (s *slotSchedule) step(do func(*holder) error) {
	if len(s.holders) == 0 {
		return
	}
	h := s.holders[rapid.IntRange(0, len(s.holders)-1).Draw(s.rt, "who")]
	if h.Busy { // it is in the middle of a call
		return
	}
	h.Busy = true
	defer func() { h.Busy = false }()
	s.expected(do(h))
}

func (s *slotSchedule) kill() {
	if len(s.holders) > 0 {
		i := rapid.IntRange(0, len(s.holders)-1).Draw(s.rt, "who")
		s.holders = slices.Delete(s.holders, i, i+1)
	}
}

// expected fails for errors that no fault of this test explains.
func (s *slotSchedule) expected(err error) {
	var dead *storage.PoisonedError
	ok := err == nil || errors.Is(err, storage.ErrFenced) || errors.Is(err, storage.ErrClosed) || errors.Is(err, storage.ErrNoSpace) || errors.As(err, &dead)
	if !ok {
		s.rt.Fatalf("a worker: %v", err)
	}
}

// check lets one more worker finish everything on what is there.
func (s *slotSchedule) check() {
	y := s.x.Clone()
	if err := y.Finish(slotsOf(s.mem.Clone())); err != nil {
		s.rt.Fatal(err)
	}
}

// TestSlotsOfAFileWithoutANameStay: who made a successor and did not get to give it its name may still be about to. Nobody takes its slots
// away from under it.
func TestSlotsOfAFileWithoutANameStay(t *testing.T) {
	mem := slotstest.NewMem(1 << 20)
	fsys := slotsOf(mem)
	temp, name := storage.TempName("orders", 1, 7), storage.FileName("orders")
	make := func(temp string) {
		f, err := fsys.Open(temp, storage.ModeCreate)
		must(t, err)
		_, _, err = f.Append([]byte(temp))
		must(t, errors.Join(err, f.Datasync(), f.Close()))
	}
	make(temp)
	must(t, fsys.Remove(temp))
	must(t, fsys.Link(temp, name))
	must(t, fsys.Remove(temp)) // its temporary name only
	if b, err := mem.Read(t.Context(), "orders/00000001/0000000000000007/00000000000000000000"); err != nil || string(b) != temp {
		t.Errorf("its slot: %q, %v", b, err)
	}

	// One that came too late is listed, and can be removed.
	late := storage.TempName("orders", 1, 8)
	make(late)
	if err := fsys.Link(late, name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that is taken: %v", err)
	}
	names, err := fsys.List("", "orders")
	if must(t, err); !slices.Equal(names, []string{name, late}) {
		t.Errorf("listed: %q", names)
	}
	must(t, fsys.Remove(late))
	if names := mem.Names(); len(names) != 2 {
		t.Errorf("left: %q", names)
	}
}

// TestSlotsListingsMayBeOld: whatever a listing leaves out, a file that is opened is whole.
func TestSlotsListingsMayBeOld(t *testing.T) {
	x, mem := newSlotsWorld(t)
	names := mem.Names()
	for left := range names {
		for _, all := range []bool{false, true} { // one, or it and all behind it
			tap := &slotstest.Tap{Store: mem, Before: func(c slotstest.Call) *slotstest.Fault {
				if c.Op != slotstest.OpList {
					return nil
				}
				return &slotstest.Fault{Leave: func(e slots.Entry) bool { return e.Name == names[left] || all && e.Name > names[left] }}
			}}
			if err := x.Check(slotsOf(tap)); err != nil {
				t.Errorf("without %s: %v", names[left], err)
			}
			tap.Store = mem.Clone()
			if err := x.Clone().Finish(slotsOf(tap)); err != nil {
				t.Errorf("a worker, without %s: %v", names[left], err)
			}
		}
	}
}

// TestSlotsRemovedByHand: a slot that somebody removed is damage that readers and writers name, and no index that was acknowledged is used
// again.
func TestSlotsRemovedByHand(t *testing.T) {
	x, mem := newWorld("memory:"), slotstest.NewMem(5000) // the header takes one slot, and so does each batch
	x.Published = 6
	h, err := x.Open(slotsOf(mem))
	must(t, err)
	must(t, steps(h.Begin, h.Writer.Close))
	names := mem.Names()
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			broken := mem.Clone()
			must(t, broken.Delete(t.Context(), name))
			fsys := slotsOf(broken)
			first := strings.HasSuffix(name, "/00000000000000000000")
			if first {
				if _, err := x.Clone().Open(fsys); !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "restore it from a backup") {
					t.Errorf("without the first slot a worker is told: %v", err)
				}
			}
			last := i >= len(names)-2 // the generation, and the last slot of the file; a worker reads what is behind the last checkpoint
			if _, err := x.Clone().Open(fsys); (err != nil || i == 0 || last) && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) {
				t.Errorf("a worker: %v", err)
			}
			r, err := storage.Verify(t.Context(), x.Path(), storage.VerifyOptions{FS: fsys})
			if err == nil {
				err = r.Err()
			}
			if !last && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) {
				t.Errorf("verify: %v", err)
			}
			l := storage.ReadLink(fsys, x.Path())
			if missing := errors.As(l.Missing, new(*storage.HoleError)); !strings.Contains(name, "/generations/") && (missing != (!first && !last) || (l.Err != nil) != first) {
				t.Errorf("a look at the header and the end: %v, missing: %v", l.Err, l.Missing)
			}
		})
	}
}

// TestSlotFarBehindTheEnd: who puts a slot where no file ends sends no writer behind it, and no reader through the emptiness before it. Somebody is told.
func TestSlotFarBehindTheEnd(t *testing.T) {
	x, mem := newSlotsWorld(t)
	names := mem.Names()
	folder := names[0][:strings.LastIndexByte(names[0], '/')]
	var far []string
	for _, off := range []int64{2 << 30, 1 << 50, math.MaxInt64 - 3} {
		far = append(far, fmt.Sprintf("%s/%020d", folder, off))
		mem.Set(far[len(far)-1], []byte("foreign"))
	}
	fsys := slotsOf(mem)
	f, err := fsys.Open(x.Path(), storage.ModeRead)
	must(t, err)
	info, err := f.Stat()
	if must(t, errors.Join(err, f.Close())); info.Size > 1<<20 {
		t.Fatalf("the file has %d bytes", info.Size) // readers would go through them
	}
	h, err := x.Open(fsys)
	must(t, err)
	must(t, errors.Join(h.Append(2), h.Ack()))
	next := h.Writer.NextIndex()
	must(t, h.Writer.Close())
	if l := storage.ReadLink(fsys, x.Path()); l.Err != nil || !errors.As(l.Missing, new(*storage.HoleError)) || !strings.Contains(l.Missing.Error(), "2147483648") {
		t.Errorf("%v, missing: %v", l.Err, l.Missing)
	}
	r, err := storage.Verify(t.Context(), x.Path(), storage.VerifyOptions{FS: fsys})
	if err != nil || r.CorruptCount != 1 || !errors.As(r.Err(), new(*storage.HoleError)) || r.NextIndex != next {
		t.Errorf("verify: %v, %v, up to %d, want %d", err, r.Err(), r.NextIndex, next)
	}
	for _, name := range far {
		must(t, mem.Delete(t.Context(), name))
	}
	must(t, x.Finish(fsys))
}

// TestSlotLargerThanOurs: what somebody put where the next slot will be is not read if it is larger than all that writers create: any number of such
// values could be as large as a store takes. The file goes on behind it.
func TestSlotLargerThanOurs(t *testing.T) {
	x, mem := newWorld("memory:"), slotstest.NewMem(64<<20)
	x.Published = 6
	h, err := x.Open(slotsOf(mem))
	must(t, err)
	must(t, steps(h.Begin, h.Writer.Close))
	names := mem.Names()
	last := names[len(names)-2] // behind it is the name of the generation
	end, err := strconv.ParseInt(last[strings.LastIndexByte(last, '/')+1:], 10, 64)
	must(t, err)
	b, err := mem.Read(t.Context(), last)
	must(t, err)
	large := fmt.Sprintf("%s/%020d", last[:strings.LastIndexByte(last, '/')], end+int64(len(b)))
	mem.Set(large, make([]byte, 8<<20+1))
	tap := &slotstest.Tap{Store: mem, Before: func(c slotstest.Call) *slotstest.Fault {
		if c.Op == slotstest.OpRead && c.Name == large {
			t.Errorf("%s was read", c.Name)
		}
		return nil
	}}
	must(t, x.Finish(slotsOf(tap)))
	must(t, x.Check(slotsOf(tap)))
}

// TestSlotsNameIsReadWhileASlotIsCreated: a commit takes one round trip, and acknowledges nothing in a file whose name somebody removed
// or gave to another one.
func TestSlotsNameIsReadWhileASlotIsCreated(t *testing.T) {
	for says, change := range map[string]func(m *slotstest.Mem, name string){
		"":                    func(*slotstest.Mem, string) {},
		"was removed":         func(m *slotstest.Mem, name string) { _ = m.Delete(t.Context(), name) },
		"replaced by another": func(m *slotstest.Mem, name string) { m.Set(name, []byte("0123456789abcdef")) },
	} {
		synctest.Test(t, func(t *testing.T) {
			x, mem := newWorld("memory:"), slotstest.NewMem(1<<20)
			x.Published = 6
			tap := &slotstest.Tap{Store: mem}
			h, err := x.Open(slotsOf(tap))
			must(t, errors.Join(err, h.Append(2), h.Ack(), h.Append(2)))
			change(mem, "orders/generations/00000001")
			const trip = time.Second
			tap.Before = func(slotstest.Call) *slotstest.Fault {
				time.Sleep(trip)
				return nil
			}
			began, calls, acked := time.Now(), tap.Calls(), len(x.Acked)
			err = h.Ack()
			if took, n := time.Since(began), tap.Calls()-calls; took != trip || n != 2 {
				t.Errorf("a commit takes %v and %d requests, want %v and 2", took, n, trip)
			}
			if says == "" {
				must(t, err)
				return
			}
			checkError(t, err, new(*storage.ReplacedError), storage.ErrIntegrity, says)
			if len(x.Acked) != acked {
				t.Errorf("%d were acknowledged", len(x.Acked)-acked)
			}
		})
	}
}

// TestForeignFirstFile: whoever was about to make the first file sleeps while another makes it, and makes its own when the store was set back behind both. That
// file is refused, and so is giving up what was lost while it is there. Its name is removed, as the error says, and the type goes on.
func TestForeignFirstFile(t *testing.T) {
	x, _ := newSlotsWorld(t)
	back := slotstest.NewMem(700)
	stranger, err := storage.Open(context.Background(), x.Dir, "orders", 1, storage.Options{FS: slotsOf(back)}) // it has asked the registry, before
	must(t, err)
	must(t, stranger.Close())
	_, err = x.Open(slotsOf(back))
	checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, "if the registered file is lost for good, move this one away")
	giveUp := func() (*storage.Writer, error) {
		x.Epoch++
		return storage.Open(context.Background(), x.Dir, "orders", x.Epoch, storage.Options{FS: slotsOf(back), Registry: x, Salvage: true, AcceptLoss: true})
	}
	_, err = giveUp()
	checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, "move this one away")

	must(t, back.Delete(context.Background(), "orders/generations/00000001"))
	w, err := giveUp()
	must(t, err)
	if g, ok := w.GivenUp(); !ok || g.Next != 6 || w.NextIndex() != 6 {
		t.Errorf("given up: %+v, %v; the next index is %d", g, ok, w.NextIndex())
	}
	mustAppend(t, w, messages(6, 1))
	_, err = w.Sync()
	must(t, errors.Join(err, w.Close()))
	c, err := storage.ReadChain(slotsOf(back), x.Dir, "orders")
	must(t, err)
	for _, wrong := range c.Check() {
		t.Error(wrong)
	}
}
