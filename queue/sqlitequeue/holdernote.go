package sqlitequeue

import (
	"context"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// HolderNote implements queue.Queue.
func (q *Queue) HolderNote(ctx context.Context, typ string) (note []byte, err error) {
	if err := queue.ValidateType(typ); err != nil {
		return nil, err
	}
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		_, err := tx.Get([]any{&note}, `SELECT mark FROM queue_marks WHERE type = ?`, typ)
		return err
	})
	if err != nil {
		return nil, explain("read the holder note of "+typ, err)
	}
	return note, nil
}

// SetHolderNote implements queue.Queue: one statement, synced.
func (q *Queue) SetHolderNote(ctx context.Context, typ string, note []byte) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	err := q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec(`INSERT OR REPLACE INTO queue_marks (type, mark) VALUES (?, ?)`, typ, string(note))
		return err
	})
	return explain("store the holder note of "+typ, err)
}
