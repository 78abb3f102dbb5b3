package sqlitedb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
)

// opened returns a handle on a database in a directory of its own. The counter is 1.
func opened(t *testing.T) (db *sqlitedb.DB, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "data", "f.db")
	db = open(t, path)
	if err := db.Write(t.Context(), increment); err != nil {
		t.Fatal(err)
	}
	return db, path
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// replacements are ways in which operators replace a database that is in use.
var replacements = map[string]func(t *testing.T, path string){
	"all files removed": func(t *testing.T, path string) {
		must(t, os.Remove(path), os.Remove(path+"-wal"), os.Remove(path+"-shm"))
	},
	"database removed": func(t *testing.T, path string) { must(t, os.Remove(path)) },
	"a copy moved over it": func(t *testing.T, path string) {
		b, err := os.ReadFile(path)
		must(t, err, os.WriteFile(path+".copy", b, 0o640), os.Rename(path+".copy", path))
	},
	"log removed":           func(t *testing.T, path string) { must(t, os.Remove(path+"-wal")) },
	"shared memory removed": func(t *testing.T, path string) { must(t, os.Remove(path+"-shm")) },
	"companions removed":    func(t *testing.T, path string) { must(t, os.Remove(path+"-wal"), os.Remove(path+"-shm")) },
	"directory moved away":  func(t *testing.T, path string) { must(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+".old")) },
}

// TestReplacedUnderAWriter: a commit is not reported if no other process will find it, and every later call fails.
func TestReplacedUnderAWriter(t *testing.T) {
	for name, replace := range replacements {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, path := opened(t)
			ran := 0
			count := func(tx *sqlitedb.Tx) error { ran++; return increment(tx) }
			replace(t, path)
			err := db.Write(t.Context(), count)
			if !errors.Is(err, sqlitedb.ErrReplaced) || ran > 1 {
				t.Fatalf("ran %d times, %v; want ErrReplaced", ran, err)
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "stop every producer and worker") {
				t.Errorf("%q does not say which file, and what to do", err)
			}
			before := ran
			for name, f := range map[string]func(context.Context, func(*sqlitedb.Tx) error) error{
				"Read": db.Read, "Write": db.Write, "WriteRelaxed": db.WriteRelaxed,
			} {
				if err := f(t.Context(), count); !errors.Is(err, sqlitedb.ErrReplaced) || ran != before {
					t.Errorf("%s afterwards: ran %t, %v", name, ran != before, err)
				}
			}
			must(t, db.Close())
		})
	}
}

// TestReplacedUnderAReader: a reader, or a writer that does not wait for the disk, notices it soon.
func TestReplacedUnderAReader(t *testing.T) {
	for how := range 2 {
		t.Run([]string{"read", "relaxed write"}[how], func(t *testing.T) {
			t.Parallel()
			db, path := opened(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			try := func() error {
				return []func(context.Context, func(*sqlitedb.Tx) error) error{db.Read, db.WriteRelaxed}[how](ctx, func(tx *sqlitedb.Tx) error {
					var n int64
					_, err := tx.Get([]any{&n}, "SELECT n FROM counter WHERE id = 1")
					return err
				})
			}
			for range 10 { // later no new connection is opened
				must(t, try())
			}
			replacements["a copy moved over it"](t, path)
			for {
				err := try()
				if errors.Is(err, sqlitedb.ErrReplaced) {
					return
				}
				if err != nil {
					t.Fatalf("got %v, want ErrReplaced", err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

// TestALostHandleLeavesTheNewFilesAlone: commits that other processes have made meanwhile are kept.
func TestALostHandleLeavesTheNewFilesAlone(t *testing.T) {
	// Another process, because the handles of one process share SQLite's state of a database.
	other := func(args string) (last string) {
		t.Helper()
		_, stdout, cmd := startHelper(t, args)
		for stdout.Scan() {
			last = stdout.Text()
		}
		must(t, cmd.Wait())
		return last
	}
	for _, name := range []string{"all files removed", "a copy moved over it", "companions removed"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f.db")
			must(t, open(t, path).Close()) // so that the tables are in the database, and not only in the log
			db := open(t, path)
			must(t, db.Write(t.Context(), increment))
			replacements[name](t, path)
			other("increment " + path + " 5")
			if err := db.Write(t.Context(), increment); !errors.Is(err, sqlitedb.ErrReplaced) {
				t.Errorf("got %v, want ErrReplaced", err)
			}
			must(t, db.Close())
			n := 0
			last := other("count " + path + " 0")
			if _, err := fmt.Sscanf(last, "%d <nil>", &n); err != nil || n < 5 { // the first one may be present, and the one in doubt
				t.Errorf("counter %s, want 5 at least", last)
			}
		})
	}
}

// TestCopiedInPlace: a copy into the same file replaces nothing.
func TestCopiedInPlace(t *testing.T) {
	db, path := opened(t)
	// Another process: one that closes the file itself loses all of SQLite's locks on it.
	if out, err := exec.Command("sh", "-c", `cp "$0" "$0.copy" && cat "$0.copy" >"$0"`, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, db.Write(t.Context(), increment))
	if n := counter(t, db); n != 2 {
		t.Errorf("counter %d, want 2", n)
	}
}

// TestALostLogIsSaved: commits are not lost with the log's name, as long as no other process has created another log.
func TestALostLogIsSaved(t *testing.T) {
	db, path := opened(t)
	replacements["companions removed"](t, path)
	if err := db.Write(t.Context(), increment); !errors.Is(err, sqlitedb.ErrReplaced) {
		t.Errorf("got %v, want ErrReplaced", err)
	}
	must(t, db.Close())
	if n := counter(t, open(t, path)); n < 1 {
		t.Errorf("counter %d, want 1, or 2 with the one in doubt", n)
	}
}

// TestARemovedDatabaseIsNotMadeAnew: only Open creates a database.
func TestARemovedDatabaseIsNotMadeAnew(t *testing.T) {
	db, path := opened(t)
	replacements["all files removed"](t, path)
	for range 10 { // including those for which a connection is opened
		_ = db.Read(t.Context(), func(*sqlitedb.Tx) error { return nil })
		_ = db.WriteRelaxed(t.Context(), increment)
	}
	must(t, db.Close())
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("found %v, %v", left, err)
	}
}

// TestTheLogComesAndGoes: a handle without a connection tolerates that SQLite removes the log and creates it again.
func TestTheLogComesAndGoes(t *testing.T) {
	db, path := opened(t)
	func() {
		defer func() { _ = recover() }()
		_ = db.Write(t.Context(), func(*sqlitedb.Tx) error { panic("closes the connection") })
	}()
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the log is there: %v; the test proves nothing", err)
	}
	for i := range 100 { // takes the numbers of the files that were removed
		must(t, os.WriteFile(fmt.Sprintf("%s.%d", path, i), nil, 0o640))
	}
	must(t, db.Write(t.Context(), increment))
	if n := counter(t, db); n != 2 {
		t.Errorf("counter %d, want 2", n)
	}
}

// TestNamesThatCannotBeLookedUp: then it is unknown whether a commit counts. The error is not permanent.
func TestNamesThatCannotBeLookedUp(t *testing.T) {
	db, path := opened(t)
	dir := filepath.Dir(path)
	must(t, os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o640))
	if err := db.Write(t.Context(), increment); err == nil || errors.Is(err, sqlitedb.ErrReplaced) {
		t.Errorf("got %v, want an error that is not permanent", err)
	}
	must(t, os.Remove(dir), os.Rename(dir+".away", dir))
	must(t, db.Write(t.Context(), increment))
	if n := counter(t, db); n != 3 {
		t.Errorf("counter %d, want 3", n)
	}
}

// TestThroughALink: SQLite keeps the log beside the file that a link leads to. A link that leads nowhere is refused.
func TestThroughALink(t *testing.T) {
	target := filepath.Join(t.TempDir(), "target.db")
	link := filepath.Join(t.TempDir(), "link.db")
	must(t, os.Symlink(target, link))
	if db, err := sqlitedb.Open(t.Context(), link, sqlitedb.Options{}); err == nil || !strings.Contains(err.Error(), "link") {
		t.Errorf("opened %v, %v", db, err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("made through the link: %v", err)
	}
	must(t, open(t, target).Close())
	db := open(t, link)
	must(t, db.Write(t.Context(), increment), db.Write(t.Context(), increment))
	must(t, os.Remove(target+"-wal"))
	if err := db.Write(t.Context(), increment); !errors.Is(err, sqlitedb.ErrReplaced) {
		t.Errorf("got %v, want ErrReplaced", err)
	}
}
