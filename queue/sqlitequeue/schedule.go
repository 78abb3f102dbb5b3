package sqlitequeue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// delayedDDL are the tables of the delayed messages.
var delayedDDL = []string{
	`CREATE TABLE IF NOT EXISTS queue_delayed (
		due     INTEGER NOT NULL, -- milliseconds since 1970
		type    TEXT NOT NULL,
		id      BLOB NOT NULL CHECK (length(id) = 20),
		payload BLOB NOT NULL,
		headers TEXT, -- JSON object; null without headers
		UNIQUE (due, type, id)
	) STRICT`,
	// What was promoted or cancelled lately, so that a late repetition of its publisher does not bring it back.
	`CREATE TABLE IF NOT EXISTS queue_delayed_settled (id BLOB PRIMARY KEY) STRICT, WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS queue_sequences (
		type     TEXT PRIMARY KEY,
		producer INTEGER NOT NULL, -- 64 bits without sign
		n        INTEGER NOT NULL,
		at       INTEGER NOT NULL  -- milliseconds since 1970
	) STRICT, WITHOUT ROWID`,
}

// Delay implements queue.Queue: one transaction, synced.
func (q *Queue) Delay(ctx context.Context, msgs []queue.Message) error {
	msgs, err := queue.CheckDelay(msgs)
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
			payload := m.Payload
			if payload == nil {
				payload = []byte{} // nil would be NULL
			}
			// rule: what is settled does not come back, see queue.SettledFor
			if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_delayed (due, type, id, payload, headers)
				SELECT ?, ?, ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM queue_delayed_settled WHERE id = ?)`,
				m.Due.UnixMilli(), m.Type, m.ID[:], payload, headers, m.ID[:]); err != nil {
				return err
			}
		}
		written = true
		return nil
	})
	return insertError(ctx, "delay messages", err, written)
}

// Promote implements queue.Queue: everything in one transaction, synced. So a message is in one place at any time, and nobody but
// this transaction has seen the numbers that it gives.
func (q *Queue) Promote(ctx context.Context, limit queue.Limit) (p queue.Promotion, err error) {
	if err := queue.CheckPromote(limit); err != nil {
		return queue.Promotion{}, err
	}
	// Who looks often must not write: the file has one writer at a time.
	next, ok, err := q.NextDue(ctx)
	if now := q.now(); err != nil || !ok || next.After(now) {
		return queue.Promotion{Next: next, Now: now}, err
	}
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		p = queue.Promotion{Now: q.now()}
		due, err := readDelayed(tx, queue.Slot{}, p.Now, limit)
		if err != nil {
			return err
		}
		if err := promote(tx, due, p.Now); err != nil {
			return err
		}
		p.Messages = len(due)
		p.Next, _, err = nextDue(tx)
		return err
	})
	if err != nil {
		return queue.Promotion{}, explain("promote delayed messages", err)
	}
	return p, nil
}

func promote(tx *sqlitedb.Tx, due []queue.Message, now time.Time) error {
	sequences := map[string]*queue.Sequence{}
	for i := range due {
		m := &due[i]
		s := sequences[m.Type]
		if s == nil {
			s = &queue.Sequence{}
			var producer, n int64
			if _, err := tx.Get([]any{&producer, &n, &s.At}, `SELECT producer, n, at FROM queue_sequences WHERE type = ?`, m.Type); err != nil {
				return err
			}
			s.Producer, s.N = uint64(producer), uint64(n)
			sequences[m.Type] = s
		}
		id := s.Next(now)
		headers, err := encodeHeaders(queue.PromotedHeaders(m.Headers, m.ID, id))
		if err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT INTO queue_messages (type, id, payload, headers) SELECT type, ?, payload, ? FROM queue_delayed
			WHERE due = ? AND type = ? AND id = ?`, id[:], headers, m.Due.UnixMilli(), m.Type, m.ID[:]); err != nil {
			return err
		}
		if _, err := settleDelayed(tx, queue.SlotOf(m), now); err != nil {
			return err
		}
	}
	for typ, s := range sequences {
		if _, err := tx.Exec(`INSERT OR REPLACE INTO queue_sequences (type, producer, n, at) VALUES (?, ?, ?, ?)`,
			typ, int64(s.Producer), int64(s.N), s.At); err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_types (type) VALUES (?)`, typ); err != nil {
			return err
		}
	}
	old := queue.NewID(now.Add(-queue.SettledFor), 0, 0)
	_, err := tx.Exec(`DELETE FROM queue_delayed_settled WHERE id < ?`, old[:])
	return err
}

// settleDelayed removes a delayed message and remembers that, as long as its publisher may repeat it.
func settleDelayed(tx *sqlitedb.Tx, s queue.Slot, now time.Time) (removed bool, err error) {
	n, err := tx.Exec(`DELETE FROM queue_delayed WHERE due = ? AND type = ? AND id = ?`, s.Due.UnixMilli(), s.Type, s.ID[:])
	if err == nil && n > 0 && now.Sub(s.ID.Time()) < queue.SettledFor {
		_, err = tx.Exec(`INSERT OR IGNORE INTO queue_delayed_settled (id) VALUES (?)`, s.ID[:])
	}
	return n > 0, err
}

// readDelayed reads what is due at the given time, without payloads: those are moved inside the database.
func readDelayed(tx *sqlitedb.Tx, after queue.Slot, until time.Time, limit queue.Limit) (out []queue.Message, err error) {
	rows, err := tx.Query(`SELECT due, type, id, length(payload), headers FROM queue_delayed WHERE (due, type, id) > (?, ?, ?) AND due <= ?
		ORDER BY due, type, id LIMIT ?`, dueOf(after), after.Type, after.ID[:], until.UnixMilli(), limit.Messages)
	if err != nil {
		return nil, err
	}
	defer rows.Close() // before anything is changed
	var size int64
	for rows.Next() {
		var m queue.Message
		var due, length int64
		var id []byte
		var headers *string
		if err := rows.Scan(&due, &m.Type, &id, &length, &headers); err != nil {
			return nil, err
		}
		if err := decode(&m, id, headers); err != nil {
			return nil, err
		}
		m.Due = time.UnixMilli(due)
		out = append(out, m)
		if size += length; limit.Bytes > 0 && size >= limit.Bytes {
			return out, nil
		}
	}
	return out, rows.Err()
}

// dueOf is the due time of a slot as it is stored; the zero slot lies before all others.
func dueOf(s queue.Slot) int64 {
	if s == (queue.Slot{}) {
		return -1
	}
	return s.Due.UnixMilli()
}

// NextDue implements queue.Queue: the first entry of the unique index.
func (q *Queue) NextDue(ctx context.Context) (due time.Time, ok bool, err error) {
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) (err error) {
		due, ok, err = nextDue(tx)
		return err
	})
	return due, ok && err == nil, explain("look for delayed messages", err)
}

func nextDue(tx *sqlitedb.Tx) (due time.Time, ok bool, err error) {
	var ms int64
	if ok, err = tx.Get([]any{&ms}, `SELECT due FROM queue_delayed ORDER BY due, type, id LIMIT 1`); ok {
		due = time.UnixMilli(ms)
	}
	return due, ok, err
}

// Delayed implements queue.Queue: a range of the unique index, in its order, on one snapshot.
func (q *Queue) Delayed(ctx context.Context, after queue.Slot, limit queue.Limit) (out []queue.Message, err error) {
	if err := queue.CheckPromote(limit); err != nil {
		return nil, err
	}
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query(`SELECT due, type, id, payload, headers FROM queue_delayed WHERE (due, type, id) > (?, ?, ?) ORDER BY due, type, id LIMIT ?`,
			dueOf(after), after.Type, after.ID[:], limit.Messages)
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
			out = append(out, m)
			if size += int64(len(m.Payload)); limit.Bytes > 0 && size >= limit.Bytes {
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
func (q *Queue) CancelDelayed(ctx context.Context, slots []queue.Slot) (cancelled int, err error) {
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		cancelled = 0
		for _, s := range slots {
			removed, err := settleDelayed(tx, s, q.now())
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

// insertError tells what the error of a writing transaction says about its messages.
func insertError(ctx context.Context, op string, err error, written bool) error {
	if err == nil {
		return nil
	}
	ie := &queue.InsertError{Err: explain(op, err)}
	switch {
	case errors.Is(err, sqlitedb.ErrBusy), errors.Is(err, sqlitedb.ErrDiskFull): // rolled back, or never begun
		ie.Refused, ie.Temporary = true, true
	case !written: // the transaction was rolled back
		ie.Refused, ie.Temporary = true, ctx.Err() != nil
	}
	return ie // rule: an error of the commit is unclear
}
