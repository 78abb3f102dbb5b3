package sqlitequeue

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// TestInsertErrors: a message that is known not to be stored is refused. After a failed commit the outcome is unclear.
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
		"never begun":             {t.Context(), sqlitedb.ErrNotBegun, false, true, true},
		"no room for the commit":  {t.Context(), sqlitedb.ErrDiskFull, true, true, true},
		"the commit failed":       {t.Context(), broken, true, false, false},
		"replaced before":         {t.Context(), sqlitedb.ErrReplaced, false, true, false},
		"replaced meanwhile":      {t.Context(), sqlitedb.ErrReplaced, true, false, false},
	} {
		var ie *queue.InsertError
		if err := insertError(c.ctx, "insert", c.err, c.written); !errors.As(err, &ie) || ie.Refused != c.refused || ie.Temporary != c.temporary {
			t.Errorf("%s: %+v", name, ie)
		}
	}
}

// TestReplacedDatabase: a write during which the database was replaced is in doubt, and later ones are refused.
func TestReplacedDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	q, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	now := q.now()
	insert := func(n uint64) (ie *queue.InsertError) {
		t.Helper()
		err := q.Insert(t.Context(), "orders", []queue.Message{{Type: "orders", ID: queue.NewID(now, 7, n)}})
		if err != nil && (!errors.As(err, &ie) || !errors.Is(err, queue.ErrReplaced)) {
			t.Fatal(err)
		}
		return ie
	}
	if err := insert(1); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if ie := insert(2); ie == nil || ie.Refused {
		t.Errorf("the write in doubt: %v", ie)
	}
	if ie := insert(3); ie == nil || !ie.Refused || ie.Temporary {
		t.Errorf("the write after it: %v", ie)
	}
	if _, err := q.Depth(t.Context(), "orders", 1); !errors.Is(err, queue.ErrReplaced) {
		t.Errorf("a read: %v", err)
	}
}

// TestOldNotesAreRemoved: notes about settled messages are kept for as long as a publisher may retry, by the time that promoters have
// measured. So are those of earlier versions, which have no time.
func TestOldNotesAreRemoved(t *testing.T) {
	q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	at := time.UnixMilli(1_700_000_000_000)
	old := queue.NewID(at, 8, 1)
	mustExec(t, q, `INSERT INTO queue_delayed_settled (id) VALUES (?)`, old[:])
	for n, step := range []struct {
		passed time.Duration
		notes  int
	}{
		{0, 2},
		{queuedriver.SettledFor + 30*time.Minute, 3},
		{queuedriver.SettledFor + 2*time.Hour, 2}, // this one and the one before
	} {
		mustExec(t, q, `UPDATE queue_delayed_passed SET passed = ?`, step.passed.Milliseconds())
		if err := q.Delay(t.Context(), []queue.Message{{Type: "orders", ID: queue.NewID(at, 7, uint64(n+1)), Due: at}}); err != nil {
			t.Fatal(err)
		}
		q.forgot = time.Time{}
		if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 {
			t.Fatalf("promoted %d, %v", p.Messages, err)
		}
		notes := 0
		if err := q.db.Read(t.Context(), func(tx *sqlitedb.Tx) error {
			_, err := tx.Get([]any{&notes}, `SELECT count(*) FROM queue_delayed_settled`)
			return err
		}); err != nil || notes != step.notes {
			t.Errorf("%v: %d notes, want %d (%v)", step.passed, notes, step.notes, err)
		}
	}
}

// TestPassedIsWhatWasSeen: a promoter adds the time elapsed since its own promotion, if no other process has promoted since.
func TestPassedIsWhatWasSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	var qs []*Queue
	for range 2 {
		q, err := Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		qs = append(qs, q)
	}
	n := uint64(0)
	promote := func(q *Queue) (passed time.Duration) {
		t.Helper()
		n++
		if err := q.Delay(t.Context(), []queue.Message{{Type: "orders", ID: queue.NewID(time.Now(), 7, n), Due: time.UnixMilli(1)}}); err != nil {
			t.Fatal(err)
		}
		if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 {
			t.Fatalf("promoted %d, %v", p.Messages, err)
		}
		if err := q.db.Read(t.Context(), func(tx *sqlitedb.Tx) (err error) {
			_, passed, err = readPassed(tx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return passed
	}
	if passed := promote(qs[0]); passed != 0 {
		t.Errorf("%v before the first promotion", passed)
	}
	seen := clock.Start()
	for seen.Elapsed() < 20*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	passed := promote(qs[0])
	if passed < 20*time.Millisecond || passed > seen.Elapsed()+time.Second {
		t.Errorf("%v passed, by the count %v", seen.Elapsed(), passed)
	}
	if other := promote(qs[1]); other != passed {
		t.Errorf("a new process counts %v, want %v", other, passed)
	}
	if again := promote(qs[0]); again != passed {
		t.Errorf("a process that was not the last to promote counts %v, want %v", again, passed)
	}
}
