package queuetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
)

// testInsertTwice: inserting messages again, or parts of them, stores nothing twice. Every retry of a publisher relies on it.
func testInsertTwice(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 10)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders", msgs[3:7])
	mustInsert(t, q, "orders", msgs[9:])
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
}

// testInsertAfterPrefix: a retry completes a batch of which any part was stored: from the front, at the end, or in between.
func testInsertAfterPrefix(t *testing.T, q queue.Queue) {
	for i, landed := range [][]int{{1}, {1, 2, 3, 4, 5}, {10}, {3, 4, 8}, {1, 3, 5, 7, 9}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}} {
		typ := fmt.Sprintf("orders%d", i)
		msgs := numbered(typ, 1, 10)
		for _, n := range landed {
			mustInsert(t, q, typ, msgs[n-1:n])
		}
		mustInsert(t, q, typ, msgs)
		wantMessages(t, fetchAll(t, q, typ), msgs)
	}
}

// testInsertAfterAck: a retry finds that a part of the batch has been acknowledged. That part may come back (the consumer's file refuses
// the copies), but the rest must be there.
func testInsertAfterAck(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 10)
	mustInsert(t, q, "orders", msgs[:6])
	mustAck(t, q, "orders", ids(msgs[:4]))
	mustInsert(t, q, "orders", msgs)
	got := fetchAll(t, q, "orders")
	if len(got) < 6 {
		t.Fatalf("got %d messages", len(got))
	}
	wantMessages(t, got[len(got)-6:], msgs[4:])
}

// testInsertInvalid: if one message of a call is invalid, none is stored, and the error says so with certainty.
func testInsertInvalid(t *testing.T, q queue.Queue) {
	good := numbered("orders", 1, 1)[0]
	for name, tc := range map[string]struct {
		typ  string
		msg  queue.Message
		want error
	}{
		"type":           {"Orders", queue.Message{ID: id(1, 1, 1)}, queue.ErrInvalidType},
		"path as type":   {"../orders", queue.Message{ID: id(1, 1, 1)}, queue.ErrInvalidType},
		"no ID":          {"orders", queue.Message{}, queue.ErrInvalidID},
		"header count":   {"orders", queue.Message{ID: id(1, 1, 1), Headers: headersOf(queue.MaxHeaderCount+1, "")}, queue.ErrTooLarge},
		"payload":        {"orders", queue.Message{ID: id(1, 1, 1), Payload: make([]byte, queue.MaxPayload+1)}, queue.ErrTooLarge},
		"header":         {"orders", queue.Message{ID: id(1, 1, 1), Headers: map[string]string{"": ""}}, queue.ErrInvalidHeader},
		"another type's": {"orders", queue.Message{ID: id(1, 1, 1), Type: "audit"}, nil},
	} {
		err := q.Insert(t.Context(), tc.typ, []queue.Message{{ID: good.ID, Payload: good.Payload}, tc.msg})
		var ie *queue.InsertError
		if !errors.As(err, &ie) || ie.Stored != 0 || !ie.Refused || ie.Temporary {
			t.Errorf("%s: got %v", name, err)
		}
		if tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	if got := fetchAll(t, q, "orders"); len(got) != 0 {
		t.Errorf("%d messages of refused batches are stored", len(got))
	}
}

// testInsertNothing: inserting no messages is no error.
func testInsertNothing(t *testing.T, q queue.Queue) {
	mustInsert(t, q, "orders", nil)
	if got := fetchAll(t, q, "orders"); len(got) != 0 {
		t.Errorf("got %d messages", len(got))
	}
}

// testFetchOrder: messages come in ID order, whatever the order of their insertion, and a fetch starts strictly after the given ID, even
// if no message has that ID.
func testFetchOrder(t *testing.T, q queue.Queue) {
	// Inserted in another order than that of their IDs, with every field of the ID deciding once.
	want := []queue.Message{
		{Type: "orders", ID: queue.NewID(time.UnixMilli(0), 0, 1)},
		{Type: "orders", ID: id(0, 1, 1)},
		{Type: "orders", ID: id(0, 1, 2)},
		{Type: "orders", ID: id(0, 1, queue.MaxN)},
		{Type: "orders", ID: id(0, 2, 1)},
		{Type: "orders", ID: id(0, 1<<63, 1)},
		{Type: "orders", ID: id(0, 1<<64-1, 1)},
		{Type: "orders", ID: id(1, 0, 1)},
		{Type: "orders", ID: queue.NewID(time.UnixMilli(1<<48-1), 1<<64-1, queue.MaxN)},
	}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(want)) {
		mustInsert(t, q, "orders", want[i:i+1])
	}
	wantMessages(t, fetchAll(t, q, "orders"), want)
	for i, m := range want {
		wantMessages(t, mustFetch(t, q, "orders", m.ID, queue.Limit{Messages: 100}), want[i+1:])
	}
	// An ID that does not exist, between two that do.
	wantMessages(t, mustFetch(t, q, "orders", id(0, 1, 3), queue.Limit{Messages: 2}), want[3:5])
}

// cousins are type names that are easily confused: prefixes of each other, and characters next to the separators in the sort order.
var cousins = []string{"a", "a-b", "a.b", "a0", "a_b", "aa", "a-", "a.", "b", "0", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 63) + "b"}

// testTypesApart: types whose names share a prefix do not see each other's messages, whatever their names are in the backend's sort order.
func testTypesApart(t *testing.T, q queue.Queue) {
	for _, typ := range cousins {
		mustInsert(t, q, typ, numbered(typ, 1, 3))
	}
	for _, typ := range cousins {
		wantMessages(t, fetchAll(t, q, typ), numbered(typ, 1, 3))
	}
	mustAck(t, q, "a", ids(numbered("a", 1, 3)))
	for _, typ := range cousins {
		want := numbered(typ, 1, 3)
		if typ == "a" {
			want = nil
		}
		wantMessages(t, fetchAll(t, q, typ), want)
		d, err := q.Depth(t.Context(), typ, 10)
		if err != nil || d.Pending != len(want) {
			t.Errorf("Depth(%s) = %+v, %v", typ, d, err)
		}
	}
	if got := fetchAll(t, q, "never-used"); len(got) != 0 {
		t.Errorf("an unused type has %d messages", len(got))
	}
}

// testFetchLimits: a fetch respects both limits exactly, returns at least one message, and paging by the last ID returns each message once.
func testFetchLimits(t *testing.T, q queue.Queue) {
	var msgs []queue.Message
	for n := 1; n <= 30; n++ {
		msgs = append(msgs, queue.Message{Type: "orders", ID: id(1, 1, uint64(n)), Payload: bytes.Repeat([]byte{byte(n)}, 100)})
	}
	mustInsert(t, q, "orders", msgs)
	each := int64(msgs[0].Size())
	for _, tc := range []struct {
		limit queue.Limit
		want  int
	}{
		{queue.Limit{Messages: 1}, 1},
		{queue.Limit{Messages: 29}, 29},
		{queue.Limit{Messages: 30}, 30},
		{queue.Limit{Messages: 31}, 30},
		{queue.Limit{Messages: 30, Bytes: 1}, 1},
		{queue.Limit{Messages: 30, Bytes: each}, 1},
		{queue.Limit{Messages: 30, Bytes: each + 1}, 2},
		{queue.Limit{Messages: 30, Bytes: 10 * each}, 10},
		{queue.Limit{Messages: 3, Bytes: 10 * each}, 3},
		{queue.Limit{Messages: 30, Bytes: 1 << 40}, 30},
	} {
		for range 3 { // a backend may adapt to earlier calls, and must still be right
			if got := mustFetch(t, q, "orders", queue.ID{}, tc.limit); len(got) != tc.want {
				t.Fatalf("%+v: got %d messages, want %d", tc.limit, len(got), tc.want)
			}
		}
		wantMessages(t, mustFetch(t, q, "orders", queue.ID{}, tc.limit), msgs[:tc.want])
	}
	// In pages, as a consumer does.
	var all []queue.Message
	for after := (queue.ID{}); ; after = all[len(all)-1].ID {
		got := mustFetch(t, q, "orders", after, queue.Limit{Messages: 7})
		if len(got) == 0 {
			break
		}
		all = append(all, got...)
	}
	wantMessages(t, all, msgs)
}

// headersOf makes n headers, whose keys and values contain the text.
func headersOf(n int, text string) map[string]string {
	headers := map[string]string{}
	for i := range n {
		headers[strconv.Itoa(i)+text] = text
	}
	return headers
}

// testLimitsCountHeaders: readers limit bytes because of their memory, and many headers take most of it.
func testLimitsCountHeaders(t *testing.T, q queue.Queue) {
	headers := headersOf(queue.MaxHeaderCount-1, "") // a delayed message has room for one less
	at := now(t, q)
	delayed := delayedMessages("later", at.Add(time.Hour), at, 1, 1, 30)
	var msgs []queue.Message
	var letters []queue.DeadLetter
	for i := range delayed {
		delayed[i].Payload, delayed[i].Headers = nil, headers
		msgs = append(msgs, queue.Message{Type: "orders", ID: id(1, 1, uint64(i+1)), Headers: headers})
		letters = append(letters, queue.DeadLetter{Message: queue.Message{Type: "audit", ID: id(1, 1, uint64(i+1)), Headers: headers}})
	}
	mustInsert(t, q, "orders", msgs)
	mustDelay(t, q, delayed)
	if err := q.MoveToDeadLetters(t.Context(), "audit", letters); err != nil {
		t.Fatal(err)
	}
	limit := queue.Limit{Messages: 30, Bytes: 10 * 100 * int64(len(headers))} // of 10 messages if headers count, and of more if they do not
	for range 2 {                                                             // a backend may adapt
		got := mustFetch(t, q, "orders", queue.ID{}, limit)
		dead, err := q.DeadLetters(t.Context(), "audit", queue.ID{}, limit)
		later, err2 := q.Delayed(t.Context(), queue.ScheduleKey{}, limit)
		if len(got) > 10 || len(dead) > 10 || len(later) > 10 || len(got) < 9 || err != nil || err2 != nil {
			t.Errorf("%d messages, %d dead letters, %d delayed messages within %d bytes, %v, %v; want 9 or 10 of each", len(got), len(dead), len(later), limit.Bytes, err, err2)
		}
	}
	due := delayedMessages("due", at.Add(-time.Minute), at, 2, 1, 30)
	for i := range due {
		due[i].Payload, due[i].Headers = nil, headers
	}
	mustDelay(t, q, due)
	if p := mustPromote(t, q, limit); p.Messages > 10 || p.Messages < 9 {
		t.Errorf("promoted %d messages within %d bytes, want 9 or 10", p.Messages, limit.Bytes)
	}
}

// testFetchRepeatable: a fetch does not claim messages, and the returned messages belong to the caller: changing them changes nothing
// stored.
func testFetchRepeatable(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 3)
	mustInsert(t, q, "orders", msgs)
	first := fetchAll(t, q, "orders")
	for i := range first {
		clear(first[i].Payload) // it is the caller's
	}
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
}

// testPayloads: payloads of any bytes, and empty ones, come back unchanged.
func testPayloads(t *testing.T, q queue.Queue) {
	random := make([]byte, 4096)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	var every [256]byte
	for i := range every {
		every[i] = byte(i)
	}
	var msgs []queue.Message
	for i, p := range [][]byte{nil, {}, {0}, {'\n'}, []byte("line\r\nline\n"), {0, 0, 0}, {0xff}, []byte("ünï\u0000cødé"), every[:], random,
		bytes.Repeat([]byte{0}, 100_000), []byte(`{"json": true}`)} {
		msgs = append(msgs, queue.Message{Type: "orders", ID: id(1, 1, uint64(i+1)), Payload: p})
	}
	mustInsert(t, q, "orders", msgs)
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
}

// testLargest: messages of the largest size are stored, retried, fetched under limits, counted and acknowledged like others.
func testLargest(t *testing.T, q queue.Queue) {
	race.Skip(t)
	pattern := func(n int, seed byte) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i>>10) + byte(i) + seed
		}
		return p
	}
	msgs := []queue.Message{
		{ID: id(1, 1, 1), Payload: []byte("small")},
		{ID: id(1, 1, 2), Payload: pattern(queue.MaxPayload, 1), Headers: map[string]string{"k": strings.Repeat("v", queue.MaxHeaders-1)}},
		{ID: id(1, 1, 3), Payload: pattern(8<<20, 2)},
		{ID: id(1, 1, 4), Payload: pattern(8<<20+1, 3)},
		{ID: id(1, 1, 5), Payload: pattern(queue.MaxPayload-1, 4), Headers: map[string]string{"k": "v"}},
		{ID: id(1, 1, 6), Payload: []byte("small")},
	}
	for i := range msgs {
		msgs[i].Type = "orders"
	}
	mustInsert(t, q, "orders", msgs[:3])
	mustInsert(t, q, "orders", msgs) // the retry of a batch that was partly stored
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
	for _, n := range []int{1, 2, 4} { // no limit splits a message
		wantMessages(t, mustFetch(t, q, "orders", queue.ID{}, queue.Limit{Messages: n}), msgs[:n])
	}
	wantMessages(t, mustFetch(t, q, "orders", msgs[1].ID, queue.Limit{Messages: 10, Bytes: 8 << 20}), msgs[2:3])
	wantMessages(t, mustFetch(t, q, "orders", msgs[0].ID, queue.Limit{Messages: 10, Bytes: 1}), msgs[1:2])
	d, err := q.Depth(t.Context(), "orders", 100)
	if err != nil || d.Pending != len(msgs) || d.Oldest != msgs[0].ID {
		t.Errorf("Depth = %+v, %v", d, err)
	}
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"orders"}) {
		t.Errorf("Types = %v, %v", types, err)
	}
	mustAck(t, q, "orders", ids(msgs[1:4]))
	wantMessages(t, fetchAll(t, q, "orders"), []queue.Message{msgs[0], msgs[4], msgs[5]})
	mustAck(t, q, "orders", ids(msgs))
	if d, err := q.Depth(t.Context(), "orders", 100); err != nil || d.Pending != 0 {
		t.Errorf("Depth = %+v, %v after all was acknowledged", d, err)
	}
}

// testHeaders: headers with any valid keys and values come back unchanged, including those that are special in a database, such as "$set"
// and "a.b", and the largest number of them.
func testHeaders(t *testing.T, q queue.Queue) {
	many := map[string]string{}
	for i := range 200 {
		many[fmt.Sprintf("key %d", i)] = fmt.Sprint(i)
	}
	var msgs []queue.Message
	for i, h := range []map[string]string{
		nil,
		{"k": "v"},
		{"k": ""},
		{"content-type": "application/json", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{"a.b": "dot", "$set": "dollar", ".": ".", "$": "$", "_id": "id", "b": "b", "0": "zero", " ": " "},
		{"ключ": "значение", "🙂": "🙂"},
		{"k": "a\x00b\n", "tab\t": "\r\n"},
		{"k": strings.Repeat("v", queue.MaxHeaders-1)},
		{strings.Repeat("k", 1000): "v"},
		many,
		headersOf(queue.MaxHeaderCount, ""),
		headersOf(queue.MaxHeaderCount, ".,:"),
	} {
		msgs = append(msgs, queue.Message{Type: "orders", ID: id(1, 1, uint64(i+1)), Payload: []byte("p"), Headers: h})
	}
	mustInsert(t, q, "orders", msgs)
	got := fetchAll(t, q, "orders")
	wantMessages(t, got, msgs)
	if got[0].Headers != nil {
		t.Error("no headers are nil")
	}
}

// testAck: an acknowledgement removes exactly the given messages of the given type. IDs that do not exist, or are given twice, are no error.
func testAck(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 10)
	mustInsert(t, q, "orders", msgs)
	mustAck(t, q, "orders", nil)
	mustAck(t, q, "orders", []queue.ID{id(99, 9, 9)})                // never there
	mustAck(t, q, "other", ids(msgs))                                // another type's
	mustAck(t, q, "orders", ids(msgs[2:4]))                          // in the middle
	mustAck(t, q, "orders", ids(msgs[2:4]))                          // gone already
	mustAck(t, q, "orders", append(ids(msgs[:1]), ids(msgs[9:])...)) // both ends
	mustAck(t, q, "orders", []queue.ID{msgs[6].ID, msgs[6].ID})
	wantMessages(t, fetchAll(t, q, "orders"), []queue.Message{msgs[1], msgs[4], msgs[5], msgs[7], msgs[8]})
	mustAck(t, q, "orders", ids(msgs))
	if got := fetchAll(t, q, "orders"); len(got) != 0 {
		t.Errorf("%d messages left", len(got))
	}
}

// testAckThousands: one acknowledgement may have more IDs than a single command of the backend takes.
func testAckThousands(t *testing.T, q queue.Queue) {
	const total = 12_000
	msgs := numbered("orders", 1, total)
	for batch := range slices.Chunk(msgs, 3000) {
		mustInsert(t, q, "orders", batch)
	}
	last := msgs[total-1].ID
	mustAck(t, q, "orders", ids(msgs[:total-1]))
	wantMessages(t, fetchAll(t, q, "orders"), msgs[total-1:])
	mustAck(t, q, "orders", []queue.ID{last})
}
