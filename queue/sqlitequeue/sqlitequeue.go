// Package sqlitequeue keeps a queue in an embedded SQLite database that several worker and producer
// processes of one machine share. It needs no server, and has the same guarantees as the queue in
// MongoDB.
//
//	queue_messages  type, id (the 20 bytes), payload, headers (JSON); unique on (type, id)
//	queue_dead      the dead letters: the same, and reason, attempts, worker, at
//	queue_types     type
//	queue_marks     type, mark
//	queue_files     type, file_id, epoch, durable_index, generation
//	queue_settings  type, drain_paused, publish_paused, max_backlog, why, changed
//	queue_members   id, member (JSON), seen
//	queue_notifications  n, type
//	queue_delayed   due, type, id, payload, headers; unique on (due, type, id); queue_delayed_settled, queue_delayed_passed and queue_sequences belong to it
//
// Rows of queue_messages whose id is not a message ID are skipped, see queue.ForeignKeyStore.
//
// The unique index serves order, ranges, lookups, depth and the list of types. The payloads are in the
// table in the order of insertion, which is also the order of deletion (docs/decisions/0302).
//
// A batch is one transaction and becomes visible as a whole, so a reader never sees a message without
// those before it. Insert is synced to disk before it returns. Ack is not synced: if a power failure
// undoes it, the messages are delivered again.
package sqlitequeue

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// ddl creates the tables. A table is never changed here: new columns are added by AddColumn.
var ddl = []string{
	`CREATE TABLE IF NOT EXISTS queue_messages (
		type    TEXT NOT NULL,
		id      BLOB NOT NULL,
		payload BLOB NOT NULL,
		headers TEXT, -- JSON object; null without headers
		UNIQUE (type, id)
	) STRICT`,
	`CREATE TABLE IF NOT EXISTS queue_dead (
		type     TEXT NOT NULL,
		id       BLOB NOT NULL,
		payload  BLOB NOT NULL,
		headers  TEXT, -- JSON object; null without headers
		reason   TEXT NOT NULL,
		attempts INTEGER NOT NULL,
		worker   TEXT NOT NULL,
		at       INTEGER NOT NULL, -- milliseconds since 1970
		UNIQUE (type, id)
	) STRICT`,
	`CREATE TABLE IF NOT EXISTS queue_types (type TEXT PRIMARY KEY) STRICT, WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS queue_marks (type TEXT PRIMARY KEY, mark TEXT NOT NULL) STRICT, WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS queue_settings (
		type           TEXT PRIMARY KEY,
		drain_paused   INTEGER NOT NULL DEFAULT 0, -- 0 or 1
		publish_paused INTEGER NOT NULL DEFAULT 0, -- 0 or 1
		max_backlog    INTEGER NOT NULL DEFAULT 0, -- messages; 0 = no bound
		why            TEXT NOT NULL,
		changed        INTEGER NOT NULL            -- milliseconds since 1970
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS queue_members (
		id     TEXT PRIMARY KEY,
		member TEXT NOT NULL,   -- JSON object
		seen   INTEGER NOT NULL -- milliseconds since 1970
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS queue_notifications (
		n    INTEGER PRIMARY KEY, -- counts all that there ever were
		type TEXT NOT NULL
	) STRICT`,
	`CREATE TABLE IF NOT EXISTS queue_files (
		type          TEXT PRIMARY KEY,
		file_id       BLOB NOT NULL,    -- changed by SucceedFile only
		epoch         INTEGER NOT NULL, -- only grows
		durable_index INTEGER NOT NULL, -- only grows
		` + generationColumn + `,
		` + placeColumn + `
	) STRICT, WITHOUT ROWID`,
}

// These columns were added later: databases of earlier versions lack them, and earlier versions ignore
// them.
const (
	generationColumn = `generation INTEGER NOT NULL DEFAULT 1`
	placeColumn      = `place TEXT NOT NULL DEFAULT ''`
)

// rowsPerStatement is how many rows a statement inserts or deletes. More than about ten rows gain
// nothing (0302).
const rowsPerStatement = 20

// Ranges are deleted with one statement, at half the cost of looking each ID up (0312).
const (
	minRange = rowsPerStatement + 1 // IDs: fewer are one statement anyway
	maxRange = 1000                 // so that a late message in one range does not slow down the others

	deleteRange = `DELETE FROM queue_messages WHERE type = ? AND id BETWEEN ? AND ?`
)

var (
	insertOne  = insertRows(1)
	insertMany = insertRows(rowsPerStatement)
	deleteOne  = deleteRows(1)
	deleteMany = deleteRows(rowsPerStatement)
)

// insertRows skips messages that are stored already. rule: Insert is idempotent by ID.
func insertRows(n int) string {
	return `INSERT OR IGNORE INTO queue_messages (type, id, payload, headers) VALUES ` + strings.Repeat(`, (?, ?, ?, ?)`, n)[2:]
}

// deleteRows deletes n messages of one type.
func deleteRows(n int) string {
	return `DELETE FROM queue_messages WHERE type = ? AND id IN (` + strings.Repeat(`, ?`, n)[2:] + `)`
}

// Queue is a queue.Queue in a SQLite database. Safe for concurrent use, and by any number of
// processes at a time.
type Queue struct {
	db    *sqlitedb.DB
	clock clock.Server // this machine's

	mu     sync.Mutex
	last   int64       // version of queue_delayed_passed that this process has stored …
	since  clock.Watch // … and since when
	forgot time.Time   // when old notes were removed
	walk   walk        // past messages that cannot be promoted
	strays queuedriver.StrayRecord
}

var _ queue.Queue = (*Queue)(nil)

// Open opens the database at path, creating it and its directory when they are missing. The same
// file may hold the locks of sqlitelock. Errors name the file and the remedy, and wrap
// queue.ErrPermission where it applies.
func Open(ctx context.Context, path string) (*Queue, error) {
	db, err := sqlitedb.Open(ctx, path, sqlitedb.Options{Readers: 8}) // also for the locks, see Database
	if err != nil {
		return nil, explain("open", err)
	}
	err = db.Migrate(ctx, slices.Concat(ddl, delayedDDL)...)
	for _, added := range [][2]string{{"queue_files", generationColumn}, {"queue_files", placeColumn}, {"queue_delayed_settled", settledColumn}, {"queue_sequences", usedColumn}} {
		if err == nil {
			err = db.AddColumn(ctx, added[0], added[1])
		}
	}
	if err != nil {
		_ = db.Close()
		return nil, explain("open", err)
	}
	q := &Queue{db: db}
	q.readClock()
	return q, nil
}

// Close implements queue.Queue. It waits for transactions in progress. Closing twice is no error.
func (q *Queue) Close() error { return explain("close", q.db.Close()) }

// Database returns the open database, to pass it to sqlitelock.OpenIn, so that queue and locks share one handle; it is good for nothing
// else, and its type is internal. It is closed with the queue.
func (q *Queue) Database() *sqlitedb.DB { return q.db }

// Now implements queue.Queue: this machine's clock as read by Open or by the last Heartbeat or
// Promote, advanced by the time elapsed since.
func (q *Queue) Now(ctx context.Context) (time.Time, error) {
	if err := q.db.Usable(ctx); err != nil {
		return time.Time{}, explain("read the clock", err)
	}
	return q.now(), nil
}

func (q *Queue) now() time.Time { return q.clock.Now() }

// readClock reads this machine's clock. clock.Server then compares it with the time that has passed
// since the last reading.
func (q *Queue) readClock() { q.clock.Read(time.Now(), time.Time{}) }

// Insert implements queue.Queue: one transaction, synced to disk.
func (q *Queue) Insert(ctx context.Context, typ string, msgs []queue.Message) error {
	if err := queuedriver.CheckInsert(typ, msgs); err != nil {
		return err
	}
	rows := make([]any, 0, 4*len(msgs))
	for i := range msgs {
		m := &msgs[i]
		headers, err := encodeHeaders(m.Headers)
		if err != nil {
			return &queue.InsertError{Refused: true, Err: fmt.Errorf("sqlitequeue: headers of message %d: %w", i, err)}
		}
		rows = append(rows, typ, m.ID[:], blob(m.Payload), headers)
	}
	written := false
	err := q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		for len(rows) > 0 {
			statement, n := insertOne, 4
			if len(rows) >= 4*rowsPerStatement {
				statement, n = insertMany, 4*rowsPerStatement
			}
			if _, err := tx.Exec(statement, rows[:n]...); err != nil {
				return err
			}
			rows = rows[n:]
		}
		written = true
		return nil
	})
	return insertError(ctx, "insert "+typ, err, written)
}

// Fetch implements queue.Queue: a range of the unique index, in its order, on one snapshot. After a
// page that has only foreign keys it continues with the next one.
func (q *Queue) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	if err := queuedriver.CheckFetch(typ, limit); err != nil {
		return nil, err
	}
	var out []queue.Message
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		from := any(after[:])
		if after.IsZero() {
			from = beforeBlobs
		}
		for {
			read, last, err := fetch(tx, typ, from, limit, &out)
			if err != nil || len(out) > 0 || read < limit.Messages {
				return err
			}
			from = last
		}
	})
	if err != nil {
		return nil, explain("fetch "+typ, err)
	}
	return out, nil
}

// fetch adds the messages of one page. read counts the rows seen, last is the ID of the last one.
// SQLite reads rows as they are requested; with LIMIT ? it would prepare the statement anew each time,
// as the plan might depend on the number.
func fetch(tx *sqlitedb.Tx, typ string, from any, limit queue.Limit, out *[]queue.Message) (read int, last []byte, err error) {
	rows, err := tx.Query(`SELECT id, payload, `+headersColumn+` FROM queue_messages WHERE type = ? AND id > ? ORDER BY id`, typ, from)
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	var size int64
	var id sql.RawBytes
	last = make([]byte, 0, len(queue.ID{})) // nil would be NULL
	for read < limit.Messages && rows.Next() {
		m := queue.Message{Type: typ}
		var headers *string
		if err := rows.Scan(&id, &m.Payload, &headers); err != nil {
			return 0, nil, err
		}
		read, last = read+1, append(last[:0], id...)
		if isForeign(id) {
			if limit.Foreign != nil {
				limit.Foreign(foreignKey(id))
			}
			continue
		}
		if err := decode(&m, id, headers); err != nil {
			return 0, nil, err
		}
		if n := len(*out); n == cap(*out) { // in big steps, up to the limit: doubling would copy all of them once more
			*out = slices.Grow(*out, min(16+7*n, limit.Messages-n))
		}
		*out = append(*out, m)
		if size += int64(m.Size()); limit.Bytes > 0 && size >= limit.Bytes {
			return read, last, nil
		}
	}
	return read, last, rows.Err()
}

// Ack implements queue.Queue: deletes ranges of (type, id), or else by ID, in one transaction, not
// synced.
//
// rule: a lost acknowledgement only redelivers.
func (q *Queue) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	err := q.db.WriteRelaxed(ctx, func(tx *sqlitedb.Tx) error { return deleteMessages(tx, typ, ids) })
	return explain("ack "+typ, err)
}

// deleteMessages deletes messages by type and ID, with as few statements as are worthwhile.
func deleteMessages(tx *sqlitedb.Tx, typ string, ids []queue.ID) error {
	for part := range slices.Chunk(ids, maxRange) {
		whole, err := isRange(tx, typ, part)
		switch {
		case err != nil:
			return err
		case whole:
			_, err = tx.Exec(deleteRange, typ, part[0][:], part[len(part)-1][:])
		default:
			err = deleteEach(tx, typ, part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isRange reports whether ids are all the IDs from the first to the last of them, inclusive. It reads
// only the index.
//
// rule: a range is deleted only if all of it was read. A late row, or a foreign one, was never read.
// No other writer can write between this check and the end of the transaction.
func isRange(tx *sqlitedb.Tx, typ string, ids []queue.ID) (bool, error) {
	if len(ids) < minRange {
		return false, nil
	}
	rows, err := tx.Query(`SELECT id FROM queue_messages WHERE type = ? AND id BETWEEN ? AND ? ORDER BY id`, typ, ids[0][:], ids[len(ids)-1][:])
	if err != nil {
		return false, err
	}
	defer rows.Close()
	var id sql.RawBytes
	n := 0
	for ; rows.Next(); n++ {
		if err := rows.Scan(&id); err != nil {
			return false, err
		}
		if n == len(ids) || !bytes.Equal(id, ids[n][:]) {
			return false, nil
		}
	}
	return n == len(ids), rows.Err()
}

func deleteEach(tx *sqlitedb.Tx, typ string, ids []queue.ID) error {
	args := make([]any, 1+rowsPerStatement)
	args[0] = typ
	for len(ids) > 0 {
		statement, n := deleteOne, 1
		if len(ids) >= rowsPerStatement {
			statement, n = deleteMany, rowsPerStatement
		}
		for i := range n {
			args[1+i] = ids[i][:]
		}
		if _, err := tx.Exec(statement, args[:1+n]...); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// Depth implements queue.Queue. It reads at most max+1 entries of the index, or possibly all of them
// if there are foreign keys among the first ones.
func (q *Queue) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	if err := queuedriver.CheckDepth(typ, most); err != nil {
		return queue.Depth{}, err
	}
	var d queue.Depth
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		var n, foreign int64
		// LIMIT ? + 0: see fetch
		if _, err := tx.Get([]any{&n, &foreign}, `SELECT count(*), coalesce(sum(NOT (`+isMessage+`)), 0) FROM
			(SELECT id FROM queue_messages WHERE type = ? ORDER BY id LIMIT ? + 0)`, typ, int64(most)+1); err != nil {
			return err
		}
		// rule: a foreign key is not a message: it is not counted, and blocks no publisher
		if foreign > 0 {
			if _, err := tx.Get([]any{&n}, `SELECT count(*) FROM (SELECT 1 FROM queue_messages WHERE type = ? AND `+isMessage+` LIMIT ?)`, typ, int64(most)+1); err != nil {
				return err
			}
		}
		d = queue.Depth{Pending: int(min(n, int64(most))), Capped: n > int64(most), Foreign: int(foreign)}
		var oldest []byte
		if _, err := tx.Get([]any{&oldest}, `SELECT id FROM queue_messages WHERE type = ? AND `+isMessage+` ORDER BY id LIMIT 1`, typ); err != nil {
			return err
		}
		copy(d.Oldest[:], oldest)
		return nil
	})
	if err != nil {
		return queue.Depth{}, explain("depth of "+typ, err)
	}
	return d, nil
}

// explain adds the operation and a sentinel of package queue. The remedy is in the error of sqlitedb.
func explain(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlitedb.ErrPath):
		return fmt.Errorf("sqlitequeue: %s: %w: %w", op, queue.ErrInvalidURL, err)
	case errors.Is(err, sqlitedb.ErrClosed):
		return fmt.Errorf("sqlitequeue: %s: %w: %w", op, queue.ErrClosed, err)
	case errors.Is(err, sqlitedb.ErrReplaced):
		return fmt.Errorf("sqlitequeue: %s: %w: %w", op, queue.ErrReplaced, err)
	case errors.Is(err, sqlitedb.ErrPermission), errors.Is(err, sqlitedb.ErrReadOnly):
		return fmt.Errorf("sqlitequeue: %s: %w: %w", op, queue.ErrPermission, err)
	case errors.Is(err, sqlitedb.ErrNotDatabase), errors.Is(err, sqlitedb.ErrForeign), errors.Is(err, sqlitedb.ErrNewerSchema),
		errors.Is(err, sqlitedb.ErrUnsafeFileSystem):
		return fmt.Errorf("sqlitequeue: %s: %w: %w", op, queue.ErrUnsupported, err)
	}
	return fmt.Errorf("sqlitequeue: %s: %w", op, err)
}
