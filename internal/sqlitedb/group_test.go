package sqlitedb_test

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
)

// member is a write of a group.
type member struct {
	ctx context.Context
	fn  func(*sqlitedb.Tx) error
}

// writeTogether makes all members wait in this order while the first one is running, and returns the result of each. "panicked" stands for
// a panic.
func writeTogether(t *testing.T, db *sqlitedb.DB, members ...member) []error {
	t.Helper()
	errs := make([]error, len(members))
	var all sync.WaitGroup
	gathered := make(chan struct{})
	for i, m := range members {
		ctx, fn := m.ctx, m.fn
		if ctx == nil {
			ctx = t.Context()
		}
		working := make(chan struct{})
		if i == 0 {
			fn = func(tx *sqlitedb.Tx) error {
				close(working)
				<-gathered
				return m.fn(tx)
			}
		}
		all.Go(func() {
			defer func() {
				if recover() != nil {
					errs[i] = errors.New("panicked")
				}
			}()
			errs[i] = db.Write(ctx, fn)
		})
		if i == 0 {
			<-working
		}
		for db.Waiting() < i {
			runtime.Gosched()
		}
	}
	close(gathered)
	all.Wait()
	return errs
}

func read(tx *sqlitedb.Tx) (n int64, err error) {
	_, err = tx.Get([]any{&n}, "SELECT n FROM counter")
	return n, err
}

// TestWritersShareATransaction: each member sees the writes of those before it, and the writes of one that failed are undone.
func TestWritersShareATransaction(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "f.db"))
	boom := errors.New("boom")
	errs := writeTogether(t, db,
		member{fn: increment},
		member{fn: func(tx *sqlitedb.Tx) error { return errors.Join(increment(tx), increment(tx), boom) }},
		member{fn: func(tx *sqlitedb.Tx) error {
			n, err := read(tx)
			if outside := counter(t, db); err != nil || n != 1 || outside != 0 {
				t.Errorf("the third writer finds %d, %v; others find %d; want 1 of the first, and 0", n, err, outside)
			}
			return increment(tx)
		}})
	if errs[0] != nil || !errors.Is(errs[1], boom) || errs[2] != nil {
		t.Errorf("the writers got %v", errs)
	}
	if n := counter(t, db); n != 2 {
		t.Errorf("counter %d, want 2: those of the first and the third", n)
	}
}

// TestTheFirstOfAGroupFails: no other member has written anything yet, and the others start a new transaction.
func TestTheFirstOfAGroupFails(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "f.db"))
	boom := errors.New("boom")
	errs := writeTogether(t, db, member{fn: func(tx *sqlitedb.Tx) error { return errors.Join(increment(tx), boom) }}, member{fn: increment})
	if n := counter(t, db); !errors.Is(errs[0], boom) || errs[1] != nil || n != 1 {
		t.Errorf("the writers got %v, counter %d", errs, n)
	}
}

// TestNobodyIsToldBeforeTheCommit: no member returns earlier, neither with success nor with data read in the transaction.
func TestNobodyIsToldBeforeTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t, filepath.Join(t.TempDir(), "f.db"))
		gathered := make(chan struct{})
		var told atomic.Int32
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				_ = db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
					switch i {
					case 0:
						<-gathered
					case 1:
						return errors.New("found something that is not to be")
					case 2:
						synctest.Wait()
						if n := told.Load(); n > 0 {
							t.Errorf("%d writers have returned before the commit", n)
						}
					}
					return increment(tx)
				})
				told.Add(1)
			})
			synctest.Wait()
		}
		close(gathered)
		all.Wait()
		if n := counter(t, db); n != 2 {
			t.Errorf("counter %d, want 2", n)
		}
	})
}

// TestAContextEndsNoGroup: the context of one member ends during a long statement; an interrupt would also roll back the writes of the
// others.
func TestAContextEndsNoGroup(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "f.db"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := writeTogether(t, db,
		member{fn: increment},
		member{ctx: ctx, fn: func(tx *sqlitedb.Tx) error {
			time.AfterFunc(time.Millisecond, cancel)
			_, err := tx.Exec("INSERT INTO counter (id, n) WITH RECURSIVE r(i) AS (SELECT 2 UNION ALL SELECT i+1 FROM r LIMIT 300000) SELECT i, i FROM r")
			<-ctx.Done()
			return err
		}},
		member{fn: increment})
	if errs[0] != nil || !errors.Is(errs[1], context.Canceled) || errs[2] != nil {
		t.Errorf("the writers got %v", errs)
	}
	var rows, n int64
	if err := db.Read(t.Context(), func(tx *sqlitedb.Tx) error {
		_, err := tx.Get([]any{&rows, &n}, "SELECT count(*), max(n) FROM counter")
		return err
	}); err != nil || rows != 1 || n != 2 {
		t.Errorf("%d rows, counter %d, %v; want what the first and the third have written", rows, n, err)
	}
}

// TestALostGroup: when SQLite has ended the transaction, or a function panics in it, no member reports success. The handle stays usable.
func TestALostGroup(t *testing.T) {
	for name, end := range map[string]func(*sqlitedb.Tx) error{
		"rolled back": func(tx *sqlitedb.Tx) error { _, err := tx.Exec("ROLLBACK"); return err },
		"panicked":    func(*sqlitedb.Tx) error { panic("in a group") },
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, filepath.Join(t.TempDir(), "f.db"))
			errs := writeTogether(t, db, member{fn: increment}, member{fn: end}, member{fn: increment})
			if errs[0] == nil || !strings.Contains(errs[0].Error(), "nothing of it was kept") || errs[1] == nil || errs[2] != nil {
				t.Errorf("the writers got %v", errs)
			}
			if n := counter(t, db); n != 1 {
				t.Errorf("counter %d, want 1 of the third writer, in a transaction of its own", n)
			}
		})
	}
}

// TestWhoGivesUpHoldsUpNobody: a writer whose context ends while it waits leaves the group to the others.
func TestWhoGivesUpHoldsUpNobody(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "f.db"))
	ctx, cancel := context.WithCancel(t.Context())
	errs := writeTogether(t, db,
		member{fn: func(tx *sqlitedb.Tx) error { cancel(); return increment(tx) }},
		member{ctx: ctx, fn: increment},
		member{fn: increment})
	if n := counter(t, db); errs[0] != nil || !errors.Is(errs[1], context.Canceled) || errs[2] != nil || n != 2 {
		t.Errorf("the writers got %v, counter %d", errs, n)
	}
}

func BenchmarkManyWriters(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "f.db"))
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := db.Write(b.Context(), increment); err != nil {
				b.Error(err)
			}
		}
	})
}
