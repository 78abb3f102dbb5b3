package sqlitelock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/lock/sqlitelock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openAt(t testing.TB, path string) lock.Store {
	t.Helper()
	s, err := sqlitelock.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func TestSQLiteConforms(t *testing.T) {
	locktest.Run(t, func(t testing.TB) locktest.Backend {
		path := filepath.Join(t.TempDir(), "fencepost.db")
		return locktest.Backend{
			Open: func() lock.Store { return openAt(t, path) },
			Delete: func(name string) error {
				db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
				if err != nil {
					return err
				}
				err = db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
					_, err := tx.Exec("DELETE FROM locks WHERE name = ?", name)
					return err
				})
				return errors.Join(err, db.Close())
			},
		}
	})
}

func TestTokensSurviveReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fencepost.db")
	var last int64
	for i := range 3 {
		l, err := lock.New(openAt(t, path), lock.Options{})
		if err != nil {
			t.Fatal(err)
		}
		le, err := l.TryAcquire(t.Context(), "n")
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if le.Token() <= last {
			t.Errorf("token %d after %d", le.Token(), last)
		}
		last = le.Token()
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A file of the first version, without the column for shares, queues and other fields, remains usable.
func TestAFileOfTheFirstVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fencepost.db")
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Migrate(t.Context(), `CREATE TABLE locks (name TEXT PRIMARY KEY, token INTEGER NOT NULL, version BLOB NOT NULL,
		hold_id BLOB, lease_ms INTEGER, host TEXT, pid INTEGER, instance TEXT, boot TEXT, pid_namespace TEXT, started TEXT,
		why TEXT, since_us INTEGER NOT NULL, at_us INTEGER NOT NULL) STRICT, WITHOUT ROWID`,
		`INSERT INTO locks (name, token, version, since_us, at_us) VALUES ('n', 1234567890123456, zeroblob(12), 1, 1)`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := lock.New(openAt(t, path), lock.Options{})
		if err != nil {
			t.Fatal(err)
		}
		le, err := l.TryAcquire(t.Context(), "n")
		if err != nil || le.Token() <= 1234567890123456 {
			t.Fatalf("%v, %v", le, err)
		}
		if err := errors.Join(l.RequestRelease(t.Context(), "n", "why"), l.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenErrorsNameTheRemedy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := sqlitelock.Open(t.Context(), path)
	if !errors.Is(err, lock.ErrPermanent) || !strings.Contains(err.Error(), "another path") {
		t.Errorf("got %v", err)
	}
	for _, path := range []string{"", ":memory:", "sqlite://q.db", t.TempDir()} {
		if _, err := sqlitelock.Open(t.Context(), path); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%q: got %v", path, err)
		}
	}
	if _, err := sqlitelock.Open(t.Context(), "mongodb://bob:s3cret@h/db"); !errors.Is(err, lock.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a URL: %v", err)
	}
}

func TestAClosedStoreIsAPermanentError(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "fencepost.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Read(t.Context(), "n"); !errors.Is(err, lock.ErrPermanent) {
		t.Errorf("got %v, want ErrPermanent", err)
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	l, err := lock.New(openAt(b, filepath.Join(b.TempDir(), "fencepost.db")), lock.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(context.Background())
	b.ReportAllocs()
	for b.Loop() {
		le, err := l.Acquire(b.Context(), "n")
		if err != nil {
			b.Fatal(err)
		}
		if err := le.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "fencepost")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	store, err := sqlitelock.Open(ctx, filepath.Join(dir, "fencepost.db"))
	if err != nil {
		panic(err)
	}
	locker, err := lock.New(store, lock.Options{})
	if err != nil {
		panic(err)
	}
	defer locker.Close(ctx)

	lease, err := locker.Acquire(ctx, "orders", lock.WithWhy("nightly export"))
	if err != nil {
		panic(err)
	}
	defer lease.Release(ctx)
	// Work under lease.Context(), and pass lease.Token() to the resource you write to.
	fmt.Println(lease.Name(), lease.Token() > 0, context.Cause(lease.Context()))
	// Output: orders true <nil>
}

// TestReplacedDatabase: a grant that may have been written, in the old file, is unclear. Later grants are certainly not written.
func TestReplacedDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fencepost.db")
	s := openAt(t, path)
	defer s.Close()
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	for i, permanent := range []bool{false, true} {
		h := lock.Hold{ID: lock.NewHoldID(), Lease: time.Second}
		if _, err := s.Create(t.Context(), "n", h, lock.NewVersion()); !errors.Is(err, sqlitedb.ErrReplaced) || errors.Is(err, lock.ErrPermanent) != permanent {
			t.Errorf("write %d: %v; want ErrReplaced, permanent: %t", i, err, permanent)
		}
	}
}

func TestDamagedRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fencepost.db")
	s := openAt(t, path)
	defer s.Close()
	locktest.Damaged(t, s, func(name string) {
		db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
			_, err := tx.Exec("UPDATE locks SET more = '{' WHERE name = ?", name)
			return err
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkRenewMany(b *testing.B) {
	s := openAt(b, filepath.Join(b.TempDir(), "fencepost.db"))
	defer s.Close()
	locktest.BenchmarkRenewMany(b, s)
}
