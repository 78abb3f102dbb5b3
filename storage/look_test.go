package storage_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// TestRefusedOpensLeaveNoFence: a worker that is refused and restarted repeatedly adds at most the fence of its first start to the
// file.
func TestRefusedOpensLeaveNoFence(t *testing.T) {
	t.Run("an old copy", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		old := mem.Clone()
		must(t, x.Finish(mem))
		refusedEachTime(t, x, old, func() int { return len(old.ReadFile(x.Path())) }, 0, storage.ErrIntegrity)
	})
	t.Run("an old copy with as many records", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		x.Published = 6
		old := mem.Clone()
		must(t, x.Finish(mem))
		refusedEachTime(t, x, old, func() int { return len(old.ReadFile(x.Path())) }, 0, storage.ErrIntegrity)
	})
	t.Run("an old copy in a store", func(t *testing.T) {
		x, mem := newSlotsWorld(t)
		old := mem.Clone()
		must(t, x.Finish(slotsOf(mem)))
		refusedEachTime(t, x, slotsOf(old), func() int { return len(old.Names()) }, 0, storage.ErrIntegrity)
	})
	t.Run("a restored database", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		for range 8 {
			h, err := x.Open(mem)
			must(t, err)
			must(t, h.Writer.Close())
		}
		x.Epoch, x.Entry.Epoch = 1, 1
		refusedEachTime(t, x, mem, func() int { return len(mem.ReadFile(x.Path())) }, 0, storage.ErrFenced)
	})
	// Content that the caller of Open rejects although its checksums are good.
	for what, spoil := range map[string]func(*holder) error{
		"a state": func(h *holder) error { return h.Writer.Checkpoint([]byte("of a later version")) },
		"a state in the middle of the interval": func(h *holder) error {
			return errors.Join(h.Writer.Checkpoint([]byte("of a later version")), h.Append(1), h.Ack())
		},
		"a record": func(h *holder) error { return h.Writer.Append([]storage.Record{{ID: []byte("of a later version")}}) },
	} {
		for where, start := range map[string]func() (*world, func() storage.FS, func() int){
			"": func() (*world, func() storage.FS, func() int) {
				x, mem := newMemWorld(t, 4096)
				return x, func() storage.FS { return mem }, func() int { return len(mem.ReadFile(x.Path())) }
			},
			" in a store": func() (*world, func() storage.FS, func() int) {
				x, mem := newSlotsWorld(t)
				return x, func() storage.FS { return slotsOf(mem) }, func() int { return len(mem.Names()) }
			},
		} {
			t.Run(what+" that cannot be taken in"+where, func(t *testing.T) {
				x, fsys, size := start()
				h, err := x.Open(fsys())
				must(t, err)
				_, err = h.Writer.Sync()
				must(t, errors.Join(err, h.Append(1), spoil(h), h.Writer.Close()))
				refusedEachTime(t, x, fsys(), size, 1, oracle.ErrState)
			})
		}
	}
	t.Run("damage", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		// After the last checkpoint, before the last batch. The end of the file is healthy, so the first start cannot detect it.
		h, err := x.Open(mem)
		must(t, err)
		from := len(mem.ReadFile(x.Path()))
		must(t, errors.Join(h.Append(1), h.Ack(), h.Append(1), h.Ack(), h.Append(1), h.Ack(), h.Writer.Close()))
		data := mem.ReadFile(x.Path())
		data[from+10] ^= 1
		mem.WriteFile(x.Path(), data)
		refusedEachTime(t, x, mem, func() int { return len(mem.ReadFile(x.Path())) }, 1, storage.ErrIntegrity)
	})
}

// refusedEachTime opens the file repeatedly, with increasing epochs, and checks that each start is refused and only the first few, as many as
// fences says, leave a fence.
func refusedEachTime(t *testing.T, x *world, fsys storage.FS, size func() int, fences int, category error) {
	t.Helper()
	before := size()
	for i := range 5 {
		h, err := x.Open(fsys)
		if !errors.Is(err, category) {
			t.Fatalf("start %d: %v", i+1, err)
		}
		if h.Writer != nil {
			t.Errorf("start %d: a writer and an error", i+1)
		}
		if i < fences {
			if size() == before {
				t.Errorf("start %d left no fence", i+1)
			}
			before = size()
		}
		if size() != before {
			t.Errorf("start %d changed the file: size %d, before %d", i+1, size(), before)
		}
	}
}

// TestRehearsalIsNotUsed: the state rehearsed before the fence is not used. Open rehearses only if an earlier Open did not complete.
func TestRehearsalIsNotUsed(t *testing.T) {
	x, mem := newMemWorld(t, 4096)
	h, err := x.Open(mem)
	must(t, err)
	must(t, errors.Join(h.Append(2), h.Checkpoint(), h.Append(1), h.Ack(), h.Writer.Close()))
	var told []string
	open := func(fsys storage.FS) error {
		x.Epoch++
		of := func(whose string) (func([]byte) error, func(storage.Record) error) {
			return func([]byte) error { told = append(told, whose+" state"); return nil }, func(storage.Record) error { told = append(told, whose+" record"); return nil }
		}
		o := storage.Options{FS: fsys, Registry: x, Rehearse: func() (func([]byte) error, func(storage.Record) error) { return of("rehearsed") }}
		o.Restore, o.Replay = of("real")
		w, err := storage.Open(t.Context(), x.Dir, "orders", x.Epoch, o)
		return errors.Join(err, w.Close())
	}
	check := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(told, want) {
			t.Errorf("%s: %q, want %q", what, told, want)
		}
		told = nil
	}
	must(t, open(mem))
	check("a file in order", "real state", "real record")
	deadFence(t, x, mem)
	must(t, open(mem))
	check("after a dead writer's fence", "rehearsed state", "rehearsed record", "real state", "real record")
}

// TestFenceOfTheDead: a writer that died after its fence is no reason to refuse the next one.
func TestFenceOfTheDead(t *testing.T) {
	t.Run("in a file", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		for range 3 {
			deadFence(t, x, mem)
		}
		must(t, x.Finish(mem))
	})
	t.Run("in a store", func(t *testing.T) {
		x, mem := newSlotsWorld(t)
		for range 3 {
			h, err := x.Open(slotsOf(mem)) // its open record is not created yet
			must(t, err)
			_ = h
		}
		must(t, x.Finish(slotsOf(mem)))
	})
}

// TestLookBesideALoss: during a worker's look before its fence, data that it has read from the page cache is lost in a failed write,
// and another worker takes over without that data. That is not damage, whichever call of the looking worker it interrupts.
func TestLookBesideALoss(t *testing.T) {
	for what, undurable := range map[string]func(*holder) error{
		"records":      func(h *holder) error { return h.Append(2) },
		"a checkpoint": func(h *holder) error { return h.Writer.Checkpoint(h.State()) },
	} {
		t.Run(what, func(t *testing.T) {
			looked, ended := 0, false
			for n := 0; !ended; n++ {
				x, mem := newMemWorld(t, 512)
				h, err := x.Open(mem)
				must(t, err)
				must(t, errors.Join(h.Append(2), h.Ack(), undurable(h)))
				deadFence(t, x, mem)
				var other *holder
				calls := 0
				x.Epoch++
				mine := x.Epoch
				_, err = x.OpenEpoch(&storagetest.Tap{FS: mem, Before: func(storagetest.Call) *storagetest.Fault {
					if calls++; calls-1 == n {
						mem.FailWriteback(x.Path(), func(int64) bool { return true })
						_, err := x.Open(mem)
						if !errors.Is(err, syscall.EIO) { // the first sync after the failed write gets it
							t.Fatal(err)
						}
						other, err = x.Open(mem)
						must(t, errors.Join(err, other.Append(1), other.Ack())) // under the index of a lost one
					}
					return nil
				}}, mine)
				ended = other == nil
				switch {
				case ended && err != nil:
					t.Errorf("undisturbed: %v", err)
				case !ended && err != nil && !errors.Is(err, storage.ErrFenced) && !errors.Is(err, syscall.EIO):
					t.Errorf("in the middle of call %d: %v", n, err)
				case !ended:
					looked++
				}
				must(t, x.Finish(mem))
			}
			if looked < 20 {
				t.Errorf("only %d calls were disturbed", looked)
			}
		})
	}
}

// deadFence opens the file with a writer that dies after its fence.
func deadFence(t *testing.T, x *world, fsys storage.FS) {
	t.Helper()
	dies := errors.New("the process has ended")
	fenced := false
	_, err := x.Open(&storagetest.Tap{FS: fsys, Before: func(c storagetest.Call) *storagetest.Fault {
		if fenced {
			return &storagetest.Fault{Err: dies}
		}
		fenced = c.Op == storagetest.OpAppend
		return nil
	}})
	if !errors.Is(err, dies) {
		t.Fatal(err)
	}
}

// TestCheckedAgainBehindTheFence: records written between the look and the fence count.
func TestCheckedAgainBehindTheFence(t *testing.T) {
	x, mem := newSlotsWorld(t)
	x.Epoch++
	mine := x.Epoch
	tap := &slotstest.Tap{Store: mem}
	var other *holder
	tap.Before = func(c slotstest.Call) *slotstest.Fault {
		if c.Op == slotstest.OpCreate && other == nil {
			var err error
			other, err = x.Open(slotsOf(mem))
			must(t, errors.Join(err, other.Append(2), other.Ack()))
		}
		return nil
	}
	if _, err := x.OpenEpoch(slotsOf(tap), mine); !errors.Is(err, storage.ErrFenced) {
		t.Errorf("a lower epoch after a higher one: %v", err)
	}
	must(t, x.Finish(slotsOf(mem)))
}
