package storage_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func readAll(t testing.TB, fsys storage.FS, path string) []storage.Record {
	t.Helper()
	r, err := storage.OpenReader(path, storage.ReaderOptions{FS: fsys})
	if err != nil {
		t.Fatalf("open reader: %v", err)
	}
	defer r.Close()
	var all []storage.Record
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("after %d records: %v", len(all), err)
		}
		rec.ID = append([]byte(nil), rec.ID...)
		rec.Payload = append([]byte(nil), rec.Payload...)
		rec.Headers = append([]storage.Header(nil), rec.Headers...)
		all = append(all, rec)
	}
}

func mustOpen(t testing.TB, dir string, epoch uint64, o storage.Options) *storage.Writer {
	t.Helper()
	w, err := storage.Open(context.Background(), dir, "orders", epoch, o)
	if err != nil {
		t.Fatalf("open with epoch %d: %v", epoch, err)
	}
	return w
}

func mustSync(t testing.TB, w *storage.Writer) uint64 {
	t.Helper()
	next, err := w.Sync()
	if err != nil {
		t.Fatalf("sync: %v", err)
	}
	return next
}

func mustAppend(t testing.TB, w *storage.Writer, recs []storage.Record) {
	t.Helper()
	if err := w.Append(recs); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func mustVerify(t testing.TB, fsys storage.FS, path string) *storage.Report {
	t.Helper()
	rep, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: fsys, Deep: true})
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	return rep
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "orders.fpl")
	w := mustOpen(t, dir, 7, storage.Options{})
	mustAppend(t, w, messages(0, 10))
	if got := mustSync(t, w); got != 10 {
		t.Fatalf("Sync returned %d, want 10", got)
	}
	if err := w.Checkpoint([]byte("state at 10")); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, w, messages(10, 5))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	var state string
	var replayed []string
	w = mustOpen(t, dir, 9, storage.Options{
		Restore: func(s []byte) error { state = string(s); return nil },
		Replay:  func(r storage.Record) error { replayed = append(replayed, string(r.ID)); return nil },
	})
	if state != "state at 10" || len(replayed) != 5 || replayed[0] != "id-000010" {
		t.Errorf("restored %q and replayed %q", state, replayed)
	}
	if w.NextIndex() != 15 || w.DurableIndex() != 15 {
		t.Errorf("next %d, durable %d, want 15", w.NextIndex(), w.DurableIndex())
	}
	mustAppend(t, w, messages(15, 1))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(messages(16, 1)); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	all := readAll(t, nil, path)
	if len(all) != 16 {
		t.Fatalf("read %d records", len(all))
	}
	for i, r := range all {
		want := messages(i, 1)[0]
		if string(r.ID) != string(want.ID) || string(r.Payload) != string(want.Payload) || r.Time != want.Time || r.Index != uint64(i) {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	rep := mustVerify(t, nil, path)
	if rep.Err() != nil || rep.Messages != 16 || len(rep.Regions) != 2 || len(rep.Void) != 0 || rep.Torn.End != 0 {
		t.Errorf("report %+v", rep)
	}
	if _, err := storage.Open(context.Background(), dir, "orders", 9, storage.Options{}); !errors.Is(err, storage.ErrFenced) {
		t.Errorf("epoch 9 again: %v", err)
	}
}

// Hundreds of files may be open while only a few are written to at a time, so writers share their large buffers.
func TestWriterThatIsIdleKeepsNoLargeBuffer(t *testing.T) {
	for _, compress := range []bool{false, true} {
		mem := storagetest.NewMem(4096)
		w, err := storage.Open(context.Background(), "/d", "orders", 1, storage.Options{FS: mem, Compress: compress})
		if err != nil {
			t.Fatal(err)
		}
		var want []storage.Record
		random := rand.NewChaCha8([32]byte{})
		for i, size := range []int{100, 3 << 20, 100, 10 << 20, 5 << 20, 2 << 20, 100, 1 << 19} {
			recs := messages(i, 1)
			recs[0].Payload = make([]byte, size)
			random.Read(recs[0].Payload[size/4:]) // something to compress
			if err := w.Append(recs); err != nil {
				t.Fatal(err)
			}
			want = append(want, recs...)
			if n := w.KeptBuffers(); n > 2<<20 {
				t.Errorf("compress %v: %d bytes of buffers are kept after a batch of %d bytes", compress, n, size)
			}
			if i%3 != 0 {
				continue
			}
			if w.Idle(); w.KeptBuffers() > 0 {
				t.Errorf("compress %v: %d bytes of buffers are kept while idle", compress, w.KeptBuffers())
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got := readAll(t, mem, w.Path())
		if len(got) != len(want) {
			t.Fatalf("%d records in the file, want %d", len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i].Payload, want[i].Payload) {
				t.Errorf("record %d of %d bytes differs", i, len(want[i].Payload))
			}
		}
	}
}
