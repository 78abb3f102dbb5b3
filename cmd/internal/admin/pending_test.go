package admin

import (
	"errors"
	"testing"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// Removing pending messages or foreign keys waits for its turn, too; only counting them does not.
func TestPurgesTakeTurns(t *testing.T) {
	m := newMorgue(t, 0)
	memory := m.Queue.(*queuetest.Memory)
	p, err := queue.NewPublisher(t.Context(), memory, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(t.Context()) })
	id, err := p.Publish(t.Context(), "orders", []byte("x"), nil)
	if err != nil {
		t.Fatal(err)
	}
	memory.PlantForeign("orders", "x1", "x2")
	purges := map[string]func(dryRun bool) (Outcome, error){
		"IDs": func(dryRun bool) (Outcome, error) {
			return PurgeIDs(t.Context(), m.Backend, "orders", []queue.ID{id}, dryRun, Turn{})
		},
		"foreign keys": func(dryRun bool) (Outcome, error) {
			return PurgeForeign(t.Context(), m.Backend, "orders", dryRun, Turn{})
		},
	}
	lease, err := m.Locker.Acquire(t.Context(), queue.AdminLock("orders"))
	if err != nil {
		t.Fatal(err)
	}
	for name, purge := range purges {
		if o, err := purge(false); !errors.As(err, new(*BusyError)) || o.Done != 0 {
			t.Errorf("%s, while another program changes the type: %+v, %v", name, o, err)
		}
		if o, err := purge(true); err != nil || o.Chosen == 0 {
			t.Errorf("%s are counted: %+v, %v", name, o, err)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, purge := range purges {
		if o, err := purge(false); err != nil || o.Done == 0 || o.Done != o.Chosen {
			t.Errorf("%s are removed: %+v, %v", name, o, err)
		}
	}
}
