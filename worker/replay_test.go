package worker

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// TestFileWithTooMuchToTakeIn: a file of more producers behind its last checkpoint than any worker writes takes no worker's memory.
func TestFileWithTooMuchToTakeIn(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 1)
		pool := r.start(func(c *Config) { c.UntilEmpty = true })
		if err := pool.end(); err != nil {
			t.Fatal(err)
		}
		w, err := storage.Open(context.Background(), dir, typ, 1<<50, storage.Options{FS: r.disk, Registry: registry{r.queue, pool.Pool}})
		if err != nil {
			t.Fatal(err)
		}
		ids := make([]queue.ID, 100_000)
		records := make([]storage.Record, len(ids))
		for producer := uint64(0); producer <= maxReplay; {
			for i := range records {
				producer++
				ids[i] = queue.NewID(epoch, producer, 1)
				records[i] = storage.Record{ID: ids[i][:]}
			}
			if err := w.Append(records); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(func() error { _, err := w.Sync(); return err }(), w.Close()); err != nil {
			t.Fatal(err)
		}
		r.publish(typ, 1)
		err = r.drain(nil)
		if !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), "more than 800000 producers and gaps behind its last checkpoint") {
			t.Fatal(err)
		}
	})
}
