package sqlitequeue

import (
	"math"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Rows of other programs under invalid type names are skipped without a statement for each row, see
// docs/decisions/0117.

// walkAgain is how long delayed messages that cannot be promoted are not checked again. A message that
// is stored among them after it was due may be late by that much more.
const walkAgain = 5 * time.Second

// noType selects rows with an invalid type name. People run it in the shell that they have, which may be older than octet_length.
const noType = `(type GLOB '*[^a-z0-9._-]*' OR type NOT GLOB '[a-z0-9]*' OR length(CAST(type AS BLOB)) > 64)`

// skipScan adds the types of a table: its first type, the first one after that, and so on, each
// found by the table's index on (type, id).
func skipScan(tx *sqlitedb.Tx, table string, found map[string]bool) (queue.Strays, error) {
	strays := straysOf(table, "invalid type names", noType)
	rows, err := tx.Query(`WITH RECURSIVE names (type) AS (
			SELECT min(type) FROM ` + table + `
			UNION ALL
			SELECT (SELECT min(type) FROM ` + table + ` AS others WHERE others.type > names.type) FROM names WHERE type IS NOT NULL)
		SELECT type FROM names WHERE type IS NOT NULL`)
	if err != nil {
		return strays, err
	}
	return strays, addTypes(rows, found, &strays)
}

// walk is the position up to which the searches for due messages have skipped those that cannot be
// promoted.
type walk struct {
	from  int64             // nothing up to here can be promoted: the due time …
	last  queue.ScheduleKey // … and the rest
	ended time.Time

	foreign, kept queue.Strays
}

// beginWalk returns where a search begins: after the messages that were skipped recently, or at the
// start.
func (q *Queue) beginWalk() walk {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.walk; !w.ended.IsZero() && time.Since(w.ended) < walkAgain {
		return w
	}
	w := walk{from: math.MinInt64, foreign: straysOf("queue_delayed", "delayed messages with an invalid type name or a zero ID", noType+` OR id = zeroblob(20)`),
		kept: straysOf("queue_delayed", "delayed messages that cannot be decoded completely", "")}
	w.kept.Remedy = "fencepost scheduled ls lists them, scheduled rm removes them"
	return w
}

// pass skips a message that cannot be promoted, and counts it.
func (w *walk) pass(m *queue.Message, due int64) {
	w.from, w.last = due, queue.ScheduleKeyOf(m)
	if queue.ValidateType(m.Type) != nil || m.ID.IsZero() {
		queuedriver.CountStray(&w.foreign, m.Type+"/"+m.ID.String())
	} else {
		queuedriver.CountStray(&w.kept, m.ID.String())
	}
}

// endWalk records how far a search has got.
func (q *Queue) endWalk(w walk) {
	q.strays.Set(w.foreign)
	q.strays.Set(w.kept)
	if w.ended.IsZero() {
		w.ended = time.Now()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.walk = w
}

// straysOf returns an empty queue.Strays for a table.
func straysOf(table, what, where string) queue.Strays {
	return queue.Strays{In: "the table " + table, What: what, Remedy: "in the shell of SQLite, DELETE FROM " + table + " WHERE " + where + "; removes them"}
}

// Strays implements queue.Queue.
func (q *Queue) Strays() []queue.Strays { return q.strays.All() }
