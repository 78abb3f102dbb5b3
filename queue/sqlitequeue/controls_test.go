package sqlitequeue

import (
	"path/filepath"
	"testing"

	"github.com/fencepost/fencepost/queue"
)

// Settings of one type that were written by hand do not block the others.
func TestSettingsThatAreNoBooleans(t *testing.T) {
	q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.PatchSettings(t.Context(), "orders", queue.SettingsPatch{DrainPaused: new(true)}); err != nil {
		t.Fatal(err)
	}
	mustExec(t, q, `INSERT INTO queue_settings (type, drain_paused, publish_paused, max_backlog, why, changed) VALUES ('audit', 0, 2, 0, '', 0)`)
	all, err := q.AllSettings(t.Context())
	if err != nil || !all["orders"].DrainPaused || all["audit"].DrainPaused || !all["audit"].PublishPaused {
		t.Errorf("%+v, %v", all, err)
	}
	if s, err := q.Settings(t.Context(), "audit"); err != nil || !s.PublishPaused {
		t.Errorf("%+v, %v", s, err)
	}
}
