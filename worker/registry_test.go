package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// badRegistry is a queue whose registry of files takes no updates, until it is well.
type badRegistry struct {
	queue.Queue
	update func(ctx context.Context, well <-chan struct{}) (bool, error)
	well   chan struct{} // closed then
	asked  atomic.Int64
	acked  atomic.Int64
}

func (q *badRegistry) UpdateFile(ctx context.Context, typ string, f queue.File) (bool, error) {
	q.asked.Add(1)
	select {
	case <-q.well:
		return q.Queue.UpdateFile(ctx, typ, f)
	default:
		return q.update(ctx, q.well)
	}
}

func (q *badRegistry) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	q.acked.Add(int64(len(ids)))
	return q.Queue.Ack(ctx, typ, ids)
}

// A holder that the registry does not take note of appends nothing and acknowledges nothing. It goes on when the registry is well.
func TestNothingIsAppendedWithoutTheRegistry(t *testing.T) {
	for name, update := range map[string]func(context.Context, <-chan struct{}) (bool, error){
		"it names another file": func(context.Context, <-chan struct{}) (bool, error) { return false, nil },
		"it fails":              func(context.Context, <-chan struct{}) (bool, error) { return false, errors.New("the server is away") },
		"it does not answer": func(ctx context.Context, well <-chan struct{}) (bool, error) {
			select {
			case <-well:
				return false, errors.New("the server went away meanwhile")
			case <-ctx.Done():
				return false, ctx.Err()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 50)
				q := &badRegistry{Queue: r.queue, update: update, well: make(chan struct{})}
				p := r.start(func(c *Config) { c.Queue = q })
				time.Sleep(20 * time.Second)
				if got := contents(t, r.disk, testFile); len(got) > 0 || q.acked.Load() > 0 || r.pending() != 50 {
					t.Errorf("%d records in the file, %d acknowledged, %d of 50 messages are pending", len(got), q.acked.Load(), r.pending())
				}
				if q.asked.Load() == 0 {
					t.Error("the registry was not asked: the scenario proves nothing")
				}
				close(q.well)
				select {
				case <-p.done: // it has given up the only type it serves, as for any file that cannot be used
				case <-time.After(2 * time.Minute):
					p.stop()
				}
				if err := r.drain(nil); err != nil {
					t.Fatal(err)
				}
				r.complete(typ)
			})
		})
	}
}
