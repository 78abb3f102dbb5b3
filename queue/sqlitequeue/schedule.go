package sqlitequeue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// delayedDDL creates the tables of the delayed messages.
var delayedDDL = []string{
	`CREATE TABLE IF NOT EXISTS queue_delayed (
		due     INTEGER NOT NULL, -- milliseconds since 1970
		type    TEXT NOT NULL,
		id      BLOB NOT NULL CHECK (length(id) = 20),
		payload BLOB NOT NULL,
		headers TEXT, -- JSON object; null without headers
		UNIQUE (due, type, id)
	) STRICT`,
	// The messages that were promoted or cancelled recently, so that a late retry of a publisher does
	// not store one again.
	`CREATE TABLE IF NOT EXISTS queue_delayed_settled (id BLOB PRIMARY KEY, ` + settledColumn + `) STRICT, WITHOUT ROWID`,
	// How much time has passed, see queuedriver.Moment: one row, which gets a new version with each
	// promotion.
	`CREATE TABLE IF NOT EXISTS queue_delayed_passed (
		one     INTEGER PRIMARY KEY CHECK (one = 1),
		version INTEGER NOT NULL,
		passed  INTEGER NOT NULL -- milliseconds
	) STRICT`,
	`CREATE TABLE IF NOT EXISTS queue_sequences (
		type     TEXT PRIMARY KEY,
		producer INTEGER NOT NULL, -- 64 bits without sign
		n        INTEGER NOT NULL,
		at       INTEGER NOT NULL, -- milliseconds since 1970
		` + usedColumn + `
	) STRICT, WITHOUT ROWID`,
}

// These columns were added later: databases of earlier versions lack them, and earlier versions leave
// them null.
const (
	settledColumn = `passed INTEGER` // milliseconds, as in queue_delayed_passed: when it was settled
	usedColumn    = `used INTEGER`   // milliseconds, as in queue_delayed_passed: when the number was assigned
)

// Delay implements queue.Queue: one transaction, synced.
func (q *Queue) Delay(ctx context.Context, msgs []queue.Message) error {
	msgs, err := queuedriver.CheckDelay(msgs)
	if err != nil {
		return err
	}
	written := false
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		for i := range msgs {
			m := &msgs[i]
			headers, err := encodeHeaders(m.Headers)
			if err != nil {
				return fmt.Errorf("headers of message %d: %w", i, err)
			}
			// rule: a settled message is not stored again, see queuedriver.SettledFor
			if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_delayed (due, type, id, payload, headers)
				SELECT ?, ?, ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM queue_delayed_settled WHERE id = ?)`,
				m.Due.UnixMilli(), m.Type, m.ID[:], blob(m.Payload), headers, m.ID[:]); err != nil {
				return err
			}
		}
		written = true
		return nil
	})
	return insertError(ctx, "delay messages", err, written)
}

// Promote implements queue.Queue: one transaction, synced. So a message is always in exactly one
// place, and its number is not visible before the commit.
func (q *Queue) Promote(ctx context.Context, limit queue.Limit) (p queue.Promotion, err error) {
	if err := queuedriver.CheckPromote(limit); err != nil {
		return queue.Promotion{}, err
	}
	// Frequent checks must not write: the file has one writer at a time.
	q.readClock() // rule: each time, not only once: it may have been wrong when this process started
	next, ok, err := q.NextDue(ctx)
	if now := q.clock.Agreed(); err != nil || !ok || next.After(now) {
		return queue.Promotion{Next: next, Now: now}, err
	}
	version := rand.Int64()
	var behind walk
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		p = queue.Promotion{Now: q.clock.Agreed()}
		due, err := readDelayed(tx, q.beginWalk(), p.Now, limit)
		if err != nil {
			return err
		}
		m, err := q.moment(tx, p.Now)
		if err != nil {
			return err
		}
		if p.Messages, p.DeadLetters, err = promote(tx, due, m); err != nil {
			return err
		}
		p.Types = promotedTypes(due)
		if err := q.forget(tx, m); err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT OR REPLACE INTO queue_delayed_passed (one, version, passed) VALUES (1, ?, ?)`, version, m.Passed.Milliseconds()); err != nil {
			return err
		}
		behind = q.beginWalk()
		p.Next, _, err = nextDue(tx, &behind, p.Now)
		return err
	})
	if err != nil {
		return queue.Promotion{}, explain("promote delayed messages", err)
	}
	q.endWalk(behind) // only after the commit: if that fails, the promoted messages are back
	q.mu.Lock()
	q.last, q.since = version, clock.Start() // rule: the sequences rest from the moment when their numbers are visible
	q.mu.Unlock()
	return p, nil
}

// moment returns the Moment of a promotion: see queuedriver.Moment.
func (q *Queue) moment(tx *sqlitedb.Tx, now time.Time) (queuedriver.Moment, error) {
	version, passed, err := readPassed(tx)
	m := queuedriver.Moment{Now: now, Passed: passed}
	q.mu.Lock()
	defer q.mu.Unlock()
	// rule: only time that this process itself has measured is added, and only if no other process has
	// promoted since
	if m.Watched = version != 0 && version == q.last; m.Watched {
		m.Passed += q.since.Elapsed()
	}
	return m, err
}

// readPassed returns Moment.Passed of the last promotion, and the version that it wrote; 0 if there was
// none.
func readPassed(tx *sqlitedb.Tx) (version int64, passed time.Duration, err error) {
	var ms int64
	_, err = tx.Get([]any{&version, &ms}, `SELECT version, passed FROM queue_delayed_passed`)
	return version, time.Duration(ms) * time.Millisecond, err
}

// forget removes, every forgetEvery, notes about settled messages that are old enough by Moment.Passed.
// The bound on the ID only saves reading most of them.
func (q *Queue) forget(tx *sqlitedb.Tx, m queuedriver.Moment) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := m.Passed - queuedriver.SettledFor - time.Hour
	if before <= 0 || time.Since(q.forgot) < forgetEvery {
		return nil
	}
	q.forgot = time.Now()
	old := queue.NewID(m.Now.Add(-queuedriver.SettledFor), 0, 0)
	_, err := tx.Exec(`DELETE FROM queue_delayed_settled WHERE id < ? AND (passed IS NULL OR passed < ?)`, old[:], before.Milliseconds())
	return err
}

// forgetEvery is how often a process removes notes about settled messages.
const forgetEvery = time.Hour

// due is a delayed message that is due, without its payload.
type due struct {
	queue.Message
	unfit error // why it becomes a dead letter; nil: it is promoted
}

// promote promotes due messages, in order. A message that the database refuses becomes a dead letter,
// and its number goes to the next message: it is not visible outside the transaction.
func promote(tx *sqlitedb.Tx, msgs []due, now queuedriver.Moment) (promoted, buried int, err error) {
	sequences := map[string]*queuedriver.Sequence{}
	var refused error
	for i := range msgs {
		m := &msgs[i]
		if m.unfit != nil {
			continue
		}
		s := sequences[m.Type]
		if s == nil {
			var err error
			if s, err = readSequence(tx, m.Type, now); err != nil {
				return 0, 0, err
			}
			sequences[m.Type] = s
		}
		before := *s
		id := s.Next(now)
		headers, err := encodeHeaders(queuedriver.PromotedHeaders(m.Headers, m.ID, id))
		if err != nil {
			return 0, 0, err
		}
		_, err = tx.Exec(`INSERT INTO queue_messages (type, id, payload, headers) SELECT type, ?, payload, ? FROM queue_delayed
			WHERE due = ? AND type = ? AND id = ?`, id[:], headers, m.Due.UnixMilli(), m.Type, m.ID[:])
		switch {
		case sqlitedb.IsRefusal(err):
			*s = before // the next one gets the number
			m.unfit = fmt.Errorf("the database refuses it: %w", err)
			refused = err
			continue
		case err != nil:
			return 0, 0, err
		}
		promoted++
		if _, err := settleDelayed(tx, queue.ScheduleKeyOf(&m.Message), now.Passed); err != nil {
			return 0, 0, err
		}
	}
	if refused != nil && promoted == 0 {
		if err := takesOthers(tx); err != nil {
			return 0, 0, fmt.Errorf("the database refuses every message, so none becomes a dead letter; remove the trigger or constraint on queue_messages: %w", err)
		}
	}
	for i := range msgs {
		if msgs[i].unfit == nil {
			continue
		}
		switch err := buryDelayed(tx, &msgs[i], now); {
		case sqlitedb.IsRefusal(err): // queue_dead refuses it, too: it stays where it is
		case err != nil:
			return 0, 0, err
		default:
			buried++
		}
	}
	return promoted, buried, writeSequences(tx, sequences)
}

func readSequence(tx *sqlitedb.Tx, typ string, now queuedriver.Moment) (*queuedriver.Sequence, error) {
	s := &queuedriver.Sequence{}
	var producer, n int64
	var used *int64 // null: an earlier version has used it, possibly just now
	if _, err := tx.Get([]any{&producer, &n, &s.At, &used}, `SELECT producer, n, at, used FROM queue_sequences WHERE type = ?`, typ); err != nil {
		return nil, err
	}
	if s.Used = now.Passed.Milliseconds(); used != nil {
		s.Used = *used
	}
	s.Producer, s.N = uint64(producer), uint64(n)
	return s, nil
}

// writeSequences stores the sequences by type, and registers the types.
func writeSequences(tx *sqlitedb.Tx, sequences map[string]*queuedriver.Sequence) error {
	for typ, s := range sequences {
		if _, err := tx.Exec(`INSERT OR REPLACE INTO queue_sequences (type, producer, n, at, used) VALUES (?, ?, ?, ?, ?)`,
			typ, int64(s.Producer), int64(s.N), s.At, s.Used); err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_types (type) VALUES (?)`, typ); err != nil {
			return err
		}
	}
	return nil
}

// promotedTypes returns the types of the messages that were promoted.
func promotedTypes(msgs []due) (types []string) {
	for i := range msgs {
		if msgs[i].unfit == nil && !slices.Contains(types, msgs[i].Type) {
			types = append(types, msgs[i].Type)
		}
	}
	return types
}

// takesOthers returns an error if the database refuses even an empty message.
//
// rule: a refused message becomes a dead letter only if the database accepts others. Refusing
// everything is an operator's mistake.
func takesOthers(tx *sqlitedb.Tx) error {
	const probe = "~probe" // not a valid type name
	if _, err := tx.Exec(`INSERT INTO queue_messages (type, id, payload) VALUES (?, ?, ?)`, probe, make([]byte, len(queue.ID{})), []byte{}); err != nil {
		return err
	}
	_, err := tx.Exec(`DELETE FROM queue_messages WHERE type = ?`, probe)
	return err
}

// buryDelayed moves a delayed message to the dead letters, inside the database.
func buryDelayed(tx *sqlitedb.Tx, m *due, now queuedriver.Moment) error {
	letters, err := queuedriver.CheckDeadLetters(m.Type, []queue.DeadLetter{queuedriver.DelayedDeadLetter(m.Message, m.unfit.Error())}, now.Now)
	if err != nil {
		return err
	}
	l := &letters[0]
	if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_dead (type, id, payload, headers, reason, attempts, worker, at)
		SELECT type, id, payload, headers, ?, ?, ?, ? FROM queue_delayed WHERE due = ? AND type = ? AND id = ?`,
		l.Reason, int64(l.Attempts), l.Worker, l.Time.UnixMilli(), m.Due.UnixMilli(), m.Type, m.ID[:]); err != nil {
		return err
	}
	_, err = settleDelayed(tx, queue.ScheduleKeyOf(&m.Message), now.Passed)
	return err
}

// settleDelayed removes a delayed message, and notes that it is settled, because its publisher may still retry it.
func settleDelayed(tx *sqlitedb.Tx, s queue.ScheduleKey, passed time.Duration) (removed bool, err error) {
	n, err := tx.Exec(`DELETE FROM queue_delayed WHERE due = ? AND type = ? AND id = ?`, s.Due.UnixMilli(), s.Type, s.ID[:])
	if err == nil && n > 0 { // rule: noted whatever the time of the ID and a clock say
		_, err = tx.Exec(`INSERT OR IGNORE INTO queue_delayed_settled (id, passed) VALUES (?, ?)`, s.ID[:], passed.Milliseconds())
	}
	return n > 0, err
}

// readDelayed reads the messages that are due at the given time, except for those that stay where they
// are.
func readDelayed(tx *sqlitedb.Tx, behind walk, until time.Time, limit queue.Limit) (out []due, err error) {
	var size int64
	err = eachDue(tx, &behind, until, func(m due, length int64) bool {
		out = append(out, m)
		size += int64(m.Size()) + length
		return len(out) < limit.Messages && (limit.Bytes == 0 || size < limit.Bytes)
	})
	return out, err
}

// eachDue calls f with the messages after w that are due at the given time, in order, until f returns
// false. It moves w past the messages that it skips. Payloads are not read: they are moved inside the
// database.
func eachDue(tx *sqlitedb.Tx, w *walk, until time.Time, f func(m due, size int64) bool) error {
	rows, err := tx.Query(`SELECT due, type, id, length(payload), `+headersColumn+` FROM queue_delayed WHERE due <= ? AND (due, type, id) > (?, ?, ?) ORDER BY due, type, id`,
		until.UnixMilli(), w.from, w.last.Type, w.last.ID[:])
	if err != nil {
		return err
	}
	defer rows.Close() // before anything is changed
	for rows.Next() {
		var m due
		var at, size int64
		var id []byte
		var headers *string
		if err := rows.Scan(&at, &m.Type, &id, &size, &headers); err != nil {
			return err
		}
		if err := decode(&m.Message, id, headers); err != nil {
			return err
		}
		m.Due = time.UnixMilli(at)
		action, why := queuedriver.DecideDue(&m.Message, int(size))
		if action == queuedriver.Keep {
			w.pass(&m.Message, at)
			continue
		}
		if m.unfit = why; !f(m, size) {
			return nil
		}
	}
	return rows.Err()
}

// dueOf is the due time of a key as it is stored; the zero key precedes all others.
func dueOf(s queue.ScheduleKey) int64 {
	if s == (queue.ScheduleKey{}) {
		return math.MinInt64
	}
	return s.Due.UnixMilli()
}

// NextDue implements queue.Queue: the first entry of the unique index that is not due, or the first
// message that is.
func (q *Queue) NextDue(ctx context.Context) (due time.Time, ok bool, err error) {
	var w walk
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) (err error) {
		w = q.beginWalk()
		due, ok, err = nextDue(tx, &w, q.clock.Agreed())
		return err
	})
	if err == nil {
		q.endWalk(w)
	}
	return due, ok && err == nil, explain("look for delayed messages", err)
}

// nextDue returns when the first message that can be promoted is due.
func nextDue(tx *sqlitedb.Tx, w *walk, now time.Time) (next time.Time, ok bool, err error) {
	err = eachDue(tx, w, now, func(m due, _ int64) bool {
		next, ok = m.Due, true
		return false
	})
	if ok || err != nil {
		return next, ok, err
	}
	var ms int64
	if ok, err = tx.Get([]any{&ms}, `SELECT due FROM queue_delayed WHERE due > ? ORDER BY due, type, id LIMIT 1`, now.UnixMilli()); ok {
		next = time.UnixMilli(ms)
	}
	return next, ok, err
}

// Delayed implements queue.Queue: a range of the unique index, in its order, on one snapshot.
func (q *Queue) Delayed(ctx context.Context, after queue.ScheduleKey, limit queue.Limit) (out []queue.Message, err error) {
	if err := queuedriver.CheckPromote(limit); err != nil {
		return nil, err
	}
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query(`SELECT due, type, id, payload, `+headersColumn+` FROM queue_delayed WHERE (due, type, id) > (?, ?, ?) ORDER BY due, type, id`,
			dueOf(after), after.Type, after.ID[:])
		if err != nil {
			return err
		}
		var size int64
		for rows.Next() {
			var m queue.Message
			var due int64
			var id []byte
			var headers *string
			if err := rows.Scan(&due, &m.Type, &id, &m.Payload, &headers); err != nil {
				return err
			}
			if err := decode(&m, id, headers); err != nil {
				return err
			}
			m.Due = time.UnixMilli(due)
			if s := queue.ScheduleKeyOf(&m); !queuedriver.Listable(s) {
				continue
			}
			out = append(out, m)
			if size += int64(m.Size()); len(out) == limit.Messages || limit.Bytes > 0 && size >= limit.Bytes {
				return nil
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, explain("list delayed messages", err)
	}
	return out, nil
}

// CancelDelayed implements queue.Queue: one transaction, synced.
func (q *Queue) CancelDelayed(ctx context.Context, slots []queue.ScheduleKey) (cancelled int, err error) {
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		cancelled = 0
		_, passed, err := readPassed(tx)
		if err != nil {
			return err
		}
		for _, s := range slots {
			removed, err := settleDelayed(tx, s, passed)
			if err != nil {
				return err
			}
			if removed {
				cancelled++
			}
		}
		return nil
	})
	if err != nil {
		return 0, explain("cancel delayed messages", err)
	}
	return cancelled, nil
}

// insertError classifies the error of a writing transaction; written means that the error came from the
// commit.
func insertError(ctx context.Context, op string, err error, written bool) error {
	if err == nil {
		return nil
	}
	ie := &queue.InsertError{Err: explain(op, err)}
	switch {
	case errors.Is(err, sqlitedb.ErrNotBegun), errors.Is(err, sqlitedb.ErrDiskFull): // rolled back, or never begun
		ie.Refused, ie.Temporary = true, true
	case !written: // the transaction was rolled back
		ie.Refused, ie.Temporary = true, ctx.Err() != nil
	}
	return ie // rule: an error of the commit is unclear
}
