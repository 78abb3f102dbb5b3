package sqlitequeue

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// isMessage selects the rows of queue_messages that are messages. The others have foreign keys.
// Fetch returns the same rows.
const isMessage = `length(id) = 20 AND id > zeroblob(20)`

// isForeign is the opposite of isMessage, for a row that was read.
func isForeign(id []byte) bool { return len(id) != len(queue.ID{}) || queue.ID(id).IsZero() }

// beforeBlobs sorts before every blob, including the empty one: it is not a blob.
const beforeBlobs = int64(0)

// foreignKey is a foreign ID as text: a blob literal of SQL.
func foreignKey(id []byte) string { return "x'" + hex.EncodeToString(id) + "'" }

// parseForeignKey accepts exactly the texts that foreignKey returns.
func parseForeignKey(key string) ([]byte, bool) {
	digits, ok := strings.CutPrefix(key, "x'")
	digits, ok2 := strings.CutSuffix(digits, "'")
	id, err := hex.DecodeString(digits)
	return id, ok && ok2 && err == nil && foreignKey(id) == key
}

// ForeignKeys implements queue.Queue.
func (q *Queue) ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error) {
	if err := queuedriver.CheckForeignKeys(typ, most); err != nil {
		return nil, err
	}
	from := any(beforeBlobs)
	if after != "" {
		id, ok := parseForeignKey(after)
		if !ok {
			return nil, queuedriver.NotForeignKey(typ, after)
		}
		from = id
	}
	var keys []string
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query(`SELECT id FROM queue_messages WHERE type = ? AND id > ? AND NOT (`+isMessage+`) ORDER BY id LIMIT ?`, typ, from, most)
		if err != nil {
			return err
		}
		for rows.Next() {
			var id []byte
			if err := rows.Scan(&id); err != nil {
				return err
			}
			keys = append(keys, foreignKey(id))
		}
		return rows.Err()
	})
	if err != nil {
		return nil, explain("look for foreign keys of "+typ, err)
	}
	return keys, nil
}

// RemoveForeignKeys implements queue.Queue: one transaction, synced.
func (q *Queue) RemoveForeignKeys(ctx context.Context, typ string, keys []string) (removed int, err error) {
	if err := queue.ValidateType(typ); err != nil {
		return 0, err
	}
	ids := make([][]byte, len(keys))
	for i, key := range keys {
		id, ok := parseForeignKey(key)
		if !ok || !isForeign(id) { // rule: no message is removed by its key
			return 0, queuedriver.NotForeignKey(typ, key)
		}
		ids[i] = id
	}
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		removed = 0
		for some := range slices.Chunk(ids, rowsPerStatement) {
			args := []any{typ}
			for _, id := range some {
				args = append(args, id)
			}
			n, err := tx.Exec(deleteRows(len(some)), args...)
			if err != nil {
				return err
			}
			removed += int(n)
		}
		return nil
	})
	if err != nil {
		return 0, explain("remove foreign keys of "+typ, err)
	}
	return removed, nil
}
