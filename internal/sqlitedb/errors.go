package sqlitedb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The errors that need human intervention. Use errors.Is; the message around them names the file and the remedy.
var (
	// ErrNotBegun means that the context ended before the transaction could begin: nothing was changed.
	ErrNotBegun = errors.New("transaction did not begin")
	// ErrClosed means that the handle was closed.
	ErrClosed = errors.New("embedded database is closed")
	// ErrPath means that the path cannot be that of a database file.
	ErrPath = errors.New("invalid path")
	// ErrNotDatabase means that the file is not a SQLite database, or is encrypted.
	ErrNotDatabase = errors.New("not a database")
	// ErrForeign means that the file is another program's SQLite database.
	ErrForeign = errors.New("not a Fencepost database")
	// ErrNewerSchema means that a newer Fencepost wrote the file.
	ErrNewerSchema = errors.New("database was written by a newer version")
	// ErrReadOnly means that the file, its directory or its file system cannot be written.
	ErrReadOnly = errors.New("database is read-only")
	// ErrPermission means that this user may not open the file or its directory.
	ErrPermission = errors.New("no permission")
	// ErrDiskFull means that the disk or a quota is full. The transaction was rolled back.
	ErrDiskFull = errors.New("disk is full")
	// ErrCorrupt means that SQLite found the file damaged.
	ErrCorrupt = errors.New("database is damaged")
	// ErrReplaced means that the database, or its -wal or -shm file, was removed or replaced while it was open. It is permanent: every later
	// call of the handle fails with it, and the process should end, as only a new process is sure to see the new files. A transaction that
	// ends with it may have been committed to the old file, which may no longer have a name.
	ErrReplaced = errors.New("database file was removed or replaced under this program")
	// ErrUnsafeFileSystem means that the file system lacks the guarantees that several processes rely on.
	ErrUnsafeFileSystem = errors.New("unsafe file system")
)

func (db *DB) closedError() error { return fmt.Errorf("%w: %s", ErrClosed, db.path) }

// code is SQLite's extended result code, 0 when err did not come from SQLite.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// isBusy reports whether a later try can succeed: the lock is taken (BUSY and its kin), another connection of this
// process holds the shared cache (LOCKED), or the lock protocol lost a race while the log was being set up (PROTOCOL).
func isBusy(err error) bool {
	switch code(err) & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return true
	}
	return false
}

// IsRefusal reports whether the database refused the rows of one statement, by a constraint or a trigger. The transaction continues without
// that statement.
func IsRefusal(err error) bool { return code(err)&0xff == sqlite3.SQLITE_CONSTRAINT }

// describe adds the file and the remedy to an error of SQLite. Errors of the caller's function pass unchanged.
func (db *DB) describe(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	c := code(err)
	if c == 0 {
		for _, known := range []error{ErrNotBegun, ErrForeign, ErrNewerSchema, ErrUnsafeFileSystem} {
			if errors.Is(err, known) {
				return fmt.Errorf("%s %s: %w", doing, db.path, err)
			}
		}
		return err
	}
	// A replaced file may cause any error, because its name leads nowhere, or to another file.
	if replaced := db.look(); errors.Is(replaced, ErrReplaced) {
		return fmt.Errorf("%s: %w (%w)", doing, replaced, err)
	}
	wrap := func(kind error, remedy string) error {
		return fmt.Errorf("%s %s: %w: %s (%w)", doing, db.path, kind, remedy, err)
	}
	dir := filepath.Dir(db.path)
	switch c & 0xff {
	case sqlite3.SQLITE_INTERRUPT:
		if ctx.Err() != nil {
			return fmt.Errorf("%s %s: %w", doing, db.path, context.Cause(ctx))
		}
	case sqlite3.SQLITE_NOTADB:
		return wrap(ErrNotDatabase, "the file holds something else; give another path, nothing was changed")
	case sqlite3.SQLITE_READONLY:
		return wrap(ErrReadOnly, "make the file, "+dir+" and the file system writable for this user, or run as the user "+
			"that owns them")
	case sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return wrap(ErrPermission, "run as the user that owns the file, or give that user read and write permission")
	case sqlite3.SQLITE_CANTOPEN:
		// The file itself, or its -wal and -shm companions.
		return wrap(ErrPermission, "this user must be able to read and write the file, its -wal and -shm companions and the directory "+dir+
			"; change their owner or run as the user that owns them")
	case sqlite3.SQLITE_FULL:
		return wrap(ErrDiskFull, "nothing of this write was kept; free space on the disk of "+dir+", then try again")
	case sqlite3.SQLITE_IOERR:
		return fmt.Errorf("%s %s: the disk reported an error: %w; check the disk and the system log", doing, db.path, err)
	case sqlite3.SQLITE_CORRUPT:
		return wrap(ErrCorrupt, "stop all processes that use it, keep a copy of it and of its -wal file, and restore a "+
			"backup or start with a new file")
	}
	return fmt.Errorf("%s %s: %w", doing, db.path, err)
}

// describePath adds the remedy to an error met while creating the file or its directory.
func describePath(path string, err error) error {
	dir := filepath.Dir(path)
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: %w: %w; give this user write permission for %s, or give another path", path,
			ErrPermission, err, dir)
	case isReadOnlyFS(err):
		return fmt.Errorf("%s: %w: %w; give a path on a file system that is mounted for writing", path, ErrReadOnly, err)
	case isNoSpace(err):
		return fmt.Errorf("%s: %w: %w; free space, then try again", path, ErrDiskFull, err)
	}
	return fmt.Errorf("%s: %w; give a path on a local disk whose directory exists or can be created", path, err)
}
