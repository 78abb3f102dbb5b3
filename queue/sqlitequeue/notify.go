package sqlitequeue

import (
	"context"
	"maps"
	"slices"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Notify implements queue.Queue: a few rows after the last one, not synced. Rows before the latest
// KeptNotifications are removed; the numbers continue, so the last one is the count of all of them.
func (q *Queue) Notify(ctx context.Context, types []string) error {
	if err := queuedriver.CheckNotify(types); err != nil {
		return err
	}
	err := q.db.WriteRelaxed(ctx, func(tx *sqlitedb.Tx) error {
		var last int64
		if _, err := tx.Get([]any{&last}, `SELECT coalesce(max(n), 0) FROM queue_notifications`); err != nil {
			return err
		}
		last += int64(len(types))
		latest := queuedriver.LatestNotifications(types)
		for i, typ := range latest {
			if _, err := tx.Exec(`INSERT INTO queue_notifications (n, type) VALUES (?, ?)`, last-int64(len(latest)-1-i), typ); err != nil {
				return err
			}
		}
		_, err := tx.Exec(`DELETE FROM queue_notifications WHERE n <= ?`, last-queuedriver.KeptNotifications)
		return err
	})
	return explain("notify workers of new messages", err)
}

// Notifications implements queue.Queue. If nothing is new, it reads only the last row.
func (q *Queue) Notifications(ctx context.Context, since queue.NotificationMark) (queue.Notifications, error) {
	r := queuedriver.ReadNotifications(since)
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		var last int64
		if _, err := tx.Get([]any{&last}, `SELECT coalesce(max(n), 0) FROM queue_notifications`); err != nil {
			return err
		}
		if behind, known := since[""]; known && behind == last {
			return nil
		}
		rows, err := tx.Query(`SELECT type FROM queue_notifications WHERE n > ? ORDER BY n`, last-queuedriver.KeptNotifications)
		if err != nil {
			return err
		}
		var latest []string
		for rows.Next() {
			var typ string
			if err := rows.Scan(&typ); err != nil {
				return err
			}
			latest = append(latest, typ)
		}
		r.Log("", last, latest)
		return rows.Err()
	})
	if err != nil {
		return queue.Notifications{}, explain("read notifications", err)
	}
	return r.Result(), nil
}

// PendingTypes implements queue.Queue: a skip scan over queue_messages, see skipScan.
func (q *Queue) PendingTypes(ctx context.Context) ([]string, error) {
	found := map[string]bool{}
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		strays, err := skipScan(tx, "queue_messages", found)
		if err == nil {
			q.strays.Set(strays)
		}
		return err
	})
	if err != nil {
		return nil, explain("list types with messages", err)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Pending implements queue.Queue: an entry of the index for each type, until most have been found.
func (q *Queue) Pending(ctx context.Context, types []string, most int) (found []string, err error) {
	if err := queuedriver.CheckPending(types, most); err != nil {
		return nil, err
	}
	types = slices.Clone(types)
	slices.Sort(types)
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		found = nil
		for _, typ := range slices.Compact(types) {
			var one int
			there, err := tx.Get([]any{&one}, `SELECT 1 FROM queue_messages WHERE type = ? LIMIT 1`, typ)
			if err != nil {
				return err
			}
			if there {
				if found = append(found, typ); len(found) == most {
					break
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, explain("look for types with messages", err)
	}
	return found, nil
}
