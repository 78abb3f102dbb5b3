package storage_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// follow collects the records that a follower returns until ctx ends, and then its error.
func follow(t *testing.T, ctx context.Context, fsys storage.FS, o storage.FollowOptions) (chan storage.Record, <-chan error) {
	t.Helper()
	o.FS = fsys
	f, err := storage.Follow("/d/orders.fpl", o)
	must(t, err)
	out, failed := make(chan storage.Record, 1000), make(chan error, 1)
	go func() {
		defer f.Close()
		for {
			recs, err := f.Next(ctx)
			if err != nil {
				failed <- err
				return
			}
			for _, r := range recs {
				out <- copyOf(r)
			}
		}
	}()
	return out, failed
}

// TestFollow: a follower returns every record once, through rotations, compactions and takeovers, and waits for more.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		mem := storagetest.NewMem(512)
		x := newWorld("/d")
		o := storage.Options{FS: mem, Registry: x}
		w := mustOpen(t, "/d", 1, o)
		mustAppend(t, w, messages(0, 5))
		out, failed := follow(t, ctx, mem, storage.FollowOptions{From: 2})
		n := 5
		more := func(k int) {
			mustAppend(t, w, messages(n, k))
			n += k
			time.Sleep(time.Second)
		}
		more(3)
		var err error
		w, err = w.Rotate(ctx, nil)
		must(t, err)
		more(2)
		w, _, err = w.Compact(ctx, nil, storage.CompactOptions{})
		must(t, err)
		more(4)
		must(t, w.Close())
		w = mustOpen(t, "/d", 2, o)
		more(1)
		must(t, w.Close())
		cancel()
		synctest.Wait()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		close(out)
		want := uint64(2)
		for r := range out {
			if r.Index != want || string(r.ID) != string(messages(int(want), 1)[0].ID) {
				t.Fatalf("record %d, want %d", r.Index, want)
			}
			want++
		}
		if want != uint64(n) {
			t.Errorf("followed up to %d of %d", want, n)
		}
	})
}

// TestFollowFromALaterFile: a reader that resumes may name the first file, and an index of a later one, or of one that does not exist yet.
func TestFollowFromALaterFile(t *testing.T) {
	for _, from := range []uint64{10, 25, 49, 50, 52} {
		synctest.Test(t, func(t *testing.T) {
			mem := chainMem(t, 5)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, failed := follow(t, ctx, mem, storage.FollowOptions{From: from})
			time.Sleep(time.Second)
			w := mustOpen(t, "/d", 100, storage.Options{FS: mem})
			w, err := w.Rotate(ctx, nil)
			must(t, err)
			mustAppend(t, w, messages(50, 5))
			must(t, w.Close())
			if err := <-failed; !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if first := (<-out).Index; first != from || len(out) != int(54-from) {
				t.Errorf("from %d: begins at %d, and %d more", from, first, len(out))
			}
		})
	}
}

// TestFollowContinuesAtItsPath: a program that continues at the path and the next index of an earlier follower does not need older files.
func TestFollowContinuesAtItsPath(t *testing.T) {
	mem := chainMem(t, 5)
	f, err := storage.Follow(generation(1), storage.FollowOptions{FS: mem})
	must(t, err)
	next := uint64(0)
	for next < 25 {
		recs, err := f.Next(t.Context())
		must(t, err)
		next = recs[len(recs)-1].Index + 1
	}
	path := f.Path()
	must(t, f.Close())
	must(t, mem.Remove(generation(1)))
	must(t, mem.Remove(generation(2)))
	again, err := storage.Follow(path, storage.FollowOptions{FS: mem, From: next})
	must(t, err)
	defer again.Close()
	if recs, err := again.Next(t.Context()); err != nil || recs[0].Index != next {
		t.Errorf("continued in %s at %d: %v, %v", path, next, recs, err)
	}
}

// TestFollowReturnsWhatIsDurable: a batch whose writeback failed is in the page cache but not on the device. A follower does not
// return it, whichever descriptor got the error.
func TestFollowReturnsWhatIsDurable(t *testing.T) {
	for _, durable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			mem := storagetest.NewMem(512)
			x := newWorld("/d")
			w := mustOpen(t, "/d", 1, storage.Options{FS: mem, Registry: x})
			mustAppend(t, w, messages(0, 5))
			mustSync(t, w)
			mustAppend(t, w, messages(5, 5))
			mem.FailWriteback("/d/orders.fpl", nil)
			_, err := w.Sync()
			if !errors.Is(err, syscall.EIO) {
				t.Fatalf("scenario: %v", err)
			}
			// Opened after the error was reported: this descriptor's own sync succeeds.
			out, failed := follow(t, ctx, mem, storage.FollowOptions{Unsynced: !durable})
			<-failed
			if got := len(out); durable && got != 5 || !durable && got != 10 {
				t.Errorf("durable %v: %d records", durable, got)
			}
			w.Close()
		})
	}
}

// TestFollowNoticesReplacement: a file that was moved away or replaced never grows again.
func TestFollowNoticesReplacement(t *testing.T) {
	for _, replace := range []func(*storagetest.Mem) error{
		func(m *storagetest.Mem) error { return m.Remove("/d/orders.fpl") },
		func(m *storagetest.Mem) error {
			m.WriteFile("/d/other", m.ReadFile("/d/orders.fpl"))
			return m.Rename("/d/other", "/d/orders.fpl")
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			mem := storagetest.NewMem(512)
			w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
			mustAppend(t, w, messages(0, 5))
			must(t, w.Close())
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, failed := follow(t, ctx, mem, storage.FollowOptions{})
			time.Sleep(time.Second)
			must(t, replace(mem))
			checkError(t, <-failed, new(*storage.ReplacedError), storage.ErrIntegrity, "while it was open")
		})
	}
}

// TestFollowRealFile: a read-only descriptor can sync, and drop the cache.
func TestFollowRealFile(t *testing.T) {
	dir := t.TempDir()
	w := mustOpen(t, dir, 1, storage.Options{})
	mustAppend(t, w, messages(0, 5))
	f, err := storage.Follow(w.Path(), storage.FollowOptions{From: 1})
	must(t, err)
	defer f.Close()
	recs, err := f.Next(t.Context())
	if err != nil || len(recs) != 4 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	mustAppend(t, w, messages(5, 3))
	must(t, w.Close())
	if recs, err = f.Next(t.Context()); err != nil || len(recs) != 3 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
}

// TestFollowNoticesARenamedDirectory: the error says what happened to the file that is read, not that no later one can be listed.
func TestFollowNoticesARenamedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "files")
	w := mustOpen(t, dir, 1, storage.Options{})
	mustAppend(t, w, messages(0, 5))
	must(t, w.Close())
	f, err := storage.Follow(w.Path(), storage.FollowOptions{Poll: time.Millisecond})
	must(t, err)
	defer f.Close()
	_, err = f.Next(t.Context())
	must(t, errors.Join(err, os.Rename(dir, dir+"2")))
	_, err = f.Next(t.Context())
	checkError(t, err, new(*storage.ReplacedError), storage.ErrIntegrity, "directory was renamed")
}

// TestReadAfterClose: a closed reader returns nothing, not even the rest of the last batch.
func TestReadAfterClose(t *testing.T) {
	w := mustOpen(t, t.TempDir(), 1, storage.Options{})
	mustAppend(t, w, messages(0, 5))
	must(t, w.Close())
	r, err := storage.OpenReader(w.Path(), storage.ReaderOptions{})
	must(t, err)
	_, err = r.Next()
	must(t, errors.Join(err, r.Close(), r.Close()))
	if rec, err := r.Next(); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("record %d, %v", rec.Index, err)
	}
}

// TestFollowBrokenChain: if the files do not follow one another, a follower reports that. It neither waits for records that will
// never arrive nor continues in another file.
func TestFollowBrokenChain(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, mem *storagetest.Mem)
		read   int // records before the error
		says   []string
	}{
		{"removed", func(t *testing.T, mem *storagetest.Mem) { must(t, mem.Remove(generation(3))) }, 20, []string{"generation 3 (/d/orders@0003.fpl) is missing", "messages 20 to 29"}},
		{"cut", func(t *testing.T, mem *storagetest.Mem) { cutAfter(t, mem, generation(3), 2) }, 25, []string{"generation 3 (/d/orders@0003.fpl) is cut", "messages 25 to 29"}},
		{"swapped", func(t *testing.T, mem *storagetest.Mem) { swap(t, mem, generation(3), generation(4)) }, 20, []string{"orders@0003.fpl", "generation 4"}},
		{"a copy", func(t *testing.T, mem *storagetest.Mem) { mem.WriteFile(generation(3), mem.ReadFile(generation(2))) }, 20, []string{"orders@0003.fpl is a copy of orders@0002.fpl"}},
		{"another one", func(t *testing.T, mem *storagetest.Mem) {
			mem.WriteFile(generation(3), chainMem(t, 5).ReadFile(generation(3)))
		}, 20, []string{"another file than its predecessor names"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := chainMem(t, 5)
				c.damage(t, mem)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				out, failed := follow(t, ctx, mem, storage.FollowOptions{})
				checkError(t, <-failed, new(*storage.ChainError), storage.ErrIntegrity, c.says...)
				if len(out) != c.read {
					t.Errorf("%d records were read, want %d", len(out), c.read)
				}
			})
		})
	}
}

// TestFollowLateName: between the follower's look at a file and its look for the successor, the writer seals the file and names the successor. An
// earlier look had failed, and was repeated.
func TestFollowLateName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := storagetest.NewMem(512)
		w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
		mustAppend(t, w, messages(0, 5))
		mustSync(t, w)
		looks, rotated := 0, false
		tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op != storagetest.OpStat || c.Name != generation(2) || rotated {
				return nil
			}
			switch looks++; looks {
			case 1:
				return &storagetest.Fault{Err: syscall.EIO}
			case 3:
				rotated = true
				mustAppend(t, w, messages(5, 5))
				n, err := w.Rotate(context.Background(), nil)
				must(t, err)
				mustAppend(t, n, messages(10, 5))
				must(t, n.Close())
			}
			return nil
		}}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, failed := follow(t, ctx, tap, storage.FollowOptions{})
		if err := <-failed; !errors.Is(err, context.DeadlineExceeded) || len(out) != 15 || !rotated {
			t.Errorf("%d records, %v", len(out), err)
		}
	})
}

// TestFollowPastWhatWasReplaced: a file that a compaction replaced may be removed; its successor has all its messages.
func TestFollowPastWhatWasReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := storagetest.NewMem(512)
		w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
		mustAppend(t, w, messages(0, 10))
		w, err := w.Rotate(context.Background(), nil)
		must(t, err)
		mustAppend(t, w, messages(10, 10))
		w, _, err = w.Compact(context.Background(), nil, storage.CompactOptions{})
		must(t, err)
		mustAppend(t, w, messages(20, 10))
		must(t, w.Close())
		must(t, mem.Remove(generation(2)))
		for _, from := range []uint64{0, 25} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, failed := follow(t, ctx, mem, storage.FollowOptions{From: from})
			if err := <-failed; !errors.Is(err, context.DeadlineExceeded) || len(out) != int(30-from) {
				t.Errorf("from %d: %d records, %v", from, len(out), err)
			}
		}
	})
}

// TestFollowRemovedFiles: whenever the file that a follower reads is compacted and removed, the follower continues in the file that has its messages.
// If that is removed, too, it reports which messages were missed.
func TestFollowRemovedFiles(t *testing.T) {
	for name, o := range map[string]storage.KeepOptions{"replaced": {Replaced: true}, "too old": {Size: 1}} {
		for _, place := range []string{"disk", "slots"} {
			t.Run(name+" "+place, func(t *testing.T) {
				for k := range 40 {
					synctest.Test(t, func(t *testing.T) { followRemoved(t, place, o, k) })
				}
			})
		}
	}
}

// followRemoved follows a type, whose files are continued and removed before call k of the follower.
func followRemoved(t *testing.T, place string, o storage.KeepOptions, k int) {
	t.Helper()
	x, fsys := keepers[place](t)
	removed := false
	remove := func(n int) {
		if n != k || removed {
			return
		}
		removed = true
		h, err := x.Open(fsys)
		must(t, err)
		must(t, steps(appends(h, 2), h.Ack, h.Compact, appends(h, 2), h.Ack, h.Rotate, appends(h, 2), h.Ack, h.Compact, func() error { return h.Writer.Close() }))
		o.FS, o.Registered = fsys, x.Entry
		_, err = storage.Keep(t.Context(), x.Dir, "orders", o)
		must(t, err)
	}
	tap := storage.FS(&storagetest.Tap{FS: fsys, Before: func(c storagetest.Call) *storagetest.Fault { remove(c.N); return nil }})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	f, err := storage.Follow(x.Path(), storage.FollowOptions{FS: tap})
	if errors.Is(err, fs.ErrNotExist) && removed { // before it was opened
		return
	}
	must(t, err)
	defer f.Close()
	next := uint64(0)
	for {
		var recs []storage.Record
		if recs, err = f.Next(ctx); err != nil {
			break
		}
		for _, r := range recs {
			if r.Index != next {
				t.Fatalf("removed before call %d: record %d instead of %d", k, r.Index, next)
			}
			next++
		}
	}
	if lost := (*storage.ChainError)(nil); o.Size > 0 && errors.As(err, &lost) {
		if left, err := storage.ReadChain(fsys, x.Dir, "orders"); err != nil || lost.LostFirst != next || lost.LostNext != left[0].First {
			t.Fatalf("removed before call %d: after record %d: %v", k, next, lost)
		}
		return
	}
	if !errors.Is(err, context.DeadlineExceeded) || !removed || next != x.Entry.DurableIndex {
		t.Fatalf("removed before call %d: %d records, %v", k, next, err)
	}
}

// TestFollowRepairedFiles: a file whose damage was repaired into a later file no longer ends a follower.
func TestFollowRepairedFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := chainMem(t, 2) // messages 10 to 14 are in one batch of the second file
		w := mustOpen(t, "/d", 2, storage.Options{FS: mem})
		mustAppend(t, w, messages(20, 1))
		must(t, w.Close())
		content := mem.ReadFile(generation(2))
		content[bytes.Index(content, []byte("message 12"))] ^= 1
		mem.WriteFile(generation(2), content)
		read := func() (kinds map[storage.Kind]int, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			out, failed := follow(t, ctx, mem, storage.FollowOptions{})
			err = <-failed
			close(out)
			kinds = map[storage.Kind]int{}
			next := uint64(0)
			for r := range out {
				if kinds[r.Kind]++; r.Index != next {
					t.Errorf("record %d instead of %d", r.Index, next)
				}
				next++
			}
			return kinds, err
		}
		if kinds, err := read(); !errors.As(err, new(*storage.CorruptError)) || kinds[storage.KindMessage] != 10 {
			t.Errorf("damaged: %v, %v", kinds, err)
		}
		_, err := salvaged(t, mem, 3, storage.Options{})
		must(t, err)
		if kinds, err := read(); !errors.Is(err, context.DeadlineExceeded) || kinds[storage.KindMessage] != 11 || kinds[storage.KindLost] != 10 {
			t.Errorf("repaired: %v, %v", kinds, err)
		}
	})
}

// TestFollowReportsDamageWithoutLoss: a later file does not make up for damage in this one, although it has the next record.
func TestFollowReportsDamageWithoutLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := chainMem(t, 1)
		w, err := mustOpen(t, "/d", 2, storage.Options{FS: mem}).Rotate(t.Context(), nil)
		must(t, err)
		must(t, w.Close())
		content := mem.ReadFile(generation(1))
		content[bytes.LastIndex(content, []byte("FPF1"))+20] ^= 1 // the fence of epoch 2, after which the file has no message
		mem.WriteFile(generation(1), content)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		out, failed := follow(t, ctx, mem, storage.FollowOptions{})
		if err := <-failed; !errors.As(err, new(*storage.CorruptError)) || len(out) != 10 {
			t.Errorf("%d records, %v", len(out), err)
		}
	})
}
