package sqlitedb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// SQLite opens its files by name and goes on with what it has opened, whatever becomes of the names. When the database is removed or
// replaced, processes with the old file and those that open the new one never see each other's writes, and what is committed
// to a file without a name is gone with the last program that has it open. SQLite does not look in WAL mode, so this package does.
//
// The log and the shared memory count as well: programs that have different ones exclude each other no more. SQLite itself makes and
// removes them, but never while anybody has the database open in WAL mode.

// lookEvery is how often reads, and unsynced writes, check the names.
const lookEvery = time.Second

// found are the files that the names of the database, its log and its shared memory led to; nil means no such
// file.
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

// look finds out whether the names still stand for the files that are open. If not, it is [ErrReplaced] from now on.
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

// lookNowAndThen is look, if nobody has looked for a while. That the names cannot be looked up now is no error here: what is read
// from the files that are open, and what is not synced, does no harm.
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

// compare is look with what was found; db.mu is held.
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
	// rule: the first connection tells which companions are ours. Without any, another process may have removed and made them anew.
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

// leave is the opposite of join, before the connection is closed. ok tells that it may be: SQLite sees by itself that the database has
// moved, and then leaves all files alone; where the companions are gone, and nobody else has made others, it saves what is in the log.
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
