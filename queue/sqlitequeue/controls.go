package sqlitequeue

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

const (
	settingsColumns = `drain_paused, publish_paused, max_backlog, why, changed`
	settingsValues  = `drain_paused <> 0, publish_paused <> 0, max_backlog, why, changed` // any value but 0 means true
)

// settingsRow is a row of queue_settings while it is read.
type settingsRow struct {
	s       queue.Settings
	changed int64
}

func (r *settingsRow) into() []any {
	return []any{&r.s.DrainPaused, &r.s.PublishPaused, &r.s.MaxBacklog, &r.s.Why, &r.changed}
}

func (r *settingsRow) settings() queue.Settings {
	r.s.Changed = time.UnixMilli(r.changed)
	return r.s
}

// Settings implements queue.Queue.
func (q *Queue) Settings(ctx context.Context, typ string) (s queue.Settings, err error) {
	if err := queue.ValidateType(typ); err != nil {
		return s, err
	}
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		s, err = readSettings(tx, typ)
		return err
	})
	return s, explain("read the settings of "+typ, err)
}

// readSettings returns the zero value for a type without settings.
func readSettings(tx *sqlitedb.Tx, typ string) (queue.Settings, error) {
	var row settingsRow
	found, err := tx.Get(row.into(), `SELECT `+settingsValues+` FROM queue_settings WHERE type = ?`, typ)
	if err != nil || !found {
		return queue.Settings{}, err
	}
	return row.settings(), nil
}

// AllSettings implements queue.Queue.
func (q *Queue) AllSettings(ctx context.Context) (map[string]queue.Settings, error) {
	all := map[string]queue.Settings{}
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query(`SELECT type, ` + settingsValues + ` FROM queue_settings WHERE drain_paused OR publish_paused OR max_backlog > 0`)
		if err != nil {
			return err
		}
		for rows.Next() {
			var typ string
			var row settingsRow
			if err := rows.Scan(append([]any{&typ}, row.into()...)...); err != nil {
				return err
			}
			all[typ] = row.settings()
		}
		return rows.Err()
	})
	if err != nil {
		return nil, explain("read the settings", err)
	}
	return all, nil
}

// PatchSettings implements queue.Queue: read, change and write in one transaction, synced.
func (q *Queue) PatchSettings(ctx context.Context, typ string, c queue.SettingsPatch) (s queue.Settings, err error) {
	c, err = queuedriver.CheckSettingsPatch(typ, c)
	if err != nil {
		return queue.Settings{}, err
	}
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		if s, err = readSettings(tx, typ); err != nil {
			return err
		}
		s = queuedriver.Apply(c, s, q.now())
		if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_types (type) VALUES (?)`, typ); err != nil {
			return err
		}
		_, err := tx.Exec(`INSERT OR REPLACE INTO queue_settings (type, `+settingsColumns+`) VALUES (?, ?, ?, ?, ?, ?)`,
			typ, s.DrainPaused, s.PublishPaused, s.MaxBacklog, s.Why, s.Changed.UnixMilli())
		return err
	})
	if err != nil {
		return queue.Settings{}, explain("change the settings of "+typ, err)
	}
	return s, nil
}
