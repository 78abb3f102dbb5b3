package storage_test

import (
	"errors"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// TestRefusedOpensLeaveNoFence: a worker that is refused, and restarted again and again, adds nothing to the file, or the fence of
// its first start at most.
func TestRefusedOpensLeaveNoFence(t *testing.T) {
	const starts = 5
	t.Run("an old copy", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		old := mem.Clone()
		must(t, x.Finish(mem))
		refusedEachTime(t, x, old, func() int { return len(old.ReadFile(x.Path())) }, starts, 0, storage.ErrIntegrity)
	})
	t.Run("an old copy with as many records", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		x.Published = 6
		old := mem.Clone()
		must(t, x.Finish(mem))
		refusedEachTime(t, x, old, func() int { return len(old.ReadFile(x.Path())) }, starts, 0, storage.ErrIntegrity)
	})
	t.Run("an old copy in a store", func(t *testing.T) {
		x, mem := newSlotsWorld(t)
		old := mem.Clone()
		must(t, x.Finish(slotsOf(mem)))
		refusedEachTime(t, x, slotsOf(old), func() int { return len(old.Names()) }, starts, 0, storage.ErrIntegrity)
	})
	t.Run("a database that was set back", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		for range 8 {
			h, err := x.Open(mem)
			must(t, err)
			must(t, h.Writer.Close())
		}
		x.Epoch, x.Entry.Epoch = 1, 1
		refusedEachTime(t, x, mem, func() int { return len(mem.ReadFile(x.Path())) }, starts, 0, storage.ErrFenced)
	})
	t.Run("damage", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		// Behind the last checkpoint, before the last batch. The end of the file is in order, so the first start cannot tell.
		h, err := x.Open(mem)
		must(t, err)
		from := len(mem.ReadFile(x.Path()))
		must(t, errors.Join(h.Append(1), h.Ack(), h.Append(1), h.Ack(), h.Append(1), h.Ack(), h.Writer.Close()))
		data := mem.ReadFile(x.Path())
		data[from+10] ^= 1
		mem.WriteFile(x.Path(), data)
		refusedEachTime(t, x, mem, func() int { return len(mem.ReadFile(x.Path())) }, starts, 1, storage.ErrIntegrity)
	})
}

// refusedEachTime opens the file again and again, with the next epochs, which leaves the given number of fences.
func refusedEachTime(t *testing.T, x *world, fsys storage.FS, size func() int, starts, fences int, category error) {
	t.Helper()
	before := size()
	for i := range starts {
		h, err := x.Open(fsys)
		if !errors.Is(err, category) {
			t.Fatalf("start %d: %v", i+1, err)
		}
		if h.Writer != nil {
			t.Errorf("start %d: a writer and an error", i+1)
		}
		if i < fences {
			if size() == before {
				t.Errorf("start %d has left no fence", i+1)
			}
			before = size()
		}
		if size() != before {
			t.Errorf("start %d has left something in the file: %d, and %d before", i+1, size(), before)
		}
	}
}

// TestFenceOfTheDead: who died behind his fence is no reason to refuse the next one.
func TestFenceOfTheDead(t *testing.T) {
	dies := errors.New("the process has ended")
	t.Run("in a file", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		for range 3 {
			fenced := false
			_, err := x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
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

// TestCheckedAgainBehindTheFence: what is written between the look and the fence counts.
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
		t.Errorf("a lower epoch behind a higher one: %v", err)
	}
	must(t, x.Finish(slotsOf(mem)))
}
