package sqlitequeue

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/internal/sqlitedb"
)

// The log is bounded. Foreign rows, and a restored database, do no harm.
func TestNotificationsInSQLite(t *testing.T) {
	q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for range 300 {
		if err := q.Notify(t.Context(), []string{"orders", "audit"}); err != nil {
			t.Fatal(err)
		}
	}
	n, err := q.Notifications(t.Context(), nil)
	if err != nil || n.Next[""] != 600 {
		t.Fatalf("%+v, %v", n, err)
	}
	exec := func(statement string) {
		t.Helper()
		if err := q.db.Write(t.Context(), func(tx *sqlitedb.Tx) error { _, err := tx.Exec(statement); return err }); err != nil {
			t.Fatal(err)
		}
	}
	rows := 0
	if err := q.db.Read(t.Context(), func(tx *sqlitedb.Tx) error {
		_, err := tx.Get([]any{&rows}, `SELECT count(*) FROM queue_notifications`)
		return err
	}); err != nil || rows > 128 {
		t.Errorf("%d rows, %v", rows, err)
	}
	exec(`INSERT INTO queue_notifications (n, type) VALUES (601, '../etc'), (602, 'refunds')`)
	if n, err = q.Notifications(t.Context(), n.Next); err != nil || n.Missed || !slices.Equal(n.Types, []string{"refunds"}) {
		t.Errorf("rows of others: %+v, %v", n, err)
	}
	exec(`DELETE FROM queue_notifications WHERE n > 500`)
	if n, err = q.Notifications(t.Context(), n.Next); err != nil || !n.Missed || len(n.Types) != 2 {
		t.Errorf("after a restore: %+v, %v", n, err)
	}
	exec(`DELETE FROM queue_notifications`)
	if n, err = q.Notifications(t.Context(), n.Next); err != nil || !n.Missed {
		t.Errorf("emptied: %+v, %v", n, err)
	}
	if err := q.Notify(t.Context(), []string{"orders"}); err != nil {
		t.Fatal(err)
	}
	if n, err = q.Notifications(t.Context(), n.Next); err != nil || n.Missed || !slices.Equal(n.Types, []string{"orders"}) {
		t.Errorf("then: %+v, %v", n, err)
	}
}
