package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// growing publishes a message before every Fetch.
type growing struct {
	queue.Queue
	n uint64
}

func (g *growing) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	time.Sleep(time.Millisecond)
	g.n++
	if err := g.Insert(ctx, typ, []queue.Message{{ID: queue.NewID(time.Now(), 9, g.n)}}); err != nil {
		return nil, err
	}
	return g.Queue.Fetch(ctx, typ, after, limit)
}

func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		mem := queuetest.NewMemory()
		faulty := &queuetest.Faulty{Queue: mem}
		q := &growing{Queue: faulty}
		for n := range 5000 { // one each millisecond
			time.Sleep(time.Millisecond)
			if err := mem.Insert(t.Context(), "orders", []queue.Message{{ID: queue.NewID(time.Now(), 7, uint64(n+1)), Payload: []byte("12")}}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(p queue.Purged, err error, n, left int) {
			t.Helper()
			if err != nil || p.Messages != int64(n) || p.Bytes != int64(2*n) || n > 0 && (p.First.IsZero() || p.Last.N()-p.First.N() != uint64(n-1)) {
				t.Errorf("purged %+v, %v, want %d", p, err, n)
			}
			old := 0
			for _, m := range stored(t, mem, "orders") {
				if m.ID.Producer() == 7 {
					old++
				}
			}
			if old != left {
				t.Errorf("%d are left, want %d", old, left)
			}
		}
		for _, dryRun := range []bool{true, false} {
			p, err := queue.Purge(t.Context(), q, "orders", begin.Add(2501*time.Millisecond), dryRun)
			left := 2500
			if dryRun {
				left = 5000
			}
			want(p, err, 2500, left)
		}
		p, err := queue.Purge(t.Context(), q, "orders", begin, false)
		want(p, err, 0, 2500)

		// After an error the result counts what was removed.
		faulty.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
			if op == queuetest.OpAck && faulty.Calls(op) == 5 {
				return queuetest.Fault{Kind: queuetest.Lost}
			}
			return queuetest.Fault{}
		}
		p, err = queue.Purge(t.Context(), q, "orders", time.Time{}, false)
		if !errors.Is(err, queuetest.ErrFault) || p.Messages != 1000 {
			t.Errorf("purged %+v, %v", p, err)
		}
		// Every message that was pending at the start, and no later one.
		young := q.n + 48 // published during the search for the end
		if _, err = queue.Purge(t.Context(), q, "orders", time.Time{}, false); err != nil {
			t.Error(err)
		}
		msgs := stored(t, mem, "orders")
		if len(msgs) == 0 || msgs[0].ID.Producer() != 9 || msgs[0].ID.N() > young+1 || len(msgs) < int(q.n-young) {
			t.Errorf("%d messages are left, the first is %v; %d of %d came later", len(msgs), msgs[0].ID, q.n-young, q.n)
		}
	})
}
