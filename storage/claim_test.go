package storage_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// TestRepairOfAClaim: a record after damage says how many records are lost. A plausible number is marked as lost. If the damaged bytes cannot
// have held that many, nothing is marked as lost, and the registry does not change.
func TestRepairOfAClaim(t *testing.T) {
	race.Skip(t)
	for _, tc := range []struct {
		claims, registered uint64
		refused            bool
		behind             int64 // if not 0, an open record makes the claim, and says that its fence is this many bytes after it
	}{
		{claims: 1000},
		{claims: 1 << 60, refused: true},
		{claims: 5_000_000, refused: true},
		{claims: 5_000_000, registered: 5_000_000}, // the registry confirms that they existed
		{claims: 1 << 50, behind: 1 << 50, refused: true},
		{claims: 5_000_000, behind: 1 << 20, refused: true},
		{claims: 5_000_000, behind: -8, refused: true},
	} {
		b := newBuilder()
		b.region(1, 1000, storage.Holder{})
		b.batch(messages(0, 3), 0)
		hole := len(b.data)
		b.batch(messages(3, 1), 0)
		b.synced, b.next = int64(len(b.data)), tc.claims
		if tc.behind != 0 {
			b.data = b.data[:hole+8]
			fence := int64(len(b.data)) + tc.behind
			b.epoch, b.session, b.synced = 2, 2000, int64(len(b.data))
			b.add("FPO1", storage.OpenBody(fence, fence, 0), 0, 0, 0)
		} else {
			b.batch(messages(4, 1), 0)
			b.data[hole+100] ^= 1
		}
		mem := storagetest.NewMem(4096)
		must(t, mem.Mkdir("/d"))
		mem.WriteFile("/d/orders.fpl", b.data)
		x := newWorld("/d")
		x.Entry, x.Registered = storage.Entry{FileID: storage.FileID{1, 2, 3}, Generation: 1, Epoch: 1, DurableIndex: tc.registered}, true

		o := storage.Options{FS: mem, Registry: x, Salvage: true}
		w, err := storage.Open(context.Background(), "/d", "orders", 3, o)
		if tc.refused {
			if !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), "cannot have held that many") {
				t.Errorf("%d: %v", tc.claims, err)
			}
			if x.Entry.DurableIndex != tc.registered || len(mem.Names()) != 1 {
				t.Errorf("%d: registered up to %d, files %q", tc.claims, x.Entry.DurableIndex, mem.Names())
			}
			continue
		}
		if err != nil {
			t.Errorf("%d: %v", tc.claims, err)
			continue
		}
		next, report, err := w.Compact(context.Background(), nil, storage.CompactOptions{})
		if err != nil || report.Lost != tc.claims-3 || next.NextIndex() != tc.claims+1 {
			t.Errorf("%d: %+v, %v", tc.claims, report, err)
		}
	}
}
