package storage_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// keepers are the file systems on which the tests remove old files.
var keepers = map[string]func(testing.TB) (*world, storage.FS){
	"disk":  func(t testing.TB) (*world, storage.FS) { return newMemWorld(t, 512) },
	"slots": func(t testing.TB) (*world, storage.FS) { x, mem := newSlotsWorld(t); return x, slotsOf(mem) },
}

// eachKeeper runs a test on each of them.
func eachKeeper(t *testing.T, test func(*testing.T, *world, storage.FS)) {
	for _, name := range slices.Sorted(maps.Keys(keepers)) {
		t.Run(name, func(t *testing.T) {
			x, fsys := keepers[name](t)
			test(t, x, fsys)
		})
	}
}

// fourFiles creates four files: 1 (messages 0 to 5), 2 (6 and 7), 3 (also 8), which replaces 2, and 4 (9), the newest.
func fourFiles(t *testing.T, x *world, fsys storage.FS) {
	t.Helper()
	h, err := x.Open(fsys)
	must(t, err)
	must(t, steps(h.Rotate, appends(h, 2), h.Ack, h.Compact, appends(h, 1), h.Ack, h.Rotate, appends(h, 1), h.Ack, func() error { return h.Writer.Close() }))
}

func generations(c storage.Chain) (g []uint64) {
	for _, l := range c {
		g = append(g, l.Generation)
	}
	return g
}

func old(r *storage.KeepReport) (g []uint64) {
	for _, f := range r.Old {
		g = append(g, f.Generation)
	}
	return g
}

// TestKeep: files are removed by age, by size, and because they were replaced.
func TestKeep(t *testing.T) {
	sizes := func(x *world, fsys storage.FS) (s []int64) {
		c, _ := storage.ReadChain(fsys, x.Dir, "orders")
		for _, l := range c {
			s = append(s, l.Size)
		}
		return s
	}
	for name, c := range map[string]struct {
		o    func(*storage.KeepOptions, []int64)
		want []uint64
	}{
		"nothing is asked for": {func(o *storage.KeepOptions, _ []int64) {}, nil},
		"all are young":        {func(o *storage.KeepOptions, _ []int64) { o.Age = time.Hour }, nil},
		"all are old": {func(o *storage.KeepOptions, _ []int64) {
			o.Age, o.Now = time.Hour, o.Now.Add(2*time.Hour)
		}, []uint64{1, 2, 3}},
		"all are old by this machine's clock": {func(o *storage.KeepOptions, _ []int64) {
			o.Age, o.Now = time.Nanosecond, time.Time{}
		}, []uint64{1, 2, 3}},
		"there is room":         {func(o *storage.KeepOptions, s []int64) { o.Size = s[0] + s[1] + s[2] + s[3] }, nil},
		"a byte too many":       {func(o *storage.KeepOptions, s []int64) { o.Size = s[0] + s[1] + s[2] + s[3] - 1 }, []uint64{1}},
		"room for two":          {func(o *storage.KeepOptions, s []int64) { o.Size = s[2] + s[3] }, []uint64{1, 2}},
		"no room for any":       {func(o *storage.KeepOptions, s []int64) { o.Size = 1 }, []uint64{1, 2, 3}},
		"replaced":              {func(o *storage.KeepOptions, s []int64) { o.Replaced = true }, []uint64{2}},
		"replaced, or too many": {func(o *storage.KeepOptions, s []int64) { o.Replaced, o.Size = true, s[0]+s[1]+s[2]+s[3]-1 }, []uint64{1, 2}},
		"the registry is behind": {func(o *storage.KeepOptions, s []int64) {
			before, _ := storage.ReadChain(o.FS, o.Registered.Place, "orders")
			o.Size, o.Registered = 1, storage.Entry{FileID: before[2].FileID, Generation: 3}
		}, []uint64{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			eachKeeper(t, func(t *testing.T, x *world, fsys storage.FS) {
				fourFiles(t, x, fsys)
				o := storage.KeepOptions{FS: fsys, Registered: x.Entry, Now: time.Now(), DryRun: true}
				o.Registered.Place = x.Dir
				c.o(&o, sizes(x, fsys))
				at, err := x.Contents(fsys)
				must(t, err)
				for _, o.DryRun = range []bool{true, false} {
					r, err := storage.Keep(t.Context(), x.Dir, "orders", o)
					if err != nil || !slices.Equal(old(r), c.want) || len(r.Kept)+len(r.Old) != 4 {
						t.Fatalf("dry run %v: %v of %v is removed, want %v: %v", o.DryRun, old(r), generations(r.Kept), c.want, err)
					}
					left, err := storage.ReadChain(fsys, x.Dir, "orders")
					if must(t, err); o.DryRun && len(left) != 4 || !o.DryRun && !slices.Equal(generations(left), generations(r.Kept)) {
						t.Fatalf("dry run %v: left is %v", o.DryRun, generations(left))
					}
					if wrong := left.Check(); len(wrong) > 0 {
						t.Fatal(wrong[0])
					}
					for _, f := range r.Old {
						if _, err := fsys.Open(f.Path, storage.ModeRead); (err == nil) != o.DryRun || !o.DryRun && !errors.Is(err, fs.ErrNotExist) {
							t.Errorf("dry run %v: %s: %v", o.DryRun, f.Path, err)
						}
					}
				}
				left, _ := storage.ReadChain(fsys, x.Dir, "orders")
				maps.DeleteFunc(at, func(_ int, i uint64) bool { return i >= left[0].First })
				x.Gone = at
				if err := x.Finish(fsys); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestKeepRefuses: nothing is removed unless all the other files are certain to be present.
func TestKeepRefuses(t *testing.T) {
	flip := func(fsys storage.FS, path string) {
		mem := fsys.(*storagetest.Mem)
		b := mem.ReadFile(path)
		b[len(b)*3/4] ^= 1
		mem.WriteFile(path, b)
	}
	file := func(x *world, g uint64) string { return generationIn(x, g) }
	for name, c := range map[string]struct {
		spoil func(x *world, fsys storage.FS, o *storage.KeepOptions)
		want  error
	}{
		"a file is missing":       {func(x *world, fsys storage.FS, o *storage.KeepOptions) { fsys.Remove(file(x, 3)) }, storage.ErrIntegrity},
		"the newest is missing":   {func(x *world, fsys storage.FS, o *storage.KeepOptions) { fsys.Remove(file(x, 4)) }, storage.ErrIntegrity},
		"another is registered":   {func(x *world, fsys storage.FS, o *storage.KeepOptions) { o.Registered.FileID[0] ^= 1 }, storage.ErrIntegrity},
		"the newest is too short": {func(x *world, fsys storage.FS, o *storage.KeepOptions) { o.Registered.DurableIndex++ }, storage.ErrIntegrity},
		"what replaces it is damaged": {func(x *world, fsys storage.FS, o *storage.KeepOptions) {
			o.Size, o.Replaced = 0, true
			flip(fsys, file(x, 3))
		}, storage.ErrIntegrity},
		"there are no files": {func(x *world, fsys storage.FS, o *storage.KeepOptions) { x.Dir += "/other"; fsys.Mkdir(x.Dir) }, storage.ErrIntegrity},
	} {
		t.Run(name, func(t *testing.T) {
			x, mem := newMemWorld(t, 512)
			fourFiles(t, x, mem)
			o := storage.KeepOptions{FS: mem, Registered: x.Entry, Size: 1}
			c.spoil(x, mem, &o)
			before, err := mem.List(x.Dir, "orders")
			must(t, err)
			r, err := storage.Keep(t.Context(), x.Dir, "orders", o)
			if !errors.Is(err, c.want) || len(r.Old) > 0 {
				t.Errorf("%v is removed: %v", old(r), err)
			}
			after, err := mem.List(x.Dir, "orders")
			if must(t, err); !slices.Equal(before, after) {
				t.Errorf("before: %q, after: %q", before, after)
			}
		})
	}

	// A file with an unreadable end is not known to be sealed, so it and all later files are kept.
	x, mem := newMemWorld(t, 512)
	fourFiles(t, x, mem)
	tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpRead && c.Name == generationIn(x, 1) && c.Off >= 4096 {
			return &storagetest.Fault{Err: syscall.EIO}
		}
		return nil
	}}
	r, err := storage.Keep(t.Context(), x.Dir, "orders", storage.KeepOptions{FS: tap, Registered: x.Entry, Size: 1})
	if err != nil || len(r.Old) > 0 || len(r.Kept) != 4 {
		t.Errorf("%v is removed of %+v: %v", old(r), r.Kept, err)
	}
}

// TestKeepOfNegativeOptions: they are mistakes, and would remove nothing.
func TestKeepOfNegativeOptions(t *testing.T) {
	for _, o := range []storage.KeepOptions{{Age: -1}, {Size: -1}} {
		if r, err := storage.Keep(t.Context(), t.TempDir(), "orders", o); err == nil || !strings.Contains(err.Error(), "negative") || r == nil {
			t.Errorf("%+v: %v, %v", o, r, err)
		}
	}
}

// TestKeepOfASealedFile: the newest file is kept even if it is sealed, whatever the registry says: it contains the state that its
// successor begins with.
func TestKeepOfASealedFile(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	fourFiles(t, x, mem)
	h, err := x.Open(mem)
	must(t, err)
	must(t, h.Writer.Seal(t.Context(), h.State()))
	r, err := storage.Keep(t.Context(), x.Dir, "orders", storage.KeepOptions{FS: mem, Registered: x.Entry, Size: 1})
	if err != nil || !slices.Equal(generations(r.Kept), []uint64{4}) {
		t.Errorf("kept: %v, %v", generations(r.Kept), err)
	}
}

// TestKeepWithTimesOutOfOrder: files whose writers' clocks were behind are kept as long as an earlier file is.
func TestKeepWithTimesOutOfOrder(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	fourFiles(t, x, mem)
	setCreated(t, mem, generationIn(x, 1), time.Now())
	for g := uint64(2); g <= 4; g++ {
		setCreated(t, mem, generationIn(x, g), time.Unix(0, 0))
	}
	r, err := storage.Keep(t.Context(), x.Dir, "orders", storage.KeepOptions{FS: mem, Registered: x.Entry, Age: time.Hour, Now: time.Now()})
	if err != nil || len(r.Old) > 0 {
		t.Errorf("removed: %v, %v", old(r), err)
	}
}

// setCreated changes the time in the header of a file.
func setCreated(t *testing.T, mem *storagetest.Mem, path string, at time.Time) {
	t.Helper()
	b := mem.ReadFile(path)
	binary.LittleEndian.PutUint64(b[80:], uint64(at.UnixNano()))
	sum := crc32.Update(0, crc32.MakeTable(crc32.Castagnoli), b[16:32])
	binary.LittleEndian.PutUint32(b[4092:], crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), b[:4092]))
	mem.WriteFile(path, b)
}

// TestKeepOnADiskThatLosesPower: whichever removals reach the disk, the remaining files have no gaps.
func TestKeepOnADiskThatLosesPower(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	fourFiles(t, x, mem)
	gone := map[string]bool{}
	tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op != storagetest.OpRemove || !storage.IsGeneration(filepath.Base(c.Name), "orders") {
			return nil
		}
		crashed := mem.Clone()
		crashed.Crash(storagetest.Crash{})
		for path := range gone {
			if _, err := crashed.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is removed while the disk still has %s: %v", c.Name, path, err)
			}
		}
		gone[c.Name] = true
		return nil
	}}
	r, err := storage.Keep(t.Context(), x.Dir, "orders", storage.KeepOptions{FS: tap, Registered: x.Entry, Size: 1})
	if err != nil || len(r.Old) != 3 {
		t.Errorf("removed: %v, %v", old(r), err)
	}
}

// TestKeepStopsBetweenReplacedFiles: whichever removal is the last, the remaining files have no gap, and the next Keep removes the others.
func TestKeepStopsBetweenReplacedFiles(t *testing.T) {
	eachKeeper(t, func(t *testing.T, x *world, fsys storage.FS) {
		h, err := x.Open(fsys)
		must(t, err)
		merge := func() error {
			next, _, err := h.Writer.Compact(t.Context(), h.State(), storage.CompactOptions{From: 2})
			h.Writer = next
			return err
		}
		one := func() error { return steps(appends(h, 1), h.Ack) }
		// 5 replaces 2 to 4, and 1 stays.
		must(t, steps(one, h.Rotate, one, h.Rotate, one, h.Rotate, one, merge, one, func() error { return h.Writer.Close() }))
		var removed []uint64
		for range 4 {
			removals := 0
			tap := &storagetest.Tap{FS: fsys, Before: func(c storagetest.Call) *storagetest.Fault {
				if c.Op == storagetest.OpRemove {
					if removals++; removals > 1 {
						return &storagetest.Fault{Err: syscall.EIO}
					}
				}
				return nil
			}}
			r, err := storage.Keep(t.Context(), x.Dir, "orders", storage.KeepOptions{FS: tap, Registered: x.Entry, Replaced: true})
			if (err == nil) != (removals < 2) {
				t.Fatalf("after %d: %v", removed, err)
			}
			removed = append(removed, old(r)...)
			left, err := storage.ReadChain(fsys, x.Dir, "orders")
			must(t, err)
			if wrong := left.Check(); len(wrong) > 0 {
				t.Fatalf("left is %v: %v", generations(left), wrong[0])
			}
		}
		if slices.Sort(removed); !slices.Equal(removed, []uint64{2, 3, 4}) {
			t.Errorf("removed: %v", removed)
		}
	})
}

// TestKeepStopsAtEveryRequest: a removal interrupted at any request is finished by the next Keep, and the remaining files are whole
// meanwhile.
func TestKeepStopsAtEveryRequest(t *testing.T) {
	race.Skip(t)
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := errors.New("the process has ended")
				for k, ended := first(applied), false; !ended; k += 2 {
					x, mem := newSlotsWorld(t)
					fourFiles(t, x, slotsOf(mem))
					at, err := x.Contents(slotsOf(mem))
					must(t, err)
					tap := &slotstest.Tap{Store: mem, Before: func(c slotstest.Call) *slotstest.Fault {
						if c.N < k {
							return nil
						}
						return &slotstest.Fault{Err: over, Applied: applied && c.N == k}
					}}
					o := storage.KeepOptions{FS: slotsOf(tap), Registered: x.Entry, Size: 1}
					_, err = storage.Keep(t.Context(), x.Dir, "orders", o)
					ended = err == nil
					left, err := storage.ReadChain(slotsOf(mem), x.Dir, "orders")
					must(t, err)
					x.Gone = maps.Clone(at)
					maps.DeleteFunc(x.Gone, func(_ int, i uint64) bool { return i >= left[0].First })
					if err := x.Check(slotsOf(mem)); err != nil {
						t.Fatalf("request %d: %v", k, err)
					}
					o.FS = slotsOf(mem)
					r, err := storage.Keep(t.Context(), x.Dir, "orders", o)
					if err != nil || len(r.Kept) != 1 || ended && len(r.Old)+len(r.Ended) > 0 {
						t.Fatalf("request %d: again: %+v, %v", k, r, err)
					}
					x.Gone = maps.Clone(at)
					maps.DeleteFunc(x.Gone, func(_ int, i uint64) bool { return i >= r.Kept[0].First })
					checkSwept(t, mem, r.Kept[0])
					if err := x.Finish(slotsOf(mem)); err != nil {
						t.Fatalf("request %d: %v", k, err)
					}
				}
			})
		})
	}
}

// first returns the number of the first request, from which every second one is tried.
func first(odd bool) int {
	if odd {
		return 1
	}
	return 0
}

// checkSwept fails if more is left of the files before the first kept one than the slots that keep writers from appending to them.
func checkSwept(t *testing.T, mem *slotstest.Mem, first storage.Link) {
	t.Helper()
	for g := uint64(1); g < first.Generation; g++ {
		folder := fmt.Sprintf("orders/%08d", g)
		nonces, _ := mem.Folders(t.Context(), folder)
		entries, _ := mem.List(t.Context(), folder+"/"+nonces[0])
		// The first slot, the fences of at most two sessions, and the seal.
		if len(entries) > 4 {
			t.Fatalf("left of generation %d: %v", g, entries)
		}
	}
}

// TestKeepAndReaders: a reader whose file is removed while it reads reports that, and no damage.
func TestKeepAndReaders(t *testing.T) {
	x, mem := newSlotsWorld(t)
	fourFiles(t, x, slotsOf(mem))
	for k, removed := 0, true; removed; k++ {
		removed = false
		y, left := x.Clone(), mem.Clone()
		tap := &slotstest.Tap{Store: left, Before: func(c slotstest.Call) *slotstest.Fault {
			if c.N == k {
				removed = true
				must(t, y.Keep(slotsOf(left), slotsOf(left)))
			}
			return nil
		}}
		r, err := storage.Verify(t.Context(), generationIn(x, 1), storage.VerifyOptions{FS: slotsOf(tap)})
		if err == nil {
			err = r.Err()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("removed before request %d: %v", k, err)
		}
		if !removed && k < 10 {
			t.Errorf("only %d requests", k)
		}
	}
}

// TestKeepWithOldListings: whatever a listing omits, the newest file is found after the removed ones.
func TestKeepWithOldListings(t *testing.T) {
	x, mem := newSlotsWorld(t)
	fourFiles(t, x, slotsOf(mem))
	must(t, x.Keep(slotsOf(mem), slotsOf(mem)))
	for left := 0; left < 4; left++ {
		tap := &slotstest.Tap{Store: mem.Clone()}
		tap.Before = func(c slotstest.Call) *slotstest.Fault {
			if c.Op != slotstest.OpList {
				return nil
			}
			return &slotstest.Fault{Leave: func(e slots.Entry) bool {
				return e.Name > fmt.Sprintf("orders/generations/%08d", left) && e.Name < "orders/h"
			}}
		}
		chain, err := storage.ReadChain(slotsOf(tap), x.Dir, "orders")
		if must(t, err); !slices.Equal(generations(chain), []uint64{4}) {
			t.Errorf("of a listing as old as generation %d: %v", left, generations(chain))
		}
		y := x.Clone()
		h, err := y.Open(slotsOf(tap))
		must(t, err)
		must(t, steps(appends(h, 2), h.Ack, h.Rotate, func() error { return h.Writer.Close() }))
		if err := y.Finish(slotsOf(tap.Store)); err != nil {
			t.Errorf("of a listing as old as generation %d: %v", left, err)
		}
	}
}

// TestHalfRemovedWithoutItsFirstSlot: without its first slot the removal of a file is not finished, and not reported as finished.
func TestHalfRemovedWithoutItsFirstSlot(t *testing.T) {
	for _, first := range [][]byte{nil, []byte("short")} {
		x, mem := newSlotsWorld(t)
		fourFiles(t, x, slotsOf(mem))
		folders, err := mem.Folders(t.Context(), "orders/00000001")
		must(t, err)
		slot := "orders/00000001/" + folders[0] + "/00000000000000000000"
		must(t, mem.Delete(t.Context(), slot))
		if first != nil {
			must(t, mem.Create(t.Context(), slot, first))
		}
		must(t, mem.Create(t.Context(), "orders/generations/00000001-removed", []byte("removed")))
		o := storage.KeepOptions{FS: slotsOf(mem), Registered: x.Entry}
		for range 2 {
			r, err := storage.Keep(t.Context(), x.Dir, "orders", o)
			if !errors.Is(err, storage.ErrIntegrity) || len(r.Ended) > 0 || strings.Contains(err.Error(), "%!") {
				t.Errorf("first slot %q: %v, finished %q", first, err, r.Ended)
			}
		}
		must(t, mem.Create(t.Context(), "orders/generations/00000001-swept", nil)) // as the error says
		if r, err := storage.Keep(t.Context(), x.Dir, "orders", o); err != nil || len(r.Ended) > 0 {
			t.Errorf("first slot %q, marked as swept: %v, finished %q", first, err, r.Ended)
		}
	}
}
