package storage_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// TestVerifyTellsTheStart: the state that a file begins with, and no later one.
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

// TestVerifyReadsTheDevice: the cache is dropped before anything is read, after what is dirty was written; what fails there
// is told, unless it only says that a descriptor for reading may not sync.
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
		rep, err := storage.Verify(t.Context(), x.path(), storage.VerifyOptions{FS: tap, Device: true})
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
