package sqlitedb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// SQLite opens its files by name and keeps using the open files, whatever happens to their names. If the database is removed or replaced,
// processes with the old file and those that open the new one never see each other's writes, and commits to a file without a name are lost
// when the last program that has it open ends. SQLite does not check this in WAL mode, so this package does.
//
// The log and the shared memory count as well: programs that have different ones no longer exclude each other. SQLite itself creates and
// removes them, but never while any program has the database open in WAL mode.

// lookEvery is how often reads, and unsynced writes, check the names.
const lookEvery = time.Second

// found holds the files to which the names of the database, its log and its shared memory led; nil means no such file.
type found [3]os.FileInfo

// names returns the names of the files. SQLite puts the companions beside the file that a link leads to.
func names(path string) (names [3]string, err error) {
	target, err := filepath.EvalSymlinks(path)
	return [3]string{path, target + "-wal", target + "-shm"}, err
}

// find looks the names up.
func (db *DB) find() (now found, err error) {
	for i, name := range db.names {
		if now[i], err = os.Stat(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return now, fmt.Errorf("embedded database %s: cannot find out whether its files are still those that were opened: %w", db.path, err)
		}
	}
	return now, nil
}

// look checks that the names still stand for the open files. If not, it returns [ErrReplaced], from now on always.
func (db *DB) look() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.replaced != nil {
		return db.replaced
	}
	db.looked = time.Now()
	now, err := db.find()
	if err != nil {
		return err
	}
	return db.compare(now)
}

// lookNowAndThen is look, if the last check was lookEvery ago or more. It is no error here if the names cannot be looked up: reads from
// the open files, and unsynced writes, do no harm.
func (db *DB) lookNowAndThen() error {
	db.mu.Lock()
	err, due := db.replaced, time.Since(db.looked) >= lookEvery
	db.mu.Unlock()
	if err == nil && due {
		err = db.look()
	}
	if !errors.Is(err, ErrReplaced) {
		return nil
	}
	return err
}

// compare compares the files found now with the open ones, for look; db.mu is held.
func (db *DB) compare(now found) error {
	for i, was := range db.files {
		what := "is another file now"
		switch {
		case was == nil || now[i] != nil && os.SameFile(was, now[i]):
			continue
		case now[i] == nil:
			what = "was removed"
		}
		db.replaced = fmt.Errorf("%w: %s %s, and what was written last may be in the old one only; stop every producer and worker, put the "+
			"old files back, or a backup if the database is gone, then start them again", ErrReplaced, db.names[i], what)
		return db.replaced
	}
	return nil
}

// join counts a connection that has begun its first transaction, and so has opened all files.
func (db *DB) join(c *conn) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.replaced != nil {
		return db.replaced
	}
	now, err := db.find()
	if err != nil {
		return err
	}
	// rule: the first connection determines which companions are ours. While there was none, another process may have removed and recreated
	// them.
	if db.conns == 0 {
		db.files[1], db.files[2] = now[1], now[2]
	}
	if err := db.compare(now); err != nil {
		return err
	}
	db.conns++
	c.joined = true
	return nil
}

// leave is the opposite of join, before the connection is closed. ok reports whether it may be closed: SQLite itself notices that the
// database has moved, and then does not touch any file; if the companions are gone, and no other program has created new ones, it saves the
// contents of the log.
func (db *DB) leave(c *conn) (ok bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	now, _ := db.find()
	for i, was := range db.files[1:] {
		if is := now[1+i]; was != nil && is != nil && !os.SameFile(was, is) {
			return false
		}
	}
	if !c.joined {
		return true
	}
	c.joined = false
	if db.conns--; db.conns == 0 {
		db.files[1], db.files[2] = nil, nil
	}
	return true
}
