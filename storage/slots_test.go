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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// slotsOf returns the file system of a store.
func slotsOf(s slots.Store) storage.FS { return slots.New(context.Background(), s) }

// newSlotsWorld returns a world on a new store in memory, with a file that one session has written to. More messages are published.
func newSlotsWorld(t testing.TB) (*world, *slotstest.Mem) {
	t.Helper()
	x, mem := newSlots(t, 700) // so that most batches take more than one slot
	must(t, x.Check(slotsOf(mem)))
	x.Published = 40
	return x, mem
}

// newSlots returns a world on a new store in memory for values of this size at most, with a file that one session has written everything to.
func newSlots(t testing.TB, most int) (*world, *slotstest.Mem) {
	t.Helper()
	x, mem := newWorld("memory:"), slotstest.NewMem(most)
	firstSession(t, x, slotsOf(mem))
	return x, mem
}

// TestSlotsOfAFileWithoutANameStay: a writer that created a successor but has not named it may still do so. Its slots are not removed
// meanwhile.
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

	// A file that was too late is listed, and can be removed.
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

// TestSlotsListingsMayBeOld: whatever a listing omits, an opened file is whole.
func TestSlotsListingsMayBeOld(t *testing.T) {
	x, mem := newSlotsWorld(t)
	names := mem.Names()
	for left := range names {
		for _, all := range []bool{false, true} { // one, or it and all after it
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

// TestSlotsRemovedByHand: readers and writers report a slot removed by hand as damage, and no acknowledged index is reused.
func TestSlotsRemovedByHand(t *testing.T) {
	x, mem := newSlots(t, 5000) // the header takes one slot, and so does each batch
	names := mem.Names()
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			broken := mem.Clone()
			must(t, broken.Delete(t.Context(), name))
			fsys := slotsOf(broken)
			first := strings.HasSuffix(name, "/00000000000000000000")
			if first {
				if _, err := x.Clone().Open(fsys); !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "restore it from a backup") {
					t.Errorf("without the first slot a worker gets: %v", err)
				}
			}
			last := i >= len(names)-2 // the generation, and the last slot of the file; a worker reads the slots after the last checkpoint
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
			if !last && (!strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "disk")) {
				t.Errorf("verify does not name the slot: %v", err)
			}
			l := storage.ReadLink(fsys, x.Path())
			if l.Missing != nil && !strings.Contains(l.Missing.Error(), name) {
				t.Errorf("ReadLink does not name the slot: %v", l.Missing)
			}
			if missing := errors.As(l.Missing, new(*storage.HoleError)); !strings.Contains(name, "/generations/") && (missing != (!first && !last) || (l.Err != nil) != first) {
				t.Errorf("ReadLink: %v, missing: %v", l.Err, l.Missing)
			}
		})
	}
}

// TestSlotsChangedByHand: readers name the slots with damaged bytes, so that an operator can restore them. There may be no disk to check.
func TestSlotsChangedByHand(t *testing.T) {
	x, mem := newSlots(t, 5000) // the header takes one slot, and so does each batch
	names := mem.Names()
	for _, name := range names[:len(names)-2] { // not the last slot, whose record is torn then, nor the name of the generation
		t.Run(name, func(t *testing.T) {
			broken := mem.Clone()
			b, err := broken.Read(t.Context(), name)
			must(t, err)
			b = slices.Clone(b)
			b[len(b)-1] ^= 1
			broken.Set(name, b)
			r, err := storage.Verify(t.Context(), x.Path(), storage.VerifyOptions{FS: slotsOf(broken)})
			if err == nil {
				err = r.Err()
			}
			if !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "disk") {
				t.Errorf("verify: %v", err)
			}
		})
	}
}

// TestSlotFarBehindTheEnd: a slot far after the end of the file is reported. No writer appends after it, and no reader scans the empty range
// before it.
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
		t.Fatalf("the file has %d bytes", info.Size) // readers would scan them all
	}
	h, err := x.Open(fsys)
	must(t, err)
	must(t, errors.Join(h.Append(2), h.Ack()))
	next := h.Writer.NextIndex()
	must(t, h.Writer.Close())
	if l := storage.ReadLink(fsys, x.Path()); l.Err != nil || !errors.As(l.Missing, new(*storage.HoleError)) || !strings.Contains(l.Missing.Error(), far[0]) {
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

// TestSlotLargerThanOurs: a foreign value at the name of the next slot is not read if it is larger than any slot that a writer creates: any
// number of such values could be as large as the store allows. The file continues after it.
func TestSlotLargerThanOurs(t *testing.T) {
	x, mem := newSlots(t, 64<<20)
	names := mem.Names()
	last := names[len(names)-2] // after it comes the name of the generation
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

// TestSlotsNameIsReadWhileASlotIsCreated: a commit takes one round trip, and acknowledges nothing in a file whose name was removed or
// given to another file.
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

// TestForeignFirstFile: a writer that is about to create the first file is paused while another writer creates it. It creates its own after the
// store was rolled back to before both. That file is refused, and so is giving up the lost one while it is there. After its name is removed, as
// the error says, the type continues.
func TestForeignFirstFile(t *testing.T) {
	x, _ := newSlotsWorld(t)
	back := slotstest.NewMem(700)
	stranger, err := storage.Open(context.Background(), x.Dir, "orders", 1, storage.Options{FS: slotsOf(back)}) // it queried the registry earlier
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

// headless does not store the content of large values, which the test never reads.
type headless struct{ *slotstest.Mem }

func (s headless) Create(ctx context.Context, name string, data []byte) error {
	if len(data) > 1<<20 {
		data = data[:1]
	}
	return s.Mem.Create(ctx, name, data)
}

// TestAFileInAStoreIsRotated: a file with many slots or bytes is due for rotation, because a store may read all of a file to list its slots.
func TestAFileInAStoreIsRotated(t *testing.T) {
	for name, test := range map[string]struct {
		payload int
		most    int64 // bytes
		batches int
	}{
		"of many slots": {1, 1 << 30, 10_000},
		"of many bytes": {storage.MaxPayload, 1<<30 + storage.MaxPayload + 1<<20, 65},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := storage.Open(t.Context(), "", "orders", 1, storage.Options{FS: slotsOf(headless{slotstest.NewMem(8 << 20)})})
			must(t, err)
			record := storage.Record{ID: make([]byte, 16), Payload: make([]byte, test.payload)}
			batches := 0
			for ; !w.RotateDue() && batches < test.batches; batches++ {
				must(t, w.Append([]storage.Record{record}))
				_, err := w.Sync()
				must(t, err)
			}
			if !w.RotateDue() || w.Size() > test.most || batches < test.batches*9/10 {
				t.Errorf("a rotation is due after %d batches and %d bytes: %v", batches, w.Size(), w.RotateDue())
			}
		})
	}
}

// TestAppendBesideTheSyncThatFindsASuccessor: while a Sync finds the slot of another writer and searches for the end of the file, a concurrent
// Append reports nothing but the same error.
func TestAppendBesideTheSyncThatFindsASuccessor(t *testing.T) {
	for n := range int64(8) { // the request beside which it appends
		mem := slotstest.NewMem(700)
		var w *storage.Writer
		var failed atomic.Bool
		var seen atomic.Int64
		var beside error
		tap := &slotstest.Tap{Store: mem}
		w = mustOpen(t, "memory:", 1, storage.Options{FS: slotsOf(tap)})
		mustAppend(t, w, messages(0, 30))
		_, err := w.Sync()
		must(t, err)
		must(t, mustOpen(t, "memory:", 2, storage.Options{FS: slotsOf(mem)}).Close())

		tap.After = func(c slotstest.Call) {
			if c.Op == slotstest.OpCreate {
				failed.Store(true)
			}
		}
		tap.Before = func(slotstest.Call) *slotstest.Fault {
			if failed.Load() && seen.Add(1) == n+1 {
				beside = w.Append(messages(40, 1))
			}
			return nil
		}
		mustAppend(t, w, messages(30, 10))
		_, err = w.Sync()
		isFenced := func(err error) bool {
			e, ok := errors.AsType[*storage.FencedError](err)
			return ok && strings.Contains(e.Error(), "another writer took over")
		}
		if !isFenced(err) || beside != nil && !isFenced(beside) {
			t.Errorf("beside request %d: Sync says %v, Append %v", n, err, beside)
		}
		if err := w.Append(messages(41, 1)); !isFenced(err) {
			t.Errorf("the next Append says %v", err)
		}
		if n == 0 && seen.Load() < 3 {
			t.Errorf("only %d requests", seen.Load())
		}
		if err := w.Close(); !isFenced(err) {
			t.Errorf("Close says %v", err)
		}
	}
}

// TestGenerationWithoutItsName: if the name of an old generation was removed by hand and it has two folders, the other generations still work.
func TestGenerationWithoutItsName(t *testing.T) {
	mem := slotstest.NewMem(1 << 20)
	fsys := slotsOf(mem)
	w := mustOpen(t, "memory:", 1, storage.Options{FS: fsys})
	mustAppend(t, w, messages(0, 3))
	w, err := w.Rotate(t.Context(), nil)
	must(t, err)
	must(t, w.Close())
	must(t, mem.Create(t.Context(), "orders/00000001/0000000000000007/00000000000000000000", []byte("unfinished")))
	must(t, mem.Delete(t.Context(), "orders/generations/00000001"))
	names, err := fsys.List("memory:", "orders")
	if err != nil || !slices.Equal(names, []string{"orders@0002.fpl"}) {
		t.Errorf("listed: %q, %v", names, err)
	}
	w, err = storage.Open(t.Context(), "memory:", "orders", 2, storage.Options{FS: fsys})
	must(t, err)
	if w.Generation() != 2 || w.NextIndex() != 3 {
		t.Errorf("opened generation %d, next index %d", w.Generation(), w.NextIndex())
	}
	must(t, w.Close())
}
