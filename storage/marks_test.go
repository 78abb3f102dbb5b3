package storage_test

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// marked creates a file of batches of ten messages, 80 KiB each, in two checkpoint intervals of equal length, and returns its path.
func marked(t *testing.T, fsys storage.FS, batches int) string {
	t.Helper()
	w := mustOpen(t, "/d", 1, storage.Options{FS: fsys})
	for i := range batches {
		recs := messages(10*i, 10)
		for j := range recs {
			recs[j].Payload = bytes.Repeat([]byte{byte(i)}, 8<<10)
		}
		must(t, w.Append(recs))
		_, err := w.Sync()
		must(t, err)
		if i%(batches/2) == batches/2-1 {
			must(t, w.Checkpoint(nil))
		}
	}
	must(t, w.Close())
	return w.Path()
}

// readFrom reads all messages from an index on, and checks them.
func readFrom(t *testing.T, path string, from, n uint64, o storage.ReaderOptions) {
	t.Helper()
	o.From = from
	r, err := storage.OpenReader(path, o)
	must(t, err)
	defer r.Close()
	for i := from; i < n; i++ {
		if rec, err := r.Next(); err != nil || rec.Index != i || number(rec.ID) != int(i) {
			t.Fatalf("from %d: message %d is %d, %v", from, i, rec.Index, err)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatalf("from %d: %v", from, err)
	}
}

// TestReaderStartsAtAMark: a reader that starts at an index reads the checkpoints after it, and not the whole interval before it. The same
// holds in a store, where it bounds the number of requests.
func TestReaderStartsAtAMark(t *testing.T) {
	const batches, each = 240, 10
	firstRecord := func(from uint64, o storage.ReaderOptions, path string) {
		t.Helper()
		o.From = from
		r, err := storage.OpenReader(path, o)
		must(t, err)
		defer r.Close()
		if rec, err := r.Next(); err != nil || rec.Index != from {
			t.Fatalf("from %d: %d, %v", from, rec.Index, err)
		}
	}
	mem, store := storagetest.NewMem(4096), slotstest.NewMem(1<<20)
	path := marked(t, mem, batches)
	marked(t, slotsOf(store), batches)
	for from := uint64(0); from < batches*each; from += 101 {
		readFrom(t, path, from, batches*each, storage.ReaderOptions{FS: mem})
		read := int64(0)
		firstRecord(from, storage.ReaderOptions{FS: &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpRead {
				read += c.Len
			}
			return nil
		}}}, path)
		if read > 2<<20 { // of 19 MiB; windows of 256 KiB at the header, the end, the checkpoints, the mark
			t.Errorf("from %d: %d bytes were read", from, read)
		}
		var slots atomic.Int64
		firstRecord(from, storage.ReaderOptions{FS: slotsOf(&slotstest.Tap{Store: store, Before: func(c slotstest.Call) *slotstest.Fault {
			if c.Op == slotstest.OpRead {
				slots.Add(1)
			}
			return nil
		}})}, path)
		if slots := slots.Load(); slots > 60 { // of 240; each first read of several in a row reads 4 MiB ahead
			t.Errorf("from %d: %d of the slots were read", from, slots)
		}
	}
}

// TestMarkBehindTheEnd: a mark may name any offset, even one that overflows a 32-bit int.
func TestMarkBehindTheEnd(t *testing.T) {
	for _, behind := range []int64{1, 1 << 31, 3 << 30, 5 << 29, 1 << 40} {
		b := newBuilder()
		b.region(1, 1000, storage.Holder{})
		b.batch(messages(0, 3), 0)
		b.add("FPC1", storage.MarkedCheckpointBody(0, 0, 1<<12+behind, 0), 0, 0, 0)
		fsys := storage.BytesFS(b.data)
		readFrom(t, "orders.fpl", 1, 3, storage.ReaderOptions{FS: fsys})
	}
}

// TestCheckpointOfVeryManyBatches: marks that do not fit in a checkpoint beside its state are omitted, and readers do not need them.
func TestCheckpointOfVeryManyBatches(t *testing.T) {
	race.Skip(t)
	mem := storagetest.NewMem(4096)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	mustAppend(t, w, messages(0, 10))
	w.Mark((storage.MaxBatchBytes - storage.MaxState) / 29)
	must(t, w.Checkpoint(make([]byte, storage.MaxState)))
	mustAppend(t, w, messages(10, 10))
	must(t, w.Close())
	for _, from := range []uint64{0, 5, 15} {
		readFrom(t, w.Path(), from, 20, storage.ReaderOptions{FS: mem})
	}
	restored := 0
	w = mustOpen(t, "/d", 2, storage.Options{FS: mem, Restore: func(state []byte) error { restored = len(state); return nil }})
	must(t, w.Close())
	if restored != storage.MaxState || w.NextIndex() != 20 {
		t.Errorf("a state of %d bytes, next index %d", restored, w.NextIndex())
	}
}

// TestReaderDoesWithoutMarks: if a mark names a damaged batch, the reader begins at the checkpoint before it, and reports the
// damage.
func TestReaderDoesWithoutMarks(t *testing.T) {
	mem := storagetest.NewMem(4096)
	path := marked(t, mem, 20)
	content := mem.ReadFile(path)
	at := bytes.Index(content, bytes.Repeat([]byte{15}, 1000)) // in the 16th batch, messages 150 to 159
	content[at] ^= 1
	mem.WriteFile(path, content)
	for from := uint64(100); from < 200; from++ {
		r, err := storage.OpenReader(path, storage.ReaderOptions{FS: mem, From: from})
		must(t, err)
		var got []uint64
		var damage *storage.CorruptError
		for err == nil || errors.As(err, &damage) {
			var rec storage.Record
			if rec, err = r.Next(); err == nil {
				got = append(got, rec.Index)
			}
		}
		r.Close()
		if err != io.EOF || (damage == nil) != (from >= 160) || damage != nil && (damage.LostFirst != 150 || damage.LostNext != 160) {
			t.Fatalf("from %d: %v, %v", from, damage, err)
		}
		if want := 200 - max(from, 160) + max(150, from) - from; uint64(len(got)) != want {
			t.Fatalf("from %d: %d messages, want %d", from, len(got), want)
		}
	}
}
