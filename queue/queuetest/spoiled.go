package queuetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/queue"
)

// SpoiledStore is an empty store in which a test can change pending messages as an operator's script might.
type SpoiledStore struct {
	Open  func(t *testing.T) queue.Queue
	Spoil map[string]Spoiling // by the kind of damage

	Keys []string // some foreign keys as ForeignKeys lists them, in order
	// PlantHeaders stores a message, or a dead letter, as a program that does not know the limits would.
	PlantHeaders func(t *testing.T, dead bool, m queue.Message)
	PlantForeign func(t *testing.T, typ string, keys ...string)
	KeyOf        func(typ string, id queue.ID) string // of a message, in the same form
}

// Spoiling makes a pending message undecodable, and repairs it.
type Spoiling struct {
	Do, Undo func(t *testing.T, typ string, id queue.ID)
	Why      []string // what Message.Why must name: the field, what it is and what it should be
}

// RunSpoiled checks that messages that cannot be decoded stay pending, say what is wrong with them, and are as they were when they are repaired;
// and that foreign keys neither count nor block anything, are listed, and are removed by RemoveForeignKeys only.
func RunSpoiled(t *testing.T, fresh func(t *testing.T) SpoiledStore) {
	for name := range fresh(t).Spoil {
		t.Run("Undecodable/"+name, func(t *testing.T) {
			s := fresh(t)
			testUndecodable(t, s.Open(t), s.Spoil[name])
		})
	}
	t.Run("TooManyHeaders", func(t *testing.T) {
		if fresh(t).PlantHeaders == nil {
			t.Skip("it holds messages that were inserted, and nothing else")
		}
		for _, n := range []int{queue.MaxHeaderCount + 1, 100_000} {
			testTooManyHeaders(t, fresh(t), n)
		}
	})
	t.Run("ForeignKeys", func(t *testing.T) {
		for _, total := range []int{1, 5, 150} { // including more than a backend may want to read for a count
			testForeignKeys(t, fresh(t), total)
		}
	})
	t.Run("ForeignKeysOnly", func(t *testing.T) { testForeignKeysOnly(t, fresh(t)) })
	t.Run("RemoveForeign", func(t *testing.T) { testRemoveForeign(t, fresh(t)) })
}

// testUndecodable: a message that cannot be decoded is still fetched and counted, as Incomplete and with the reason. It affects no other
// message, and is an ordinary message again after a repair.
func testUndecodable(t *testing.T, q queue.Queue, s Spoiling) {
	msgs := numbered("orders", 1, 3)
	for i := range msgs {
		msgs[i].Headers = map[string]string{"k": "v"}
	}
	mustInsert(t, q, "orders", msgs)
	s.Do(t, "orders", msgs[1].ID)
	got := fetchAll(t, q, "orders")
	if len(got) != 3 || got[1].ID != msgs[1].ID || !got[1].Incomplete || len(got[1].Payload) != 0 {
		t.Fatalf("%d messages, the second is %+v; want 3, and that one incomplete", len(got), got[1])
	}
	for _, part := range s.Why {
		if !strings.Contains(got[1].Why, part) {
			t.Errorf("the message says %q, which does not name %q", got[1].Why, part)
		}
	}
	wantMessages(t, []queue.Message{got[0], got[2]}, []queue.Message{msgs[0], msgs[2]})
	if d, err := q.Depth(t.Context(), "orders", 10); err != nil || d.Pending != 3 {
		t.Errorf("Depth = %+v, %v; it is pending", d, err)
	}
	mustAck(t, q, "orders", []queue.ID{msgs[0].ID, msgs[2].ID})
	s.Undo(t, "orders", msgs[1].ID)
	got = fetchAll(t, q, "orders")
	if len(got) != 1 || got[0].Why != "" || got[0].Unfit() != "" {
		t.Fatalf("%d messages after the repair, the first is %+v", len(got), got)
	}
	wantMessages(t, got, msgs[1:2])
}

// testTooManyHeaders: a message with too many headers is Incomplete and says why, such a dead letter is listed, and neither is decoded.
func testTooManyHeaders(t *testing.T, s SpoiledStore, n int) {
	q := s.Open(t)
	many := queue.Message{Type: "orders", ID: id(1, 1, 2), Payload: []byte("x"), Headers: headersOf(n, "")}
	mustInsert(t, q, "orders", numbered("orders", 1, 1))
	s.PlantHeaders(t, false, many)
	s.PlantHeaders(t, true, many)
	want := fmt.Sprint(queue.MaxHeaderCount)
	got := fetchAll(t, q, "orders")
	if len(got) != 2 || !got[1].Incomplete || got[1].Headers != nil || !strings.Contains(got[1].Why, "header") || n < 1000 && !strings.Contains(got[1].Why, want) {
		t.Errorf("%d messages, the last one has %d headers: %q; want it to be incomplete, and that this says why", len(got), len(got[len(got)-1].Headers), got[len(got)-1].Why)
	}
	letters := dead(t, q, "orders")
	if len(letters) != 1 || letters[0].ID != many.ID || !letters[0].Incomplete || letters[0].Headers != nil {
		t.Errorf("%d dead letters, want the one with too many headers", len(letters))
	}
	if err := q.RemoveDeadLetters(t.Context(), "orders", []queue.ID{many.ID}); err != nil || len(dead(t, q, "orders")) != 0 {
		t.Errorf("it cannot be removed: %v", err)
	}
}

// testForeignKeys: foreign keys among messages are neither fetched nor counted, are listed, and cannot hide the messages after them.
func testForeignKeys(t *testing.T, s SpoiledStore, total int) {
	q := s.Open(t)
	msgs := numbered("orders", 1, total)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "audit", numbered("audit", 1, 2))
	s.PlantForeign(t, "orders", s.Keys...)
	for _, limit := range []int{1, 2, 3, 1000} { // a page of only foreign keys is not the end
		var got []queue.Message
		passed := map[string]bool{}
		for after := (queue.ID{}); ; after = got[len(got)-1].ID {
			page := mustFetch(t, q, "orders", after, queue.Limit{Messages: limit, Foreign: func(key string) { passed[key] = true }})
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
		}
		wantMessages(t, got, msgs)
		for _, key := range s.Keys {
			if !passed[key] {
				t.Errorf("limit %d: Fetch did not report the foreign key %s", limit, key)
			}
		}
		if len(passed) != len(s.Keys) {
			t.Errorf("limit %d: Fetch reported %d foreign keys, want %d", limit, len(passed), len(s.Keys))
		}
	}
	for _, most := range []int{0, 1, 4, 5, 6, 99, 100, 101, 149, 150, 151, 1000} {
		d, err := q.Depth(t.Context(), "orders", most)
		d.Foreign = 0 // a lower bound
		if want := (queue.Depth{Pending: min(total, most), Capped: total > most, Oldest: msgs[0].ID}); err != nil || d != want {
			t.Errorf("Depth(%d) = %+v, %v, want %+v", most, d, err, want)
		}
	}
	var listed []string
	for after := ""; ; after = listed[len(listed)-1] {
		page, err := q.ForeignKeys(t.Context(), "orders", after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		listed = append(listed, page...)
	}
	if !slices.Equal(listed, s.Keys) {
		t.Errorf("listed are %q, want %q", listed, s.Keys)
	}
	if keys, err := q.ForeignKeys(t.Context(), "audit", "", 10); err != nil || len(keys) > 0 {
		t.Errorf("another type has foreign keys: %q, %v", keys, err)
	}
}

// testForeignKeysOnly: a type that has only foreign keys has no pending messages, but is listed.
func testForeignKeysOnly(t *testing.T, s SpoiledStore) {
	q := s.Open(t)
	s.PlantForeign(t, "orders", s.Keys...)
	for _, most := range []int{0, 1, 1000} {
		d, err := q.Depth(t.Context(), "orders", most)
		if err != nil || d.Pending != 0 || d.Capped || !d.Oldest.IsZero() || d.Foreign == 0 {
			t.Errorf("Depth(%d) = %+v, %v; want nothing pending, and that foreign keys were seen", most, d, err)
		}
	}
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"orders"}) {
		t.Errorf("the types are %q, %v: the type must be listed, so that an operator finds it", types, err)
	}
}

// testRemoveForeign: only foreign keys can be removed; a key of a message is refused, and then nothing is removed.
func testRemoveForeign(t *testing.T, s SpoiledStore) {
	q := s.Open(t)
	msgs := numbered("orders", 1, 3)
	mustInsert(t, q, "orders", msgs)
	s.PlantForeign(t, "orders", s.Keys...)
	remove := func(want int, keys ...string) {
		t.Helper()
		if n, err := q.RemoveForeignKeys(t.Context(), "orders", keys); n != want || err != nil {
			t.Errorf("removed %d of %q, %v; want %d", n, keys, err, want)
		}
	}
	for _, key := range []string{s.KeyOf("orders", msgs[1].ID), s.KeyOf("orders", id(1, 99, 1))} {
		if n, err := q.RemoveForeignKeys(t.Context(), "orders", []string{s.Keys[0], key}); n != 0 || err == nil {
			t.Errorf("removed %d under %s, which is a message's key (%v)", n, key, err)
		}
	}
	remove(0)
	remove(1, s.Keys[1])
	remove(0, s.Keys[1])
	if keys, err := q.ForeignKeys(t.Context(), "orders", "", 100); err != nil || fmt.Sprint(keys) != fmt.Sprint(slices.Delete(slices.Clone(s.Keys), 1, 2)) {
		t.Errorf("left are %q, %v", keys, err)
	}
	remove(len(s.Keys)-1, s.Keys...)
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
}
