package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// offClock is a queue whose clock is off, as one that was read in a bad second.
type offClock struct {
	queue.Queue
	by *atomic.Int64
}

func (q offClock) Now(ctx context.Context) (time.Time, error) {
	t, err := q.Queue.Now(ctx)
	return t.Add(time.Duration(q.by.Load())), err
}

// A producer whose outcomes are unclear goes on after two workers have drained its messages, of which one took today for the day after tomorrow.
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
				t.Errorf("clock off by %v: draining took %v, as if something were missing", off, took)
			}
			if got, _ := r.inFile(); !slices.Equal(got, []string{"1/1", "1/2", "1/3", "5/1", "2/1", "3/1", "1/4"}) {
				t.Errorf("clock off by %v: the file holds %q", off, got)
			}
		})
	}
}

// What a pool knows from the file only goes when the queue's clock says so and enough others were heard of later. What it has heard of itself, or has
// watched for as long, goes by no clock but its own.
func TestWhoIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, retention = spareProducers + 100, 24 * time.Hour
		l, _ := testLedger()
		day := retention.Milliseconds()
		for p := range uint64(n) {
			l.judge(message(p, 1), int64(p))
			l.delayed.note(queue.NewID(epoch, p, 1), int64(p))
		}
		if l.forget(10*day, retention); len(l.last) != n || len(l.delayed.of) != n {
			t.Fatalf("%d producers are left, which were all heard of just now", len(l.last))
		}
		read, _ := testLedger()
		restore := func() {
			t.Helper()
			if err := read.restore(l.state()); err != nil {
				t.Fatal(err)
			}
		}
		restore()
		if read.forget(day, retention); len(read.last) != n {
			t.Errorf("%d of %d producers are left, and no clock says that any of them is silent", len(read.last), n)
		}
		read.forget(10*day, retention)
		if len(read.last) != spareProducers || read.last[99] != nil || read.last[100] == nil {
			t.Errorf("%d producers are left", len(read.last))
		}
		if len(read.delayed.of) != spareProducers || read.delayed.of[99] != nil || read.delayed.of[100] == nil || read.delayed.spans != spareProducers {
			t.Errorf("%d publishers of delayed messages are left, with %d spans", len(read.delayed.of), read.delayed.spans)
		}

		// The sessions of a pool are short, and the pool is not.
		for _, same := range []bool{true, false} {
			restore()
			time.Sleep(retention - time.Second)
			if read.forget(0, retention); len(read.last) != n {
				t.Errorf("%d producers are left before their time", len(read.last))
			}
			before := lives{read.last, read.delayed.of}
			if !same { // another pool has appended a message
				l.judge(message(n-1, 2), 0)
				l.delayed.note(queue.NewID(epoch, n-1, 2), 0)
			}
			next, _ := testLedger()
			if err := next.restore(l.state()); err != nil {
				t.Fatal(err)
			}
			next.recall(before)
			time.Sleep(2 * time.Second)
			next.forget(0, retention)
			if want := map[bool]int{true: 0, false: 1}[same]; len(next.last) != want || len(next.delayed.of) != want {
				t.Errorf("%d and %d producers are left, want %d", len(next.last), len(next.delayed.of), want)
			}
		}
	})
}

// A clock before 1970, which IDs and states do not reach.
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
