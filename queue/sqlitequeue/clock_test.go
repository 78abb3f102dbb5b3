package sqlitequeue

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/queue"
)

// A process that started while this machine's clock was two days ahead promotes nothing two days early, and reads the clock again.
func TestClockIsReadAgain(t *testing.T) {
	const ahead = 48 * time.Hour
	for name, f := range map[string]func(q *Queue) error{
		"promote":   func(q *Queue) error { _, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); return err },
		"heartbeat": func(q *Queue) error { return q.Heartbeat(t.Context(), queue.Member{Instance: "me"}) },
	} {
		t.Run(name, func(t *testing.T) {
			q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			at := time.Now()
			m := queue.Message{Type: "orders", ID: queue.NewID(at, 7, 1), Due: at.Add(ahead / 2)}
			if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
				t.Fatal(err)
			}
			q.clock = clock.Server{}
			q.clock.Read(at.Add(ahead), time.Time{})
			if err := f(q); err != nil {
				t.Fatal(err)
			}
			if now, err := q.Now(t.Context()); err != nil || now.Sub(at) > ahead/2 {
				t.Errorf("it is %v, %v; it was %v at first", now, err, at)
			}
			p, err := q.Promote(t.Context(), queue.Limit{Messages: 10})
			if err != nil || p.Messages != 0 || p.Now.Sub(at) > ahead/2 || p.Next.UnixMilli() != m.Due.UnixMilli() {
				t.Errorf("promoted %+v, %v; it is due at %v", p, err, m.Due)
			}
			msgs, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10})
			if err != nil || len(msgs) != 0 {
				t.Errorf("%d messages were promoted a day early (%v)", len(msgs), err)
			}
		})
	}
}
