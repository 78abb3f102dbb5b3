package storage_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// follow collects the indexes that a follower returns until ctx ends.
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

// TestFollowReturnsWhatIsDurable: a batch whose writeback failed is in the page cache and not on the device. A follower does
// not return it, whoever is told of the error.
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
			checkError(t, <-failed, new(*storage.ReplacedError), storage.ErrIntegrity, "replaced")
		})
	}
}

// TestFollowRealFile: a descriptor that can only read can sync, and drop the cache.
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
