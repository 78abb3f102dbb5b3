package sqlitequeue_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// Acknowledged messages are removed, in whole ranges where possible. A row that was added to a range since it was read stays.
func TestAckRemovesOnlyWhatWasRead(t *testing.T) {
	const n = 100 // several times the number that one statement deletes by ID
	at := func(ms int64, producer, n uint64) queue.ID { return queue.NewID(time.UnixMilli(ms), producer, n) }
	var read []queue.ID
	for i := range uint64(n) {
		read = append(read, at(1_700_000_000_000+int64(i/10), 7, i+1))
	}
	late := at(1_700_000_000_005, 3, 1) // of another producer, in the middle of those
	foreign := append(slices.Clone(read[n/2][:]), 0)
	for _, c := range []struct {
		name    string
		arrives [][]byte // IDs
		leaves  []int    // of read, removed by another process
		ack     func([]queue.ID) []queue.ID
		kept    [][]byte
	}{
		{name: "nothing happened"},
		{name: "late message", arrives: [][]byte{late[:]}, kept: [][]byte{late[:]}},
		{name: "late message in the place of one that is gone", arrives: [][]byte{late[:]}, leaves: []int{50}, kept: [][]byte{late[:]}},
		{name: "foreign row", arrives: [][]byte{foreign}, kept: [][]byte{foreign}},
		{name: "foreign row in the place of the one before it", arrives: [][]byte{foreign}, leaves: []int{n / 2}, kept: [][]byte{foreign}},
		{name: "the last one is gone", leaves: []int{n - 1}},
		{name: "all are gone", leaves: slices.Collect(upTo(n))},
		{name: "a part", ack: func(ids []queue.ID) []queue.ID { return ids[:60] }, kept: keys(read[60:])},
		{name: "all but one", ack: func(ids []queue.ID) []queue.ID { return slices.Delete(ids, 40, 41) }, kept: keys(read[40:41])},
		{name: "in another order", ack: func(ids []queue.ID) []queue.ID { slices.Reverse(ids[1:60]); return ids }},
		{name: "one of them twice", ack: func(ids []queue.ID) []queue.ID { return slices.Insert(ids, 30, ids[30]) }},
		{name: "one of them twice, and a late message", arrives: [][]byte{late[:]}, kept: [][]byte{late[:]},
			ack: func(ids []queue.ID) []queue.ID { return slices.Insert(ids, 51, ids[50]) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, path := t.Context(), filepath.Join(t.TempDir(), "queue.db")
			q := open(t, path)
			db, err := sqlitedb.Open(ctx, path, sqlitedb.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for _, typ := range []string{"orders", "others"} {
				var msgs []queue.Message
				for _, id := range read {
					msgs = append(msgs, queue.Message{ID: id, Payload: []byte("x")})
				}
				if err := q.Insert(ctx, typ, msgs); err != nil {
					t.Fatal(err)
				}
			}
			var ids []queue.ID
			msgs, err := q.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 2 * n})
			if err != nil || len(msgs) != n {
				t.Fatalf("fetched %d: %v", len(msgs), err)
			}
			for i := range msgs {
				ids = append(ids, msgs[i].ID)
			}
			err = db.Write(ctx, func(tx *sqlitedb.Tx) (err error) {
				for _, id := range c.arrives {
					if _, err = tx.Exec(`INSERT INTO queue_messages (type, id, payload) VALUES (?, ?, ?)`, "orders", id, []byte("never read")); err != nil {
						return err
					}
				}
				for _, i := range c.leaves {
					if _, err = tx.Exec(`DELETE FROM queue_messages WHERE type = ? AND id = ?`, "orders", read[i][:]); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if c.ack != nil {
				ids = c.ack(ids)
			}
			if err := q.Ack(ctx, "orders", ids); err != nil {
				t.Fatal(err)
			}
			if got := stored(t, db, "orders"); !slices.EqualFunc(got, c.kept, bytes.Equal) {
				t.Errorf("kept %d rows, want %d:\n%x\n%x", len(got), len(c.kept), got, c.kept)
			}
			if got := stored(t, db, "others"); len(got) != n {
				t.Errorf("%d messages of another type are left, want %d", len(got), n)
			}
		})
	}
}

// Messages arrive in any order, in another process's transactions, while pending ones are fetched and acknowledged: none is removed
// before it was fetched.
func TestNothingIsRemovedUnread(t *testing.T) {
	const n = 4000
	path := filepath.Join(t.TempDir(), "queue.db")
	publisher, consumer := open(t, path), open(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	order := rand.Perm(n)
	done := make(chan error, 1)
	go func() {
		for part := range slices.Chunk(order, 100) {
			var msgs []queue.Message
			for _, i := range part {
				msgs = append(msgs, message(i+1, nil))
			}
			if err := publisher.Insert(ctx, "orders", msgs); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	seen := map[queue.ID]bool{}
	for ended := false; ; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			ended = true
		default:
		}
		msgs, err := consumer.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: n})
		if err != nil {
			t.Fatal(err)
		}
		if len(msgs) == 0 && ended {
			break
		}
		var ids []queue.ID
		for i := range msgs {
			ids = append(ids, msgs[i].ID)
			seen[msgs[i].ID] = true
		}
		if err := consumer.Ack(ctx, "orders", ids); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d messages were removed unread", n-len(seen), n)
	}
}

func upTo(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := 0; i < n && yield(i); i++ {
		}
	}
}

func keys(ids []queue.ID) (keys [][]byte) {
	for i := range ids {
		keys = append(keys, ids[i][:])
	}
	return keys
}

// stored returns the IDs of all rows of a type.
func stored(t *testing.T, db *sqlitedb.DB, typ string) (ids [][]byte) {
	t.Helper()
	err := db.Read(t.Context(), func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query(`SELECT id FROM queue_messages WHERE type = ? ORDER BY id`, typ)
		if err != nil {
			return err
		}
		for rows.Next() {
			var id []byte
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(fmt.Errorf("read the rows of %s: %w", typ, err))
	}
	return ids
}
