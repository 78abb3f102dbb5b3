package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// TestSealAndCopy: a sealed type continues where its files were copied to, and the registry had its durable index before that.
func TestSealAndCopy(t *testing.T) {
	ctx := t.Context()
	fsys := slots.New(ctx, slotstest.NewMem(1<<10))
	for name, to := range map[string]struct {
		fsys storage.FS
		dir  string
	}{"directory": {nil, filepath.Join(t.TempDir(), "some", "where")}, "slots": {fsys, fsys.Dir()}} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t.TempDir())
			w := mustOpen(t, x.Dir, 1, storage.Options{Registry: x})
			mustAppend(t, w, messages(0, 10))
			w, err := w.Rotate(ctx, []byte("state at 10"))
			must(t, err)
			mustAppend(t, w, messages(10, 500))
			second := w.Path()
			if copied, err := storage.CopyFile(ctx, nil, second, to.fsys, to.dir, nil); copied || !errors.Is(err, storage.ErrRefused) {
				t.Fatalf("a file that is written to: %v, %v", copied, err)
			}
			must(t, w.Seal(ctx, []byte("state at 510")))
			if err := w.Append(messages(510, 1)); !errors.Is(err, storage.ErrClosed) {
				t.Errorf("append to the sealed file: %v", err)
			}
			must(t, w.Close())
			if x.Entry.DurableIndex != 510 || x.Entry.Generation != 2 {
				t.Errorf("registered is %+v", x.Entry)
			}
			for round, want := range []bool{true, false} {
				for _, path := range []string{filepath.Join(x.Dir, "orders.fpl"), second} {
					told, size := int64(0), int64(0)
					copied, err := storage.CopyFile(ctx, nil, path, to.fsys, to.dir, func(done, total int64) { told, size = done, total })
					if copied != want || err != nil || told == 0 || told != size {
						t.Errorf("round %d: %s: %v, %v, %d of %d bytes", round, path, copied, err, told, size)
					}
				}
			}
			if got, want := contentOf(t, to.fsys, filepath.Join(to.dir, "orders@0002.fpl")), contentOf(t, nil, second); !bytes.Equal(got, want) {
				t.Errorf("the copy has %d bytes, the file %d, or they differ", len(got), len(want))
			}
			third, err := storage.Open(ctx, to.dir, "orders", 2, storage.Options{FS: to.fsys, Registry: x})
			must(t, err)
			if third.Generation() != 3 || third.NextIndex() != 510 || x.Entry.FileID != third.FileID() {
				t.Errorf("generation %d begins at %d; registered is %+v", third.Generation(), third.NextIndex(), x.Entry)
			}
			mustAppend(t, third, messages(510, 1))
			must(t, third.Close())
			_, err = storage.Open(ctx, x.Dir, "orders", 3, storage.Options{Registry: x})
			if mismatch := (*storage.RegistryMismatch)(nil); !errors.As(err, &mismatch) || mismatch.Older != 2 {
				t.Errorf("a writer in the old place: %v", err)
			}
			// The fences that writers append after a seal do not make it a different file.
			if copied, err := storage.CopyFile(ctx, nil, second, to.fsys, to.dir, nil); copied || err != nil {
				t.Errorf("once more: %v, %v", copied, err)
			}
			chain, err := storage.ReadChain(to.fsys, to.dir, "orders")
			must(t, err)
			if wrong := chain.Check(); len(chain) != 3 || len(wrong) > 0 {
				t.Errorf("%d files, %v", len(chain), wrong)
			}
		})
	}
}

func contentOf(t *testing.T, fsys storage.FS, path string) []byte {
	t.Helper()
	if fsys == nil {
		fsys = storage.OS()
	}
	f, err := fsys.Open(path, storage.ModeRead)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	b := make([]byte, info.Size)
	n, err := f.ReadAt(b, 0)
	if int64(n) != info.Size {
		t.Fatalf("%s: %d of %d bytes: %v", path, n, info.Size, err)
	}
	return b
}

// TestCopyConflicts: another file is neither replaced nor mistaken for a copy.
func TestCopyConflicts(t *testing.T) {
	ctx, to := t.Context(), t.TempDir()
	sealed := func(n int) string {
		dir := t.TempDir()
		w := mustOpen(t, dir, 1, storage.Options{})
		mustAppend(t, w, messages(0, n))
		must(t, w.Seal(ctx, nil))
		return filepath.Join(dir, "orders.fpl")
	}
	one, other := sealed(3), sealed(3)
	if copied, err := storage.CopyFile(ctx, nil, one, nil, to, nil); !copied || err != nil {
		t.Fatal(copied, err)
	}
	before := contentOf(t, nil, filepath.Join(to, "orders.fpl"))
	var conflict *storage.CopyConflict
	if copied, err := storage.CopyFile(ctx, nil, other, nil, to, nil); copied || !errors.As(err, &conflict) || !errors.Is(err, storage.ErrRefused) {
		t.Errorf("another file: %v, %v", copied, err)
	}
	changed := bytes.Clone(before)
	changed[len(changed)-300] ^= 1
	must(t, os.WriteFile(filepath.Join(to, "orders.fpl"), changed, 0o600))
	if copied, err := storage.CopyFile(ctx, nil, one, nil, to, nil); copied || err == nil {
		t.Errorf("a damaged copy: %v, %v", copied, err)
	}
	renamed := filepath.Join(filepath.Dir(one), "bills.fpl")
	must(t, os.Rename(one, renamed))
	if copied, err := storage.CopyFile(ctx, nil, renamed, nil, to, nil); copied || !errors.Is(err, storage.ErrRefused) {
		t.Errorf("a file with another type's name: %v, %v", copied, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	empty := t.TempDir()
	if copied, err := storage.CopyFile(ended, nil, other, nil, empty, nil); copied || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v, %v", copied, err)
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestCopyOverAnUnusedSuccessor: after an interrupted copy a writer created the successor there, and then the old place was used again. A
// second copy refuses that file, says whether it has messages, and succeeds once the file is out of the way.
func TestCopyOverAnUnusedSuccessor(t *testing.T) {
	for _, inSlots := range []bool{false, true} {
		for _, used := range []bool{false, true} {
			ctx, src, dst, mem := t.Context(), t.TempDir(), t.TempDir(), slotstest.NewMem(1<<20)
			to := storage.OS()
			if inSlots {
				to, dst = slotsOf(mem), "memory:"
			}
			copyAll := func(names ...string) (err error) {
				for _, name := range names {
					_, cerr := storage.CopyFile(ctx, nil, filepath.Join(src, name), to, dst, nil)
					err = errors.Join(err, cerr)
				}
				return err
			}
			w := mustOpen(t, src, 1, storage.Options{})
			mustAppend(t, w, messages(0, 3))
			must(t, errors.Join(w.Seal(ctx, nil), copyAll("orders.fpl")))
			w = mustOpen(t, dst, 2, storage.Options{FS: to}) // here the copy was interrupted
			if used {
				mustAppend(t, w, messages(3, 1))
			}
			must(t, w.Close())

			w = mustOpen(t, src, 3, storage.Options{})
			mustAppend(t, w, messages(3, 2))
			must(t, w.Seal(ctx, nil))
			err := copyAll("orders.fpl", "orders@0002.fpl")
			var conflict *storage.CopyConflict
			if !errors.As(err, &conflict) || conflict.Unused != !used || conflict.Unused != strings.Contains(err.Error(), "It has no messages: move it away") {
				t.Errorf("in slots %v, used %v: %v", inSlots, used, err)
			}
			if used {
				continue
			}
			if inSlots {
				must(t, mem.Delete(ctx, "orders/generations/00000002"))
			} else {
				must(t, os.Rename(filepath.Join(dst, "orders@0002.fpl"), filepath.Join(t.TempDir(), "orders@0002.fpl")))
			}
			must(t, copyAll("orders.fpl", "orders@0002.fpl"))
			w = mustOpen(t, dst, 4, storage.Options{FS: to})
			if w.NextIndex() != 5 || w.Generation() != 3 {
				t.Errorf("in slots %v: continues at %d in generation %d, want 5 and 3", inSlots, w.NextIndex(), w.Generation())
			}
			must(t, w.Close())
		}
	}
}

// lateRegistry calls before ahead of every update.
type lateRegistry struct {
	*world
	before func()
}

func (r *lateRegistry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	r.before()
	return r.world.Update(ctx, typ, e)
}

// TestSealOvertaken: a writer overtaken between its seal and the registry update reports that, and not a lost file.
func TestSealOvertaken(t *testing.T) {
	eachKeeper(t, func(t *testing.T, x *world, fsys storage.FS) {
		r := &lateRegistry{x, func() {}}
		x.Epoch++
		w, err := storage.Open(t.Context(), x.Dir, "orders", x.Epoch, storage.Options{FS: fsys, Registry: r})
		must(t, err)
		r.before = func() {
			b, err := x.TakeOver(fsys)
			must(t, err)
			must(t, b.Writer.Close())
		}
		all := &holder{Index: x.Acked}
		err = w.Seal(t.Context(), all.State())
		checkError(t, err, new(*storage.EpochError), storage.ErrFenced, "took over from this one", "acquire it again")
		if strings.Contains(err.Error(), "raise the token") { // wrong advice: the new holder is at work
			t.Error(err)
		}
		w.Close()
		must(t, x.Finish(fsys))
	})
}

// TestInterruptedCopyIntoAStore: the remains of an interrupted copy into a store are removed when the copy is repeated, however many
// generations follow.
func TestInterruptedCopyIntoAStore(t *testing.T) {
	const generations = 6
	ctx, dir := t.Context(), t.TempDir()
	w := mustOpen(t, dir, 1, storage.Options{})
	for range generations - 1 {
		mustAppend(t, w, messages(0, 1))
		next, err := w.Rotate(ctx, nil)
		must(t, err)
		w = next
	}
	must(t, w.Seal(ctx, nil))
	mem := slotstest.NewMem(700)
	fails := true
	to := slots.New(ctx, &slotstest.Tap{Store: mem, Before: func(c slotstest.Call) *slotstest.Fault {
		if fails && c.Op == slotstest.OpCreate && strings.HasSuffix(c.Name, "/00000000000000002100") {
			return &slotstest.Fault{Err: &slots.RefusedError{Reason: "no more"}}
		}
		return nil
	}})
	path := func(g uint64) string { return filepath.Join(dir, storage.GenerationName("orders", g)) }
	for range 2 {
		if copied, err := storage.CopyFile(ctx, nil, path(1), to, to.Dir(), nil); copied || !errors.Is(err, storage.ErrRefused) {
			t.Fatal(copied, err)
		}
	}
	fails = false
	for g := range uint64(generations) {
		if copied, err := storage.CopyFile(ctx, nil, path(g+1), to, to.Dir(), nil); !copied || err != nil {
			t.Fatal(copied, err)
		}
	}
	for g := range uint64(generations) {
		folder := fmt.Sprintf("orders/%08d", g+1)
		if left, err := mem.Folders(ctx, folder); len(left) != 1 || err != nil {
			t.Errorf("files in %s: %q, %v", folder, left, err)
		}
		if got := contentOf(t, to, storage.GenerationName("orders", g+1)); !bytes.Equal(got, contentOf(t, nil, path(g+1))) {
			t.Errorf("generation %d is not the same", g+1)
		}
	}
}
