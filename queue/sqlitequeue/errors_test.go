package sqlitequeue

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// TestInsertErrors: what is known not to be stored is refused. Nobody knows what a commit that failed has left.
func TestInsertErrors(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("disk I/O error")
	for name, c := range map[string]struct {
		ctx                context.Context
		err                error
		written            bool
		refused, temporary bool
	}{
		"rolled back":             {t.Context(), broken, false, true, false},
		"rolled back, in a hurry": {ended, broken, false, true, true},
		"never begun":             {t.Context(), sqlitedb.ErrBusy, false, true, true},
		"no room for the commit":  {t.Context(), sqlitedb.ErrDiskFull, true, true, true},
		"the commit failed":       {t.Context(), broken, true, false, false},
	} {
		var ie *queue.InsertError
		if err := insertError(c.ctx, "insert", c.err, c.written); !errors.As(err, &ie) || ie.Refused != c.refused || ie.Temporary != c.temporary {
			t.Errorf("%s: %+v", name, ie)
		}
	}
}

// TestOldNotesAreRemoved: what was settled is remembered for as long as a publisher may repeat it, and not longer.
func TestOldNotesAreRemoved(t *testing.T) {
	q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	now := q.now()
	if err := q.Delay(t.Context(), []queue.Message{{Type: "orders", ID: queue.NewID(now, 7, 1), Due: now.Add(-time.Second)}}); err != nil {
		t.Fatal(err)
	}
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 {
		t.Fatalf("promoted %d, %v", p.Messages, err)
	}
	for age, want := range map[time.Duration]int{queue.SettledFor - time.Minute: 1, queue.SettledFor + time.Minute: 0} {
		var notes int
		back := errors.New("undo it")
		err := q.db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
			if _, _, err := promote(tx, nil, now.Add(age)); err != nil {
				return err
			}
			if _, err := tx.Get([]any{&notes}, `SELECT count(*) FROM queue_delayed_settled`); err != nil {
				return err
			}
			return back
		})
		if !errors.Is(err, back) || notes != want {
			t.Errorf("%d notes after %v, want %d (%v)", notes, age, want, err)
		}
	}
}
