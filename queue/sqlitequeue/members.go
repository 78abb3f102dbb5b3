package sqlitequeue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// memberJSON is what the column member holds. Fields may be added; none may change its meaning.
type memberJSON struct {
	Host     string   `json:"host"`
	PID      int      `json:"pid"`
	Version  string   `json:"version"`
	Started  int64    `json:"started"` // milliseconds since 1970
	Types    []string `json:"types"`
	MaxTypes int      `json:"max_types"`
	To       string   `json:"to"`
	Held     []string `json:"held"`
	Idle     []string `json:"idle"`
	Leaving  []string `json:"leaving"`
	Stopping bool     `json:"stopping"`
	Beat     int64    `json:"beat"`

	Errors map[string]string `json:"errors,omitempty"`
}

// Heartbeat implements queue.Queue: one row, not synced.
func (q *Queue) Heartbeat(ctx context.Context, m queue.Member) error {
	q.readClock()
	m, err := queuedriver.CheckHeartbeat(m, q.now())
	if err != nil {
		return err
	}
	b, err := encodeMember(m)
	if err != nil {
		return fmt.Errorf("sqlitequeue: heartbeat of %s: %w", m.Instance, err)
	}
	err = q.db.WriteRelaxed(ctx, func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec(`INSERT OR REPLACE INTO queue_members (id, member, seen) VALUES (?, ?, ?)`, m.Instance, string(b), m.Seen.UnixMilli())
		return err
	})
	return explain("heartbeat of "+m.Instance, err)
}

// encodeMember returns the column member.
func encodeMember(m queue.Member) ([]byte, error) {
	return json.Marshal(memberJSON{Host: m.Host, PID: m.PID, Version: m.Version, Started: m.Started.UnixMilli(), Types: m.Types, MaxTypes: m.MaxTypes, To: m.To,
		Held: m.Held, Idle: m.Idle, Leaving: m.Leaving, Stopping: m.Stopping, Beat: m.Beat, Errors: m.Errors})
}

// decodeMember returns false for a row that is not a member.
func decodeMember(id string, member []byte, seen int64) (queue.Member, bool) {
	var m memberJSON
	if json.Unmarshal(member, &m) != nil {
		return queue.Member{}, false
	}
	return queue.Member{Instance: id, Host: m.Host, PID: m.PID, Version: m.Version, Started: time.UnixMilli(m.Started), Types: m.Types,
		MaxTypes: m.MaxTypes, To: m.To, Held: m.Held, Idle: m.Idle, Leaving: m.Leaving, Stopping: m.Stopping, Errors: m.Errors, Beat: m.Beat, Seen: time.UnixMilli(seen)}, true
}

// Members implements queue.Queue. Rows that cannot be decoded are skipped.
func (q *Queue) Members(ctx context.Context, after string, most int) ([]queue.Member, error) {
	var all []queue.Member
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query(`SELECT id, member, seen FROM queue_members WHERE id > ? ORDER BY id`, after)
		if err != nil {
			return err
		}
		for (most == 0 || len(all) < most) && rows.Next() {
			var id string
			var b []byte
			var seen int64
			if err := rows.Scan(&id, &b, &seen); err != nil {
				return err
			}
			if m, ok := decodeMember(id, b, seen); ok {
				all = append(all, m)
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, explain("list the members", err)
	}
	return all, nil
}

// Leave implements queue.Queue: one row, not synced.
func (q *Queue) Leave(ctx context.Context, id string) error {
	err := q.db.WriteRelaxed(ctx, func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec(`DELETE FROM queue_members WHERE id = ?`, id)
		return err
	})
	return explain("leave of "+id, err)
}
