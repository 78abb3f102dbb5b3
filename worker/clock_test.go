package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// offClock is a queue whose clock is off, as if it was read at a bad moment.
type offClock struct {
	queue.Queue
	by *atomic.Int64
}

func (q offClock) Now(ctx context.Context) (time.Time, error) {
	t, err := q.Queue.Now(ctx)
	return t.Add(time.Duration(q.by.Load())), err
}

// A producer that repeats a publish with an unclear outcome continues without a gap, although its messages were drained and the clock was two days
// off for a while.
func TestClockThatJumpsForgetsNobody(t *testing.T) {
	for _, off := range []time.Duration{48 * time.Hour, -48 * time.Hour} {
		onRig(t, func(t *testing.T, r *rig) {
			var by atomic.Int64
			drain := func() {
				t.Helper()
				if err := r.drain(func(c *Config) { c.Queue = offClock{c.Queue, &by} }); err != nil {
					t.Fatal(err)
				}
			}
			r.put(1, 1, 2, 3)
			r.insert(promoted(7, 1, time.Hour, 5, 1))
			drain()
			by.Store(int64(off))
			r.put(2, 1)
			drain()
			by.Store(0)
			r.put(3, 1)
			drain()
			r.put(1, 3, 4)
			r.insert(promoted(8, 1, time.Hour, 5, 1))
			began := time.Now()
			drain()
			if took := time.Since(began); took > DefaultGapTimeout/2 {
				t.Errorf("clock off by %v: draining took %v, as if a message were missing", off, took)
			}
			if got, _ := r.inFile(); !slices.Equal(got, []string{"1/1", "1/2", "1/3", "5/1", "2/1", "3/1", "1/4"}) {
				t.Errorf("clock off by %v: the file holds %q", off, got)
			}
		})
	}
}

// A clock before 1970, which IDs and states cannot represent.
func TestClockBefore1970(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var by atomic.Int64
		by.Store(-int64(60 * 365 * 24 * time.Hour))
		r.queue.Queue = offClock{r.queue.Queue, &by}
		for range 2 {
			r.publish(typ, 2)
			r.publishKeyed("keyed", "order-17")
			r.mustDrain(nil)
			time.Sleep(time.Minute)
		}
		by.Store(0)
		r.publish(typ, 1)
		r.mustDrain(nil)
		got, skipped := r.inFile()
		slices.Sort(got) // producers whose IDs have the same time are in any order
		if !slices.Equal(got, []string{"keyed order-17", "orders 0", "orders 1", "orders 2", "orders 3", "orders 4"}) || skipped != 1 {
			t.Errorf("the file holds %q and %d skip entries", got, skipped)
		}
	})
}
