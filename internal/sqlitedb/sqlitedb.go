// Package sqlitedb opens the embedded database file that several worker and producer processes of one machine share.
//
// SQLite runs in WAL mode: readers never wait for a writer, writers exclude each other. The package adds what many
// processes on one file need and SQLite does not provide:
//
//   - Every write transaction starts with BEGIN IMMEDIATE, so it either owns the write lock before its first statement
//     or has changed nothing. No transaction of this package can fail with "database is locked" half way.
//   - SQLite's own busy handler is off: it sleeps where no context can reach it. A handle that finds the lock taken
//     retries with jitter until its context ends, and then returns within milliseconds (see [ErrNotBegun]).
//   - Writers of one handle queue in the process, and only one of them competes with the other processes. Those that wait
//     share its transaction, and its sync (see group.go).
//   - A handle that writes back to back pauses now and then without the lock, more often when other processes wait, so
//     that it cannot starve them (see courtesy).
//
// Durability: [DB.Write] returns after the write-ahead log is synced (synchronous=FULL). [DB.WriteRelaxed] skips the
// sync (synchronous=NORMAL): atomic and visible at once to every process, kept over a crash of the process, but a power
// failure may undo it, together with every other unsynced commit after the last synced one. A later Write makes it
// durable as well.
//
// The file must be on a local file system: WAL needs shared memory between its users.
package sqlitedb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/fencepost/fencepost/internal/redact"
)

const (
	// schemaVersion is stored in the file (PRAGMA user_version). A file with a higher one was written by a newer
	// Fencepost and is refused.
	schemaVersion = 1

	// applicationID ("FNPT", PRAGMA application_id) distinguishes our file from another program's SQLite file.
	applicationID = 0x464E5054

	// minBusyPause and maxBusyPause bound the uniformly distributed pause before the next try for a lock that another
	// process holds. A write transaction with its fsync takes 0.1 to 10 ms, so a longer pause wastes a free lock and a
	// shorter one burns the CPU that the holder needs.
	minBusyPause = 200 * time.Microsecond
	maxBusyPause = 4 * time.Millisecond

	// courtesy: after uninterrupted writing a handle leaves the lock free for courtesyPause, which is longer than a
	// waiter's longest pause between two tries, so every waiting process finds it free once. It does so often for a while
	// after it met other processes, which use the pause, and rarely when it seems to be alone, because the pause is then
	// wasted.
	courtesyPause   = maxBusyPause + time.Millisecond
	courtesyAlone   = 200 * time.Millisecond
	courtesyAmong   = 5 * time.Millisecond
	companyRemember = 500 * time.Millisecond

	// maxStatements bounds the prepared statements kept per connection.
	maxStatements = 64

	// openAttempts is how many times Open tries if the database is being replaced meanwhile.
	openAttempts = 3

	// walLimit is the size in bytes to which the write-ahead log is truncated after a checkpoint.
	walLimit = 64 << 20

	// checkpointPages is how long the write-ahead log may become, in pages of 4 KiB: the commit that makes it longer copies it into the
	// database. A page that was written several times is copied once. See docs/decisions/0313.
	checkpointPages = 4000
)

// Options configure [Open]. The zero value is ready to use.
type Options struct {
	// Readers is the number of read transactions that may run at the same time in this handle. Defaults to 4.
	Readers int
}

// DB is a handle on the shared file. All methods are safe for concurrent use. A process may open several handles on
// one file; each has its own connections, so the waits of one never delay the other by more than a transaction.
type DB struct {
	path    string
	pool    *sql.DB    // opens connections; keeps none idle, so closing a connection really closes it
	readers chan *conn // connections not in use; nil = not opened yet
	closing chan struct{}
	once    sync.Once
	busy    atomic.Int64 // attempts that found the file locked by another process

	turns   sync.Mutex
	writing bool    // a writer has the right to write; guarded by turns, like waiting
	waiting []*turn // for that right, in the order of arrival
	w       writer  // of the writer that has the right

	names    [3]string // of the database and its companions, see replaced.go
	mu       sync.Mutex
	files    found     // that are open; guarded by mu, as are those below
	conns    int       // connections that have them open
	looked   time.Time // when the names were last checked
	replaced error     // set once they stand for other files
}

// writer belongs to the goroutine that has the right to write, and so may compete for the file's lock.
type writer struct {
	full, relaxed *conn
	group         *group    // that is open
	since         time.Time // start of the current run of back-to-back writes
	last          time.Time // end of the last write
	company       time.Time // when another process last had the lock
}

// Open opens the file at path, creating it (mode 0640) and its directory (mode 0750) when they are missing. It waits
// until ctx ends for other processes that hold the file. If human intervention is needed, the error wraps one of the
// sentinels of this package and says what to do.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	abs, err := locate(path)
	if err != nil {
		return nil, fmt.Errorf("open embedded database: %w", err)
	}
	if o.Readers <= 0 {
		o.Readers = 4
	}
	for attempt := 1; ; attempt++ {
		db, err := open(ctx, abs, o)
		// An operator may be restoring a backup right now. And a file from a lower layer of a container gets another
		// inode number when it is first opened for writing.
		if !errors.Is(err, ErrReplaced) || attempt == openAttempts {
			return db, err
		}
	}
}

func open(ctx context.Context, abs string, o Options) (*DB, error) {
	if err := create(abs); err != nil {
		return nil, fmt.Errorf("open embedded database: %w", err)
	}
	// mode=rw: create has made the file. If it was removed since, it must not be created again.
	dsn := (&url.URL{Scheme: "file", Path: abs, RawQuery: "mode=rw&_pragma=busy_timeout(0)" +
		fmt.Sprintf("&_pragma=journal_size_limit(%d)&_pragma=wal_autocheckpoint(%d)", walLimit, checkpointPages)}).String()
	pool, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open embedded database %s: %w", abs, err)
	}
	pool.SetMaxIdleConns(-1)
	db := &DB{
		path:    abs,
		pool:    pool,
		readers: make(chan *conn, o.Readers),
		closing: make(chan struct{}),
	}
	for range o.Readers {
		db.readers <- nil
	}
	if db.names, err = names(abs); err == nil {
		db.files[0], err = os.Stat(abs)
	}
	if err != nil {
		err = describePath(abs, err)
	} else {
		err = checkCompanions(db.names[1:])
	}
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open embedded database: %w", err)
	}
	if err := db.initialize(ctx); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open embedded database: %w", err)
	}
	return db, nil
}

// locate checks path and makes it absolute.
func locate(path string) (string, error) {
	scheme, _, isURL := strings.Cut(path, "://")
	switch {
	case path == "":
		return "", fmt.Errorf("%w: it is empty: give a file, for example ./data/fencepost.db", ErrPath)
	case isURL && !strings.Contains(scheme, "/"):
		return "", fmt.Errorf("%w %s: it is a URL: give a plain path, for example ./data/fencepost.db", ErrPath, redact.URL(path))
	case strings.Contains(path, ":memory:"), strings.HasPrefix(path, "file:"):
		return "", fmt.Errorf("%w %q: it is not a file: the embedded database is shared by processes; give a plain path, "+
			"for example ./data/fencepost.db", ErrPath, path)
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("%w %q: it contains a zero byte: give a plain path", ErrPath, path)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%s: cannot tell the working directory: %w; give an absolute path", path, err)
	}
	return abs, nil
}

// create makes sure that the file exists on a file system that can hold it.
func create(path string) error {
	dir := filepath.Dir(path)
	if err := mkdirAll(dir); err != nil {
		return describePath(path, err)
	}
	if name, unsafe := unsafeFileSystem(dir); unsafe {
		return fmt.Errorf("%w: %s is on %s, where processes cannot share the memory that SQLite's write-ahead log "+
			"needs; use a local disk, or MongoDB when several machines work together", ErrUnsafeFileSystem, dir, name)
	}
	switch fi, err := os.Stat(path); {
	case err == nil && fi.IsDir():
		return fmt.Errorf("%w: %s is a directory: name a file in it, for example %s", ErrPath, path, filepath.Join(path, "fencepost.db"))
	case err == nil && !fi.Mode().IsRegular():
		return fmt.Errorf("%w: %s is not a regular file (%s): name a file on a local disk", ErrPath, path, fi.Mode().Type())
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return describePath(path, err)
	}
	// rule: never open and close the database file itself: closing any descriptor of it drops every POSIX lock that
	// this process holds on it through SQLite. So the empty file is made under another name and linked. Not
	// os.CreateTemp, whose files only their owner may access: a later change of the mode would ignore the umask.
	temp := filepath.Join(dir, ".fencepost-new-"+rand.Text())
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return describePath(path, err)
	}
	defer os.Remove(temp)
	if err := f.Close(); err != nil {
		return describePath(path, err)
	}
	if err := os.Link(temp, path); err != nil && !errors.Is(err, os.ErrExist) {
		return describePath(path, err)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is a symbolic link that leads to no file: name the file itself", path)
	}
	return syncDir(dir)
}

// checkCompanions refuses a log and a shared memory that SQLite would refuse without saying why: it creates them
// itself, and never through a link.
func checkCompanions(names []string) error {
	for _, name := range names {
		if fi, err := os.Lstat(name); err == nil && !fi.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file (%s), and was not made by SQLite: remove it, or give another path", name, fi.Mode().Type())
		}
	}
	return nil
}

// mkdirAll creates dir and its missing parents (0750) and syncs the directories that got a new entry.
func mkdirAll(dir string) error {
	if fi, err := os.Stat(dir); err == nil {
		if !fi.IsDir() {
			return &os.PathError{Op: "mkdir", Path: dir, Err: errors.New("not a directory")}
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := mkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(parent)
}

// syncDir makes new directory entries durable. A directory that we may not read cannot be synced; the entry is then as
// durable as the file system's own journal makes it.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// initialize checks that the file is ours and switches it to WAL. It is idempotent and safe against other processes that
// do the same.
func (db *DB) initialize(ctx context.Context) error {
	if err := db.prepare(ctx); err != nil {
		return err
	}
	// A write even if there is nothing to change: a file that we may only read is detected now.
	return db.Write(ctx, func(tx *Tx) error {
		id, err := identify(ctx, tx.c)
		if err != nil {
			return err
		}
		if err := id.check(); err != nil {
			return err
		}
		if id.app == applicationID && id.version >= 1 {
			// PRAGMA user_version writes the header page even if the value does not change.
			return nil
		}
		if _, err := tx.Exec(fmt.Sprintf("PRAGMA application_id=%d", applicationID)); err != nil {
			return err
		}
		_, err = tx.Exec(fmt.Sprintf("PRAGMA user_version=%d", schemaVersion))
		return err
	})
}

// prepare checks that the file is ours and switches it to WAL.
func (db *DB) prepare(ctx context.Context) error {
	if err := db.takeTurn(ctx, &turn{alone: true}); err != nil {
		return err
	}
	defer db.passOn()
	w := &db.w
	err := db.retry(ctx, func() (err error) {
		if w.full == nil {
			if w.full, err = db.connect(ctx, "FULL"); err != nil {
				return err
			}
		}
		c := w.full
		id, err := identify(ctx, c)
		if err != nil {
			return err
		}
		if err := id.check(); err != nil {
			return err
		}
		// The mode is stored in the file. The switch needs the file exclusively, hence the retries.
		var mode string
		if err := c.c.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode); err != nil {
			return err
		}
		if mode != "wal" {
			return fmt.Errorf("%w: the file stays in journal mode %q instead of WAL; move it to a local disk that "+
				"supports shared memory maps", ErrUnsafeFileSystem, mode)
		}
		return nil
	})
	return db.describe(ctx, "open", err)
}

// identity says which program a database file belongs to.
type identity struct {
	app, version, tables int64
}

// identify reads the identity with one statement, and so from one snapshot: another process may be making the file ours
// at this moment, and half of that would look like another program's database.
func identify(ctx context.Context, c *conn) (id identity, err error) {
	err = c.c.QueryRowContext(ctx, `SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_schema)
		FROM pragma_application_id a, pragma_user_version v`).Scan(&id.app, &id.version, &id.tables)
	return id, err
}

func (id identity) check() error {
	switch {
	case id.app == applicationID && id.version > schemaVersion:
		return fmt.Errorf("%w: it has schema version %d and this program knows up to %d; upgrade this program, "+
			"or give another path", ErrNewerSchema, id.version, schemaVersion)
	case id.app != applicationID && (id.app != 0 || id.version != 0 || id.tables != 0):
		return fmt.Errorf("%w: it is a SQLite database of another program (application id %#x, %d tables); give "+
			"another path", ErrForeign, id.app, id.tables)
	}
	return nil
}

// Close waits for the transactions in progress and closes the file. Callers that still wait for the lock get
// [ErrClosed]. Closing twice is not an error.
func (db *DB) Close() error {
	var err error
	db.once.Do(func() {
		close(db.closing)
		closer := &turn{alone: true}
		db.enqueue(closer)
		<-closer.given // and never passed on
		err = errors.Join(db.w.full.close(), db.w.relaxed.close())
		for range cap(db.readers) {
			c := <-db.readers
			err = errors.Join(err, c.close())
		}
		err = errors.Join(err, db.pool.Close())
	})
	if err != nil {
		return fmt.Errorf("close embedded database %s: %w", db.path, err)
	}
	return nil
}
