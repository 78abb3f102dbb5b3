package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// writeAfterDrain opens the file of a type with one message, which a pool has drained.
func (r *rig) writeAfterDrain() *storage.Writer {
	r.t.Helper()
	r.publish(typ, 1)
	pool := r.start(func(c *Config) { c.UntilEmpty = true })
	if err := pool.end(); err != nil {
		r.t.Fatal(err)
	}
	w, err := storage.Open(context.Background(), dir, typ, 1<<50, storage.Options{FS: r.disk, Registry: registry{r.queue, &pool.replica}})
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

// TestFileWithTooMuchToTakeIn: a file with more producers after its last checkpoint than any worker writes cannot exhaust a worker's memory.
func TestFileWithTooMuchToTakeIn(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	onRig(t, func(t *testing.T, r *rig) {
		w := r.writeAfterDrain()
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
		err := r.drain(nil)
		if !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), "more than 800000 producers and gaps behind its last checkpoint") {
			t.Fatal(err)
		}
	})
}

// TestStateOfALaterVersion: workers that are started again and again, and cannot read the state in the newest file, leave only the fence of
// the first one, and name the file.
func TestStateOfALaterVersion(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		w := r.writeAfterDrain()
		if err := errors.Join(w.Checkpoint([]byte{99}), w.Close()); err != nil {
			t.Fatal(err)
		}
		r.publish(typ, 1)
		size := 0
		for i := range 5 {
			if err := r.drain(nil); !errors.Is(err, ledger.ErrState) || !strings.Contains(err.Error(), `the newest file of type "orders" in `+dir) {
				t.Fatalf("start %d: %v", i+1, err)
			}
			now := len(r.disk.ReadFile(testFile))
			if i > 0 && now != size {
				t.Errorf("start %d has written to the file: %d bytes, and %d before", i+1, now, size)
			}
			size = now
		}
	})
}

// insertOfMany stores messages, each of its own producer, of more producers than a ledger remembers.
func (r *rig) insertOfMany() (n int) {
	_, most := ledger.New(ledger.Options{}).Load()
	n = max(most, maxGrowth) + 30_000
	msgs := make([]queue.Message, n)
	for i := range msgs {
		msgs[i].Type, msgs[i].ID = typ, queue.NewID(epoch.Add(time.Duration(i)*time.Millisecond), uint64(i+1), 1)
	}
	r.insert(msgs...)
	return n
}

// TestManyProducersAreDrained: each message has its own producer, as from a program that creates a publisher for each message. Opening a file
// replays the records after its last checkpoint, so a checkpoint is written before they are many, even if every session is killed.
func TestManyProducersAreDrained(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	onRig(t, func(t *testing.T, r *rig) {
		n := r.insertOfMany()
		p := r.start(func(c *Config) { c.UntilEmpty, c.Batch = true, 5000 })
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Appended != uint64(n) || s.Forgotten < 30_000 || s.Forgotten > 60_000 {
			t.Errorf("appended %d, forgot %d", s.Appended, s.Forgotten)
		}
		for _, text := range []string{"many producers", "more producers than the file remembers"} {
			if c := strings.Count(r.log.String(), text); c != 1 {
				t.Errorf("the log says %d times %q", c, text)
			}
		}
		rep, err := storage.Verify(context.Background(), testFile, storage.VerifyOptions{FS: r.disk})
		if err != nil || rep.Checkpoints != 2 { // one on the way, one at the end
			t.Errorf("%d checkpoints, %v", rep.Checkpoints, err)
		}
	})
}

// A session with a handler has the same bound of remembered producers.
func TestManyProducersAreHandled(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	onRig(t, func(t *testing.T, r *rig) {
		n := r.insertOfMany()
		nothing := HandlerFunc(func(context.Context, Lease, []queue.Message) error { return nil })
		p := r.start(handle(nothing, func(c *Config) { c.UntilEmpty, c.Batch = true, 5000 }))
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Handled != uint64(n) || s.Forgotten < 30_000 || s.Forgotten > 60_000 {
			t.Errorf("handled %d, forgot %d", s.Handled, s.Forgotten)
		}
		if log := r.log.String(); strings.Count(log, "more producers than a session remembers") != 1 || strings.Contains(log, "the file") {
			t.Errorf("logged:\n%s", log)
		}
	})
}

// TestSpoiledMessagesAtTheFrontOfATypeThatForgets: a file remembers more messages of transactions than it may, and those that it could forget come after
// more spoiled messages than are fetched at a time. Looking for what it can forget must not keep the walk at the front.
func TestSpoiledMessagesAtTheFrontOfATypeThatForgets(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	onRig(t, func(t *testing.T, r *rig) {
		w := r.writeAfterDrain()
		ids := make([]queue.ID, ledger.MaxLoose+1)
		records := make([]storage.Record, len(ids))
		for i := range records {
			ids[i] = queue.NewID(epoch.Add(time.Minute), uint64(i+1000), 0)
			records[i] = storage.Record{ID: ids[i][:]}
		}
		if err := errors.Join(w.Append(records), w.Close()); err != nil {
			t.Fatal(err)
		}
		const batch, spoiled = 10, 100
		for n := range uint64(spoiled) {
			r.put(1, n+1)
			r.spoil(badHeader, n+1)
		}
		last := queue.NewID(epoch.Add(time.Hour), 2, 1)
		r.insert(queue.Message{Type: typ, ID: last})
		fetches := 0
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op != queuetest.OpFetch {
				return queuetest.Fault{}
			}
			if fetches++; fetches > spoiled { // a walk that never ends takes no time
				return queuetest.Fault{Kind: queuetest.Hang}
			}
			return queuetest.Fault{}
		})
		p := r.start(func(c *Config) { c.Batch = batch })
		time.Sleep(20 * time.Second)
		p.cancel()
		<-p.done
		if n := r.left(); n != spoiled {
			t.Errorf("after %d fetches of %d messages, %d are pending, want the %d spoiled ones", fetches, batch, n, spoiled)
		}
	})
}
