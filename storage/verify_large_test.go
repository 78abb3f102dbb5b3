package storage_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// TestLargeFile: Verify reads large files ahead in another goroutine. With records of all sizes, below and above the size of
// one read, it sees the same records as a Reader, and finds damage and read errors anywhere.
func TestLargeFile(t *testing.T) {
	race.Skip(t)
	mem := storagetest.NewMem(4096)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	n := 0
	for w.Size() < 60<<20 {
		payload := []int{10, 3000, 100, 300 << 10, 50, 700 << 10, 0, 3 << 20, 200 << 10}[n%9]
		if n > 100 {
			payload = 1000
		}
		recs := messages(n, 10)
		recs[3].Payload = make([]byte, payload)
		mustAppend(t, w, recs)
		n += 10
	}
	must(t, w.Checkpoint(nil))
	must(t, w.Close())
	if all := readAll(t, mem, w.Path()); len(all) != n {
		t.Fatalf("%d records, want %d", len(all), n)
	}
	next := 0
	rep, err := storage.Verify(context.Background(), w.Path(), storage.VerifyOptions{FS: mem, Deep: true, Visit: func(r storage.Record) error {
		if number(r.ID) != next || r.Index != uint64(next) {
			return fmt.Errorf("record %d is %q", next, r.ID)
		}
		next++
		return nil
	}})
	if err != nil || rep.Err() != nil || rep.Messages != uint64(n) {
		t.Fatalf("%+v, %v", rep, err)
	}

	data := mem.ReadFile(w.Path())
	for _, at := range []int{5000, len(data) / 3, len(data) / 2, len(data) - 20000} {
		data[at] ^= 1
		rep := verifyBytes(t, data)
		var damage *storage.CorruptError
		if !errors.As(rep.Err(), &damage) || damage.Offset > int64(at) || damage.End <= int64(at) {
			t.Errorf("a bit at %d: %v", at, rep.Err())
		}
		data[at] ^= 1
	}

	bad := errors.New("the disk cannot read this")
	for _, at := range []int64{1 << 20, w.Size() / 2, w.Size() - 1<<20} {
		tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpRead && c.Off <= at && c.Off+c.Len > at {
				return &storagetest.Fault{Err: bad}
			}
			return nil
		}}
		rep, err := storage.Verify(context.Background(), w.Path(), storage.VerifyOptions{FS: tap})
		if !errors.Is(err, bad) || rep == nil {
			t.Errorf("a read error at %d: %v", at, err)
		}
	}
}
