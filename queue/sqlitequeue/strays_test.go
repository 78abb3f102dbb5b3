package sqlitequeue

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// TestStraysInSQLite: types and due messages among thousands of rows with invalid type names are found; the next checks do not read those
// rows again; an operator is told about them; and the remedy removes them and nothing else.
func TestStraysInSQLite(t *testing.T) {
	race.Skip(t)
	q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	at := time.UnixMilli(q.now().UnixMilli())
	ours := []string{"audit", "m002500.a", "z" + strings.Repeat("_", queue.MaxTypeLen-1)}
	for i, typ := range ours {
		m := queue.Message{Type: typ, ID: queue.NewID(at, 7, uint64(i+1)), Payload: []byte("x")}
		if err := q.Insert(t.Context(), typ, []queue.Message{m}); err != nil {
			t.Fatal(err)
		}
		if err := q.MoveToDeadLetters(t.Context(), typ, []queue.DeadLetter{{Message: queue.Message{Type: typ, ID: queue.NewID(at, 8, 1), Payload: []byte("x")}}}); err != nil {
			t.Fatal(err)
		}
		if err := q.RegisterType(t.Context(), typ); err != nil {
			t.Fatal(err)
		}
		if _, err := q.RegisterFile(t.Context(), typ, queue.RegistryEntry{FileID: [16]byte{1}}); err != nil {
			t.Fatal(err)
		}
		m.Due = at.Add(time.Duration(i-1) * time.Hour)
		if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	const each = 5000
	names := func(i int) string {
		return fmt.Sprintf([]string{"m%06d ", "M%06d", "_%06d", "-m%06d", "ä%06d", strings.Repeat("a", queue.MaxTypeLen) + "%06d"}[i%6], i)
	}
	if err := q.db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
		for i := range each {
			id := queue.NewID(at, 9, uint64(i+1))
			due := at.Add(-2 * time.Hour).Add(time.Duration(i) * time.Second).UnixMilli()
			for statement, args := range map[string][]any{
				`INSERT INTO queue_types (type) VALUES (?)`:                                                                 {names(i)},
				`INSERT INTO queue_files (type, file_id, epoch, durable_index) VALUES (?, x'', 0, 0)`:                       {names(i)},
				`INSERT INTO queue_messages (type, id, payload) VALUES (?, ?, x'')`:                                         {names(i), id[:]},
				`INSERT INTO queue_dead (type, id, payload, reason, attempts, worker, at) VALUES (?, ?, x'', '', 1, '', 0)`: {names(i), id[:]},
				`INSERT INTO queue_delayed (due, type, id, payload) VALUES (?, ?, ?, x'')`:                                  {due, names(i), id[:]},
				`INSERT INTO queue_delayed (due, type, id, payload) VALUES (?, 'm' || ?, zeroblob(20), x'')`:                {due, i},
				`INSERT INTO queue_delayed (due, type, id, payload, headers) VALUES (?, 'unreadable', ?, x'', 'k=v')`:       {due, id[:]},
			} {
				if _, err := tx.Exec(statement, args...); err != nil {
					return fmt.Errorf("%s: %w", statement, err)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	look := func() []queue.Strays {
		t.Helper()
		if types, err := q.Types(t.Context()); !slices.Equal(types, ours) || err != nil {
			t.Fatalf("Types = %.200q, %v; want %q", types, err, ours)
		}
		if due, ok, err := q.NextDue(t.Context()); err != nil || !ok || !due.Equal(at.Add(time.Hour)) {
			t.Errorf("NextDue = %v, %v, %v; want %v", due, ok, err, at.Add(time.Hour))
		}
		return q.Strays()
	}
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); p.Messages != 2 || err != nil || !p.Next.Equal(at.Add(time.Hour)) {
		t.Fatalf("promoted %+v, %v", p, err)
	}
	look()
	q.mu.Lock()
	from := q.walk.from
	q.walk.ended = time.Now().Add(time.Hour) // even a slow machine does not restart them
	q.mu.Unlock()
	if want := at.Add(-2*time.Hour + (each-1)*time.Second).UnixMilli(); from != want {
		t.Errorf("looks begin at %d, want %d: all before cannot be promoted", from, want)
	}

	// A message stored among them late is found when they are checked again.
	late := queue.Message{Type: "audit", ID: queue.NewID(at, 7, 99), Payload: []byte("x"), Due: at.Add(-90 * time.Minute)}
	if err := q.Delay(t.Context(), []queue.Message{late}); err != nil {
		t.Fatal(err)
	}
	look()
	pass := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.walk.ended = time.Now().Add(-walkAgain)
	}
	pass()
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); p.Messages != 1 || err != nil {
		t.Fatalf("promoted %+v, %v", p, err)
	}

	all := look()
	if len(all) != 6 {
		t.Errorf("reported %v, want six", all)
	}
	for _, s := range all {
		want := each
		if strings.Contains(s.What, "or a zero ID") {
			want *= 2
		}
		if s.Count != want || s.Example == "" || !strings.Contains(s.String(), s.Example) {
			t.Errorf("%v; want %d, and an example", s, want)
		}
		_, command, ok := strings.Cut(s.Remedy, "in the shell of SQLite, ")
		command, ok2 := strings.CutSuffix(command, " removes them")
		if ok && ok2 {
			mustExec(t, q, command)
			if strings.Contains(command, "octet_length") {
				t.Errorf("the shell of Debian 12, SQLite 3.40, does not have octet_length: %s", command)
			}
		} else if !strings.Contains(s.Remedy, "scheduled rm") {
			t.Errorf("no remedy: %s", s.Remedy)
		}
	}
	mustExec(t, q, `DELETE FROM queue_delayed WHERE type = 'unreadable'`) // as scheduled rm does
	pass()
	if got := look(); len(got) != 0 {
		t.Errorf("reported %v", got)
	}
	for table, want := range map[string]int{"queue_messages": 6, "queue_dead": 3, "queue_delayed": 1, "queue_types": 3, "queue_files": 3} {
		var n int
		if err := q.db.Read(t.Context(), func(tx *sqlitedb.Tx) error {
			_, err := tx.Get([]any{&n}, `SELECT count(*) FROM `+table)
			return err
		}); err != nil || n != want {
			t.Errorf("%d rows are left in %s, want %d (%v)", n, table, want, err)
		}
	}
}

func BenchmarkStrays(b *testing.B) {
	q, err := Open(b.Context(), filepath.Join(b.TempDir(), "q.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	if err := q.db.Write(b.Context(), func(tx *sqlitedb.Tx) error {
		for i := range 60_000 {
			id := queue.NewID(q.now(), 9, uint64(i+1))
			if _, err := tx.Exec(`INSERT INTO queue_messages (type, id, payload) VALUES (?, ?, x'')`, fmt.Sprintf("m%06d ", i), id[:]); err != nil {
				return err
			}
			if _, err := tx.Exec(`INSERT INTO queue_delayed (due, type, id, payload) VALUES (?, ?, ?, x'')`, i, fmt.Sprintf("m%06d ", i), id[:]); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	b.Run("Types", func(b *testing.B) {
		for b.Loop() {
			if _, err := q.Types(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("NextDue", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := q.NextDue(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
