package sqlitequeue

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// MoveToDeadLetters implements queue.Queue: insert and delete in one transaction, synced.
func (q *Queue) MoveToDeadLetters(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	letters, err := queuedriver.CheckDeadLetters(typ, letters, q.now())
	if err != nil {
		return err
	}
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		ids := make([]queue.ID, len(letters))
		for i := range letters {
			l := &letters[i]
			ids[i] = l.ID
			headers, err := encodeHeaders(l.Headers)
			if err != nil {
				return fmt.Errorf("headers of message %d: %w", i, err)
			}
			if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_dead (type, id, payload, headers, reason, attempts, worker, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
				typ, l.ID[:], blob(l.Payload), headers, l.Reason, int64(l.Attempts), l.Worker, l.Time.UnixMilli()); err != nil {
				return err
			}
		}
		return deleteMessages(tx, typ, ids)
	})
	return explain("bury "+typ, err)
}

// DeadLetters implements queue.Queue: a range of the unique index, in its order, on one snapshot.
func (q *Queue) DeadLetters(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.DeadLetter, error) {
	if err := queuedriver.CheckFetch(typ, limit); err != nil {
		return nil, err
	}
	var out []queue.DeadLetter
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query(`SELECT id, payload, `+headersColumn+`, reason, attempts, worker, at FROM queue_dead WHERE type = ? AND id > ? ORDER BY id LIMIT ?`,
			typ, after[:], limit.Messages)
		if err != nil {
			return err
		}
		var size int64
		for rows.Next() {
			l := queue.DeadLetter{Message: queue.Message{Type: typ}}
			var id []byte
			var headers *string
			var at int64
			if err := rows.Scan(&id, &l.Payload, &headers, &l.Reason, &l.Attempts, &l.Worker, &at); err != nil {
				return err
			}
			if err := decode(&l.Message, id, headers); err != nil {
				return err
			}
			l.Time = time.UnixMilli(at)
			out = append(out, l)
			if size += int64(l.Size()); limit.Bytes > 0 && size >= limit.Bytes {
				return nil
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, explain("list the dead letters of "+typ, err)
	}
	return out, nil
}

// RemoveDeadLetters implements queue.Queue: one transaction, synced.
func (q *Queue) RemoveDeadLetters(ctx context.Context, typ string, ids []queue.ID) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	err := q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		for _, id := range ids {
			if _, err := tx.Exec(`DELETE FROM queue_dead WHERE type = ? AND id = ?`, typ, id[:]); err != nil {
				return err
			}
		}
		return nil
	})
	return explain("remove dead letters of "+typ, err)
}
