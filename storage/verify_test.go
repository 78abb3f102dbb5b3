package storage_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// TestVerifyTellsTheStart: Start gets the state at the start of a file, and no later one.
func TestVerifyTellsTheStart(t *testing.T) {
	b := newBuilder()
	b.region(1, 1, storage.Holder{})
	b.add("FPC1", storage.CheckpointBody(0, []byte("predecessor")), 0, 0, 0)
	b.batch(messages(0, 2), 0)
	b.add("FPC1", storage.CheckpointBody(0, []byte("later")), 0, 0, 0)
	var got []string
	o := storage.VerifyOptions{Start: func(state []byte) error { got = append(got, string(state)); return nil }}
	rep, err := storage.VerifyBytes(b.data, o)
	must(t, err)
	if fmt.Sprint(got) != "[predecessor]" || rep.Err() != nil || rep.Checkpoints != 2 {
		t.Errorf("got %q, %+v", got, rep)
	}
	o.Start = func([]byte) error { return syscall.ENOSYS }
	if _, err := storage.VerifyBytes(b.data, o); err != syscall.ENOSYS {
		t.Errorf("got %v", err)
	}
}

// TestVerifyListsGaps: the list is bounded, the count is not.
func TestVerifyListsGaps(t *testing.T) {
	b := newBuilder()
	b.region(1, 1, storage.Holder{})
	recs := messages(0, 2500)
	for i := range recs {
		if i%2 == 1 {
			recs[i].Kind = storage.KindAfterGap
		}
	}
	b.batch(recs, 0)
	rep, err := storage.VerifyBytes(b.data, storage.VerifyOptions{})
	must(t, err)
	if rep.Gaps != 1250 || len(rep.GapList) != 1000 || rep.GapList[2].Index != 5 || string(rep.GapList[2].ID) != string(recs[5].ID) {
		t.Errorf("%d gaps, %d listed: %+v", rep.Gaps, len(rep.GapList), rep.GapList[:3])
	}
}

// TestVerifyReadsTheDevice: dirty pages are written, and then the cache is dropped, before anything is read. A failure of these steps
// is reported, unless it only means that a read-only descriptor may not sync.
func TestVerifyReadsTheDevice(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	for _, c := range []struct {
		op    storagetest.Op
		fault error
		fails bool
	}{{"", nil, false}, {storagetest.OpDatasync, syscall.EIO, true}, {storagetest.OpDatasync, syscall.EBADF, false}, {storagetest.OpDropCache, syscall.EIO, true}} {
		var ops []storagetest.Op
		tap := &storagetest.Tap{FS: mem, Before: func(k storagetest.Call) *storagetest.Fault {
			ops = append(ops, k.Op)
			if c.fault != nil && k.Op == c.op {
				return &storagetest.Fault{Err: c.fault}
			}
			return nil
		}}
		rep, err := storage.Verify(t.Context(), x.Path(), storage.VerifyOptions{FS: tap, Device: true})
		if (err != nil) != c.fails || !c.fails && rep.Err() != nil {
			t.Errorf("%v: %v", c, err)
		}
		synced, dropped := -1, -1
		for i, op := range ops {
			switch op {
			case storagetest.OpDatasync:
				synced = i
			case storagetest.OpDropCache:
				dropped = i
			case storagetest.OpRead:
				if dropped < 0 {
					t.Errorf("%v: read before the cache was dropped: %v", c, ops)
				}
			}
		}
		if synced < 0 || dropped < synced && c.op != storagetest.OpDatasync {
			t.Errorf("%v: %v", c, ops)
		}
	}
}

// TestMalformedBodies: both a reader and Verify report an accepted record with a malformed body as damage, and read the records around
// it.
func TestMalformedBodies(t *testing.T) {
	batch := storage.BatchBody(messages(2, 3))
	for name, c := range map[string]struct {
		magic string
		body  []byte
		count uint32
		next  uint64 // index after the malformed record
	}{
		"fence":              {"FPF1", []byte{3, 4, 1, 2, 3, 4}, 0, 2},
		"checkpoint":         {"FPC1", storage.CheckpointBody(0, []byte("state"))[:12], 0, 2},
		"seal":               {"FPS1", []byte("too short"), 0, 2},
		"batch":              {"FPB1", batch[:len(batch)-1], 3, 5},
		"batch with a rest":  {"FPB1", append(batch, 0), 3, 5},
		"batch of one fewer": {"FPB1", batch, 4, 6},
	} {
		b := newBuilder()
		b.region(3, 3000, storage.Holder{ID: "test"})
		b.batch(messages(0, 2), 0)
		at := int64(len(b.data))
		if c.magic == "FPF1" {
			b.epoch, b.session = 4, 4000
			rec, _ := storage.BuildRecord(b.data[:4096], storage.RecordSpec{Magic: "FPF1", Offset: at, Epoch: 4, Session: 4000, DurableEnd: 4096, Body: c.body})
			b.data = append(b.data, rec...)
			b.add("FPO1", storage.OpenBody(b.end, at, 0), 0, 0, 0)
		} else {
			b.add(c.magic, c.body, c.count, 0, 0)
		}
		if c.magic != "FPS1" {
			b.batch(messages(int(c.next), 2), 0)
		}
		var visited []uint64
		rep, err := storage.VerifyBytes(b.data, storage.VerifyOptions{Visit: func(r storage.Record) error { visited = append(visited, r.Index); return nil }})
		must(t, err)
		recs, errs := salvage(t, b.data)
		var damage *storage.CorruptError
		if len(errs) != 1 || !errors.As(errs[0], &damage) || damage.Offset != at || strings.ReplaceAll(fmt.Sprint(errs), "sample.fpl", "fuzz.fpl") != fmt.Sprint(rep.Corrupt) {
			t.Errorf("%s: the reader finds %v, verify %v", name, errs, rep.Corrupt)
		}
		var read []uint64
		for _, r := range recs {
			read = append(read, r.Index)
		}
		if fmt.Sprint(read) != fmt.Sprint(visited) || rep.Messages != uint64(len(read)) || len(read) < 2 || c.magic != "FPS1" && read[len(read)-1] != c.next+1 {
			t.Errorf("%s: the reader returns %v, verify visits %v and counts %d", name, read, visited, rep.Messages)
		}
	}
}

// TestDuplicatesThatWereNotCompared: candidates beyond the limit are counted without comparison, and the report of a Verify that ended before
// it compared the others says so.
func TestDuplicatesThatWereNotCompared(t *testing.T) {
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	for range 2 {
		b.batch(messages(0, 1100), 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	mem := storagetest.NewMem(4096)
	mem.WriteFile("/f", b.data)
	rep, err := storage.Verify(ctx, "/f", storage.VerifyOptions{FS: mem, Deep: true, Progress: func(int64, int64) { cancel() }})
	if !errors.Is(err, context.Canceled) || rep == nil {
		t.Fatalf("%v, %v", rep, err)
	}
	if err := rep.Err(); rep.DuplicateCount != 100 || len(rep.Duplicates) != 0 || !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), "/f: 100 IDs") {
		t.Errorf("%d duplicates: %v", rep.DuplicateCount, err)
	}
}

// TestHeaderErrorSaysWhatIsLeft: a file with a damaged header may have good records; a file cut within its header has none.
func TestHeaderErrorSaysWhatIsLeft(t *testing.T) {
	data := newBuilder().data
	_, err := storage.VerifyBytes(data[:4000], storage.VerifyOptions{})
	checkError(t, err, new(*storage.HeaderError), storage.ErrIntegrity, "only 4000 bytes", "no record is left: restore the file")
	data[300] ^= 1
	_, err = storage.VerifyBytes(data, storage.VerifyOptions{})
	checkError(t, err, new(*storage.HeaderError), storage.ErrIntegrity, "checksum", "restore the first 4096 bytes")
	for name, change := range map[string]func(b []byte){
		"generation 0":                  func(b []byte) { b[48] = 0 },
		"a first index in generation 1": func(b []byte) { b[56] = 1 },
	} {
		b := newBuilder().data
		change(b)
		_, err := storage.VerifyBytes(rehash(b), storage.VerifyOptions{})
		if err == nil || !errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
