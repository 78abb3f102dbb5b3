package sqlitequeue

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

func mustExec(t *testing.T, q *Queue, statement string, args ...any) {
	t.Helper()
	if err := q.db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec(statement, args...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

const plantDelayed = `INSERT INTO queue_delayed (due, type, id, payload, headers) SELECT ?, ?, ?, ?, ?
	WHERE NOT EXISTS (SELECT 1 FROM queue_delayed_settled WHERE id = ?3)`

func TestUnfitInSQLite(t *testing.T) {
	race.Skip(t)
	queuetest.RunUnfit(t, func(t *testing.T) queuetest.UnfitStore {
		q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { q.Close() })
		row := func(headers any) func(*testing.T, queue.ScheduleKey) {
			return func(t *testing.T, s queue.ScheduleKey) {
				mustExec(t, q, plantDelayed, s.Due.UnixMilli(), s.Type, s.ID[:], []byte("x"), headers)
			}
		}
		return queuetest.UnfitStore{
			Open: func(*testing.T) queue.Queue { return q },
			Plant: func(t *testing.T, msgs ...queue.Message) {
				if err := q.db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
					for _, m := range msgs {
						headers, err := json.Marshal(m.Headers)
						if err != nil {
							return err
						}
						if _, err := tx.Exec(plantDelayed, m.Due.UnixMilli(), m.Type, m.ID[:], m.Payload, string(headers)); err != nil {
							return err
						}
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			},
			Foreign: map[string]func(*testing.T, queue.ScheduleKey){
				"headers are no JSON":   row("k=v"),
				"headers are a list":    row(`["k", "v"]`),
				"a header is no string": row(`{"k": 7}`),
			},
			Unnamed: map[string]func(*testing.T){
				"a type that would change a terminal": func(t *testing.T) {
					id := queue.NewID(time.Now(), 9, 1)
					mustExec(t, q, plantDelayed, int64(1), "\x1b[2J", id[:], []byte("x"), nil)
				},
			},
		}
	})
}

func TestSpoiledInSQLite(t *testing.T) {
	race.Skip(t)
	queuetest.RunSpoiled(t, func(t *testing.T) queuetest.SpoiledStore {
		q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { q.Close() })
		exec := func(set string) func(*testing.T, string, queue.ID) {
			return func(t *testing.T, typ string, id queue.ID) {
				mustExec(t, q, `UPDATE queue_messages SET headers = `+set+` WHERE type = ? AND id = ?`, typ, id[:])
			}
		}
		spoil := func(headers string, why ...string) queuetest.Spoiling {
			return queuetest.Spoiling{Do: exec(headers), Undo: exec(`'{"k":"v"}'`), Why: append(why, "column headers")}
		}
		return queuetest.SpoiledStore{
			Open: func(*testing.T) queue.Queue { return q },
			Spoil: map[string]queuetest.Spoiling{
				"a header is a number": {Do: exec(`json_set(headers, '$.attempts', 1)`), Undo: exec(`json_remove(headers, '$.attempts')`),
					Why: []string{`"attempts"`, "number", "string", "column headers"}},
				"a header is a list":              spoil(`'{"k": ["v"]}'`, `"k"`, "array", "string"),
				"headers are no JSON":             spoil(`'k=v'`, "not JSON"),
				"headers are a list":              spoil(`'["k", "v"]'`, "array", "object"),
				"a key that changes the terminal": spoil(`'{"\u001b[2J": 1}'`, `"\x1b[2J"`),
			},
			Keys: []string{"x''", "x'0000'", "x'" + strings.Repeat("00", 20) + "'", "x'018b'", "x'6e6f7465'", "x'" + strings.Repeat("ff", 21) + "'"},
			PlantHeaders: func(t *testing.T, dead bool, m queue.Message) {
				headers, err := json.Marshal(m.Headers)
				if err != nil {
					t.Fatal(err)
				}
				insert := `INSERT INTO queue_messages (type, id, payload, headers) VALUES (?, ?, ?, ?)`
				if dead {
					insert = `INSERT INTO queue_dead (type, id, payload, headers, reason, attempts, worker, at) VALUES (?, ?, ?, ?, '', 1, '', 0)`
				}
				mustExec(t, q, insert, m.Type, m.ID[:], m.Payload, string(headers))
			},
			PlantForeign: func(t *testing.T, typ string, keys ...string) {
				for _, key := range keys {
					mustExec(t, q, `INSERT INTO queue_messages (type, id, payload) VALUES (?, `+key+`, x'78')`, typ)
				}
			},
			KeyOf: func(_ string, id queue.ID) string { return foreignKey(id[:]) },
		}
	})
}

// TestBadDueTimes: due times that Delay would refuse.
func TestBadDueTimes(t *testing.T) {
	q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	early, late := queue.NewID(time.Now(), 9, 1), queue.NewID(time.Now(), 9, 2)
	mustExec(t, q, plantDelayed, int64(-5), "orders", early[:], []byte("x"), nil)
	mustExec(t, q, plantDelayed, queue.MaxDue.UnixMilli()+1, "orders", late[:], []byte("x"), nil)
	if list, err := q.Delayed(t.Context(), queue.ScheduleKey{}, queue.Limit{Messages: 10}); len(list) != 2 || err != nil {
		t.Errorf("%d are listed, want 2 (%v)", len(list), err)
	}
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); p.Messages != 0 || p.DeadLetters != 1 || !p.Next.After(p.Now) || err != nil {
		t.Errorf("%+v, %v; want the one from before 1970 buried, and nothing due", p, err)
	}
	letters, err := q.DeadLetters(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10})
	if err != nil || len(letters) != 1 || letters[0].ID != early {
		t.Errorf("%d letters, %v", len(letters), err)
	}
}

// TestDatabaseRefusesOne: a trigger refuses some messages. They become dead letters, and their numbers go to the next messages. A trigger
// that refuses everything makes no dead letters.
func TestDatabaseRefusesOne(t *testing.T) {
	q, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	at := q.now().Add(-time.Minute)
	n := uint64(0)
	delay := func(payloads ...string) {
		t.Helper()
		for _, p := range payloads {
			n++
			if err := q.Delay(t.Context(), []queue.Message{{Type: "orders", ID: queue.NewID(at, 7, n), Payload: []byte(p), Due: at}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	promote := func(messages, buried int) {
		t.Helper()
		if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); p.Messages != messages || p.DeadLetters != buried || err != nil {
			t.Errorf("%+v, %v; want %d promoted and %d buried", p, err, messages, buried)
		}
	}
	trigger := func(when string) {
		t.Helper()
		mustExec(t, q, `DROP TRIGGER IF EXISTS refuse`)
		mustExec(t, q, fmt.Sprintf(`CREATE TRIGGER refuse BEFORE INSERT ON queue_messages WHEN %s BEGIN SELECT RAISE(ABORT, 'not this one'); END`, when))
	}

	trigger(`NEW.payload = x'626164'`) // bad
	delay("bad", "1", "bad", "2", "3", "bad")
	promote(3, 3)
	delay("bad")
	promote(0, 1)
	trigger(`true`)
	delay("4", "5")
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err == nil || !strings.Contains(err.Error(), "every message") || !strings.Contains(err.Error(), "trigger") {
		t.Errorf("%+v, %v; want an error that names the cause", p, err)
	}
	// With a trigger that rolls the transaction back, nothing happens at all.
	mustExec(t, q, `DROP TRIGGER refuse`)
	mustExec(t, q, `CREATE TRIGGER refuse BEFORE INSERT ON queue_messages WHEN NEW.payload = x'35' BEGIN SELECT RAISE(ROLLBACK, 'nor anything before it'); END`)
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err == nil || !strings.Contains(err.Error(), "nor anything before it") {
		t.Errorf("%+v, %v; want what the trigger says", p, err)
	}
	mustExec(t, q, `DROP TRIGGER refuse`)
	promote(2, 0)

	got, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range got {
		if want := fmt.Sprint(i + 1); string(m.Payload) != want || m.ID.N() != uint64(i+1) || m.ID.Producer() != got[0].ID.Producer() {
			t.Errorf("message %s has number %d of %016x, want %s, and all of one producer number", m.Payload, m.ID.N(), m.ID.Producer(), want)
		}
	}
	letters, err := q.DeadLetters(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		if string(l.Payload) != "bad" || !strings.Contains(l.Reason, "not this one") {
			t.Errorf("the dead letter of %s says %q", l.Payload, l.Reason)
		}
	}
	left, err := q.Delayed(t.Context(), queue.ScheduleKey{}, queue.Limit{Messages: 100})
	if len(got) != 5 || len(letters) != 4 || len(left) != 0 || err != nil {
		t.Errorf("%d messages, %d dead letters, %d delayed; want 5, 4, 0 (%v)", len(got), len(letters), len(left), err)
	}
	p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if n, err := queue.Requeue(t.Context(), q, p, letters); n != 4 || err != nil {
		t.Errorf("requeued %d, %v", n, err)
	}
}
