// Package queuetest tests queue backends and code that uses a queue: Run is the conformance suite that every backend
// passes, Memory a queue without a server, Faulty disturbs any queue, and Oracle checks what a publisher promises.
package queuetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// ctxGrace is how long an operation may take to notice that its context has ended.
const ctxGrace = 100 * time.Millisecond

// Run runs the conformance suite. fresh makes an empty store and returns a function that opens a queue on it; the suite
// opens several of the same store, as several processes would, and closes none. A backend that cannot may return the
// same queue each time.
func Run(t *testing.T, fresh func(t *testing.T) (open func(t *testing.T) queue.Queue)) {
	one := func(test func(t *testing.T, q queue.Queue)) func(*testing.T) {
		return func(t *testing.T) { test(t, fresh(t)(t)) }
	}
	t.Run("InsertTwiceStoresOnce", one(testInsertTwice))
	t.Run("InsertRepeatAfterPrefix", one(testInsertAfterPrefix))
	t.Run("InsertRepeatAfterAck", one(testInsertAfterAck))
	t.Run("InsertRefusesInvalid", one(testInsertInvalid))
	t.Run("InsertNothing", one(testInsertNothing))
	t.Run("FetchOrderAndBounds", one(testFetchOrder))
	t.Run("FetchSeparatesTypes", one(testTypesApart))
	t.Run("FetchLimits", one(testFetchLimits))
	t.Run("LimitsCountHeaders", one(testLimitsCountHeaders))
	t.Run("FetchIsRepeatable", one(testFetchRepeatable))
	t.Run("Payloads", one(testPayloads))
	t.Run("LargestMessages", one(testLargest))
	t.Run("Headers", one(testHeaders))
	t.Run("Ack", one(testAck))
	t.Run("AckThousands", one(testAckThousands))
	t.Run("Depth", one(testDepth))
	t.Run("Types", one(testTypes))
	t.Run("InvalidArguments", one(testInvalidArguments))
	t.Run("Clock", one(testClock))
	t.Run("EndedContext", one(testEndedContext))
	t.Run("Closed", one(testClosed))
	t.Run("FileRegistry", one(testFileRegistry))
	several := func(test func(t *testing.T, open func(t *testing.T) queue.Queue)) func(*testing.T) {
		return func(t *testing.T) { test(t, fresh(t)) }
	}
	t.Run("FileRegistryRace", several(testFileRace))
	t.Run("AckFile", several(testAckFile))
	t.Run("FileSuccession", one(testFileSuccession))
	t.Run("FileSuccessionRace", several(testFileSuccessionRace))
	t.Run("FileSuccessionUnderFaults", one(testFileSuccessionFaults))
	t.Run("Bury", one(testBury))
	t.Run("BuryRefusesInvalid", one(testBuryInvalid))
	t.Run("BuryLargestMessages", one(testBuryLargest))
	t.Run("BuryUnderFaults", one(testBuryFaults))
	t.Run("Letters", one(testLetters))
	t.Run("Requeue", one(testRequeue))
	t.Run("Marks", several(testMarks))
	t.Run("Settings", several(testSettings))
	t.Run("SettingsOfSeveralAtOnce", several(testSettingsRace))
	t.Run("Members", several(testMembers))
	t.Run("ConcurrentPublishersAndConsumer", several(testConcurrent))
	t.Run("OrderIsVisibleInOrder", several(testVisibleInOrder))
	t.Run("PublisherUnderLostAnswers", several(testPublisher))
	t.Run("Delayed", one(testDelayed))
	t.Run("DelayedNeverEarly", one(testDelayedNeverEarly))
	t.Run("DelayedLongAgo", one(testDelayedLongAgo))
	t.Run("DelayRefusesInvalid", one(testDelayInvalid))
	t.Run("DelayedLargest", one(testDelayedLargest))
	t.Run("CancelDelayed", one(testCancelDelayed))
	t.Run("PromoteConcurrently", several(testPromoteConcurrently))
	t.Run("DelayedUnderLostAnswers", several(testDelayedUnderLostAnswers))
}

var epoch = time.UnixMilli(1_700_000_000_000)

// id is the ID of the n-th message of a producer; messages of later milliseconds sort behind.
func id(ms int, producer, n uint64) queue.ID {
	return queue.NewID(epoch.Add(time.Duration(ms)*time.Millisecond), producer, n)
}

func numbered(typ string, from, to int) []queue.Message {
	var msgs []queue.Message
	for n := from; n <= to; n++ {
		msgs = append(msgs, queue.Message{Type: typ, ID: id(n/3, 7, uint64(n)), Payload: fmt.Appendf(nil, "message %d", n)})
	}
	return msgs
}

func ids(msgs []queue.Message) []queue.ID {
	out := make([]queue.ID, len(msgs))
	for i, m := range msgs {
		out[i] = m.ID
	}
	return out
}

func mustInsert(t *testing.T, q queue.Queue, typ string, msgs []queue.Message) {
	t.Helper()
	if err := q.Insert(t.Context(), typ, msgs); err != nil {
		t.Fatalf("Insert(%s, %d messages): %v", typ, len(msgs), err)
	}
}

func mustFetch(t *testing.T, q queue.Queue, typ string, after queue.ID, limit queue.Limit) []queue.Message {
	t.Helper()
	msgs, err := q.Fetch(t.Context(), typ, after, limit)
	if err != nil {
		t.Fatalf("Fetch(%s): %v", typ, err)
	}
	return msgs
}

func fetchAll(t *testing.T, q queue.Queue, typ string) []queue.Message {
	t.Helper()
	return mustFetch(t, q, typ, queue.ID{}, queue.Limit{Messages: 100_000})
}

func mustAck(t *testing.T, q queue.Queue, typ string, ids []queue.ID) {
	t.Helper()
	if err := q.Ack(t.Context(), typ, ids); err != nil {
		t.Fatalf("Ack(%s, %d): %v", typ, len(ids), err)
	}
}

// wantMessages compares everything that a backend has to keep.
func wantMessages(t *testing.T, got, want []queue.Message) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d messages, want %d", len(got), len(want))
	}
	for i := range got {
		g, w := got[i], want[i]
		if g.ID != w.ID || g.Type != w.Type || g.Incomplete || !bytes.Equal(g.Payload, w.Payload) {
			t.Fatalf("message %d: got %s %v %s, want %s %v %s", i, g.Type, g.ID, short(g), w.Type, w.ID, short(w))
		}
		if len(g.Headers) != len(w.Headers) {
			t.Fatalf("message %d: got %d headers, want %d", i, len(g.Headers), len(w.Headers))
		}
		for k, v := range w.Headers {
			if gv, ok := g.Headers[k]; !ok || gv != v {
				t.Fatalf("message %d: header %.40q is %.40q, want %.40q", i, k, gv, v)
			}
		}
	}
}

func short(m queue.Message) string {
	return fmt.Sprintf("%d bytes %.40q incomplete=%v", len(m.Payload), m.Payload[:min(len(m.Payload), 40)], m.Incomplete)
}

func testInsertTwice(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 10)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders", msgs[3:7])
	mustInsert(t, q, "orders", msgs[9:])
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
}

// A repetition after an attempt that landed in part: in front, at the end, in between.
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

// A repetition that finds part of the batch consumed already: whether that part comes back is left open (the consumer's
// file refuses it), the rest must be there.
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

func testInsertNothing(t *testing.T, q queue.Queue) {
	mustInsert(t, q, "orders", nil)
	if got := fetchAll(t, q, "orders"); len(got) != 0 {
		t.Errorf("got %d messages", len(got))
	}
}

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
	// An ID that is not there, between two that are.
	wantMessages(t, mustFetch(t, q, "orders", id(0, 1, 3), queue.Limit{Messages: 2}), want[3:5])
}

var cousins = []string{"a", "a-b", "a.b", "a0", "a_b", "aa", "a-", "a.", "b", "0", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 63) + "b"}

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
		for range 3 { // a backend may learn from earlier calls, and must not learn wrongly
			if got := mustFetch(t, q, "orders", queue.ID{}, tc.limit); len(got) != tc.want {
				t.Fatalf("%+v: got %d messages, want %d", tc.limit, len(got), tc.want)
			}
		}
		wantMessages(t, mustFetch(t, q, "orders", queue.ID{}, tc.limit), msgs[:tc.want])
	}
	// In steps, as a consumer does.
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

// headersOf makes n headers, whose keys and values hold the text, too.
func headersOf(n int, text string) map[string]string {
	headers := map[string]string{}
	for i := range n {
		headers[strconv.Itoa(i)+text] = text
	}
	return headers
}

// testLimitsCountHeaders: whoever reads messages asks for bytes because of its memory, and headers take most of it if they are many.
func testLimitsCountHeaders(t *testing.T, q queue.Queue) {
	headers := headersOf(queue.MaxHeaderCount-1, "") // a delayed message has one less
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
	limit := queue.Limit{Messages: 30, Bytes: 10 * 100 * int64(len(headers))} // that of 10 messages, and not of 10 with headers that count nothing
	for range 2 {                                                             // a backend may learn
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

func testFetchRepeatable(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 3)
	mustInsert(t, q, "orders", msgs)
	first := fetchAll(t, q, "orders")
	for i := range first {
		clear(first[i].Payload) // it is the caller's
	}
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
}

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

// The largest message that is allowed fits, among others, within every limit, and is acknowledged as a whole.
func testLargest(t *testing.T, q queue.Queue) {
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
	mustInsert(t, q, "orders", msgs) // the repetition of a batch that landed in part
	wantMessages(t, fetchAll(t, q, "orders"), msgs)
	for _, n := range []int{1, 2, 4} { // no limit cuts a message in two
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

func testDepth(t *testing.T, q queue.Queue) {
	want := func(most int, d queue.Depth) {
		t.Helper()
		if got, err := q.Depth(t.Context(), "orders", most); err != nil || got != d {
			t.Errorf("Depth(%d) = %+v, %v, want %+v", most, got, err, d)
		}
	}
	want(10, queue.Depth{})
	want(0, queue.Depth{})
	msgs := numbered("orders", 1, 25)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders0", numbered("orders0", 1, 3))
	first := msgs[0].ID
	want(0, queue.Depth{Pending: 0, Capped: true, Oldest: first})
	want(1, queue.Depth{Pending: 1, Capped: true, Oldest: first})
	want(24, queue.Depth{Pending: 24, Capped: true, Oldest: first})
	want(25, queue.Depth{Pending: 25, Oldest: first})
	want(26, queue.Depth{Pending: 25, Oldest: first})
	want(1<<31, queue.Depth{Pending: 25, Oldest: first})
	mustAck(t, q, "orders", ids(msgs[:10]))
	want(100, queue.Depth{Pending: 15, Oldest: msgs[10].ID})
}

func testTypes(t *testing.T, q queue.Queue) {
	want := func(types ...string) {
		t.Helper()
		if got, err := q.Types(t.Context()); err != nil || !slices.Equal(got, types) {
			t.Errorf("Types = %v, %v, want %v", got, err, types)
		}
	}
	want()
	for range 2 {
		if err := q.RegisterType(t.Context(), "registered"); err != nil {
			t.Fatal(err)
		}
	}
	want("registered")
	for _, typ := range cousins { // published by somebody who does not register
		mustInsert(t, q, typ, numbered(typ, 1, 2))
	}
	all := append(slices.Clone(cousins), "registered")
	slices.Sort(all)
	want(all...)
	for _, typ := range cousins {
		mustAck(t, q, typ, ids(numbered(typ, 1, 2)))
	}
	want("registered")
	mustInsert(t, q, "registered", numbered("registered", 1, 2))
	want("registered")
}

func testInvalidArguments(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	for _, limit := range []queue.Limit{{}, {Messages: -1}, {Messages: 1, Bytes: -1}} {
		if _, err := q.Fetch(ctx, "orders", queue.ID{}, limit); err == nil {
			t.Errorf("Fetch with limit %+v must fail", limit)
		}
	}
	if _, err := q.ForeignKeys(ctx, "orders", "", 0); err == nil {
		t.Error("no more than 0 foreign keys must fail")
	}
	if _, err := q.Depth(ctx, "orders", -1); err == nil {
		t.Error("Depth(-1) must fail")
	}
	for _, typ := range []string{"", "Orders", "a/b", "a#b", "a\x00"} {
		_, fetch := q.Fetch(ctx, typ, queue.ID{}, queue.Limit{Messages: 1})
		_, depth := q.Depth(ctx, typ, 1)
		_, _, file := q.RegistryEntry(ctx, typ)
		_, register := q.RegisterFile(ctx, typ, queue.RegistryEntry{})
		_, update := q.UpdateFile(ctx, typ, queue.RegistryEntry{})
		_, ackFile := q.AckFile(ctx, typ, queue.RegistryEntry{}, nil)
		_, _, succeed := q.SucceedFile(ctx, typ, [16]byte{}, queue.RegistryEntry{})
		_, dead := q.DeadLetters(ctx, typ, queue.ID{}, queue.Limit{Messages: 1})
		bury := q.MoveToDeadLetters(ctx, typ, []queue.DeadLetter{{Message: queue.Message{ID: id(1, 1, 1)}}})
		_, mark := q.HolderNote(ctx, typ)
		setMark := q.SetHolderNote(ctx, typ, nil)
		remove := q.RemoveDeadLetters(ctx, typ, []queue.ID{id(1, 1, 1)})
		_, settings := q.Settings(ctx, typ)
		_, change := q.PatchSettings(ctx, typ, queue.SettingsPatch{DrainPaused: new(true)})
		_, foreign := q.ForeignKeys(ctx, typ, "", 1)
		_, removeForeign := q.RemoveForeignKeys(ctx, typ, nil)
		for i, err := range []error{foreign, removeForeign, settings, change, fetch, depth, file, register, update, ackFile, succeed, dead, bury, remove, mark, setMark, q.Ack(ctx, typ, []queue.ID{id(1, 1, 1)}), q.RegisterType(ctx, typ)} {
			if !errors.Is(err, queue.ErrInvalidType) {
				t.Errorf("operation %d on type %q: %v", i, typ, err)
			}
		}
	}
}

func testClock(t *testing.T, q queue.Queue) {
	last, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(last).Abs(); d > time.Hour {
		t.Errorf("the queue's clock is %v away from this machine's: fix one of them, or the test's server", d)
	}
	for range 100 {
		now, err := q.Now(t.Context())
		if err != nil || now.Before(last) {
			t.Fatalf("%v after %v, %v", now, last, err)
		}
		last = now
	}
}

// operations are all operations, for tests of what they have in common.
func operations(q queue.Queue) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Insert": func(ctx context.Context) error { return q.Insert(ctx, "orders", numbered("orders", 1, 3)) },
		"Fetch": func(ctx context.Context) error {
			_, err := q.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 1})
			return err
		},
		"Ack":          func(ctx context.Context) error { return q.Ack(ctx, "orders", []queue.ID{id(1, 1, 1)}) },
		"RegisterType": func(ctx context.Context) error { return q.RegisterType(ctx, "orders") },
		"Types":        func(ctx context.Context) error { _, err := q.Types(ctx); return err },
		"Depth":        func(ctx context.Context) error { _, err := q.Depth(ctx, "orders", 1); return err },
		"File":         func(ctx context.Context) error { _, _, err := q.RegistryEntry(ctx, "orders"); return err },
		"RegisterFile": func(ctx context.Context) error {
			_, err := q.RegisterFile(ctx, "orders", queue.RegistryEntry{})
			return err
		},
		"UpdateFile": func(ctx context.Context) error {
			_, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{})
			return err
		},
		"AckFile": func(ctx context.Context) error {
			_, err := q.AckFile(ctx, "orders", queue.RegistryEntry{}, []queue.ID{id(1, 1, 1)})
			return err
		},
		"SucceedFile": func(ctx context.Context) error {
			_, _, err := q.SucceedFile(ctx, "orders", [16]byte{}, queue.RegistryEntry{})
			return err
		},
		"Now": func(ctx context.Context) error { _, err := q.Now(ctx); return err },
		"Bury": func(ctx context.Context) error {
			return q.MoveToDeadLetters(ctx, "orders", lettersOf(numbered("orders", 1, 3)))
		},
		"Dead": func(ctx context.Context) error {
			_, err := q.DeadLetters(ctx, "orders", queue.ID{}, queue.Limit{Messages: 1})
			return err
		},
		"Mark":        func(ctx context.Context) error { _, err := q.HolderNote(ctx, "orders"); return err },
		"SetMark":     func(ctx context.Context) error { return q.SetHolderNote(ctx, "orders", []byte("{}")) },
		"RemoveDead":  func(ctx context.Context) error { return q.RemoveDeadLetters(ctx, "orders", []queue.ID{id(1, 1, 1)}) },
		"Settings":    func(ctx context.Context) error { _, err := q.Settings(ctx, "orders"); return err },
		"AllSettings": func(ctx context.Context) error { _, err := q.AllSettings(ctx); return err },
		"ChangeSettings": func(ctx context.Context) error {
			_, err := q.PatchSettings(ctx, "orders", queue.SettingsPatch{DrainPaused: new(true)})
			return err
		},
		"Heartbeat":     func(ctx context.Context) error { return q.Heartbeat(ctx, queue.Member{Instance: "w"}) },
		"Members":       func(ctx context.Context) error { _, err := q.Members(ctx); return err },
		"Leave":         func(ctx context.Context) error { return q.Leave(ctx, "w") },
		"Foreign":       func(ctx context.Context) error { _, err := q.ForeignKeys(ctx, "orders", "", 1); return err },
		"RemoveForeign": func(ctx context.Context) error { _, err := q.RemoveForeignKeys(ctx, "orders", nil); return err },
	}
}

func testEndedContext(t *testing.T, q queue.Queue) {
	for name, op := range operations(q) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		err := op(ctx)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
		if d := time.Since(begin); d > ctxGrace {
			t.Errorf("%s took %v to notice", name, d)
		}
		var ie *queue.InsertError
		if name == "Insert" && (!errors.As(err, &ie) || !ie.Refused) {
			t.Errorf("%s: nothing was sent, so it is refused: %v", name, err)
		}
	}
	if got := fetchAll(t, q, "orders"); len(got) != 0 {
		t.Errorf("%d messages stored with an ended context", len(got))
	}
}

func testClosed(t *testing.T, q queue.Queue) {
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	for name, op := range operations(q) {
		err := op(t.Context())
		if !errors.Is(err, queue.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
		var ie *queue.InsertError
		if name == "Insert" && (!errors.As(err, &ie) || !ie.Refused) {
			t.Errorf("%s: a closed queue refuses: %v", name, err)
		}
	}
	if err := q.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func testFileRegistry(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	mine := queue.RegistryEntry{FileID: [16]byte{1, 0, 0xff}, Generation: 1, Epoch: 5, DurableIndex: 100}
	if _, ok, err := q.RegistryEntry(ctx, "orders"); ok || err != nil {
		t.Fatalf("File = %v, %v before it was registered", ok, err)
	}
	if updated, err := q.UpdateFile(ctx, "orders", mine); updated || err != nil {
		t.Fatalf("UpdateFile = %v, %v before it was registered", updated, err)
	}
	if got, err := q.RegisterFile(ctx, "orders", mine); got != mine || err != nil {
		t.Fatalf("RegisterFile = %+v, %v", got, err)
	}
	want := func(f queue.RegistryEntry) {
		t.Helper()
		if got, ok, err := q.RegistryEntry(ctx, "orders"); got != f || !ok || err != nil {
			t.Errorf("File = %+v, %v, %v, want %+v", got, ok, err, f)
		}
	}
	want(mine)
	other := queue.RegistryEntry{FileID: [16]byte{2}, Epoch: 9, DurableIndex: 999}
	if got, err := q.RegisterFile(ctx, "orders", other); got != mine || err != nil {
		t.Errorf("RegisterFile of another file = %+v, %v: set once", got, err)
	}
	if updated, err := q.UpdateFile(ctx, "orders", other); updated || err != nil {
		t.Errorf("UpdateFile of another file = %v, %v", updated, err)
	}
	want(mine)
	for _, step := range []struct{ epoch, index, wantEpoch, wantIndex uint64 }{
		{5, 101, 5, 101}, {6, 50, 6, 101}, {1, 1, 6, 101}, {6, 101, 6, 101}, {0, 200, 6, 200}, {1 << 62, 1 << 62, 1 << 62, 1 << 62},
	} {
		updated, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{FileID: mine.FileID, Epoch: step.epoch, DurableIndex: step.index})
		if !updated || err != nil {
			t.Errorf("UpdateFile = %v, %v", updated, err)
		}
		want(queue.RegistryEntry{FileID: mine.FileID, Generation: 1, Epoch: step.wantEpoch, DurableIndex: step.wantIndex})
	}
	if _, ok, err := q.RegistryEntry(ctx, "orders0"); ok || err != nil {
		t.Errorf("another type has a file: %v, %v", ok, err)
	}
	if types, err := q.Types(ctx); err != nil || !slices.Equal(types, []string{"orders"}) {
		t.Errorf("Types = %v, %v: a type that only has a file counts", types, err)
	}
}

// One of many wins, all learn which; values only ever rise.
func testFileRace(t *testing.T, open func(t *testing.T) queue.Queue) {
	const processes, each = 4, 4
	var mu sync.Mutex
	registered := map[[16]byte]bool{}
	var wg sync.WaitGroup
	for p := range processes {
		q := open(t)
		for g := range each {
			wg.Go(func() {
				got, err := q.RegisterFile(t.Context(), "orders", queue.RegistryEntry{FileID: [16]byte{byte(p + 1), byte(g + 1)}})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				registered[got.FileID] = true
				mu.Unlock()
				top := uint64(0)
				for i := range uint64(10) {
					v := i*processes*each + uint64(p*each+g)
					if ok, err := q.UpdateFile(t.Context(), "orders", queue.RegistryEntry{FileID: got.FileID, Epoch: v, DurableIndex: 2 * v}); !ok || err != nil {
						t.Errorf("UpdateFile = %v, %v", ok, err)
					}
					f, _, err := q.RegistryEntry(t.Context(), "orders")
					if err != nil || f.Epoch < top || f.Epoch < v || f.DurableIndex < 2*v {
						t.Errorf("File = %+v, %v after %d was written and %d seen", f, err, v, top)
					}
					top = f.Epoch
				}
			})
		}
	}
	wg.Wait()
	if len(registered) != 1 {
		t.Errorf("%d different files won: %v", len(registered), registered)
	}
	f, ok, err := open(t).RegistryEntry(t.Context(), "orders")
	if want := uint64(10*processes*each - 1); !ok || err != nil || f.Epoch != want || f.DurableIndex != 2*want {
		t.Errorf("File = %+v, %v, %v, want the highest values, %d", f, ok, err, want)
	}
}

// What the registry learns of a file, and the removal of messages from the queue, are one step, and that of the registered writer only.
func testAckFile(t *testing.T, open func(t *testing.T) queue.Queue) {
	ctx, q, other := t.Context(), open(t), open(t)
	file := func(id byte, epoch, index uint64) queue.RegistryEntry {
		return queue.RegistryEntry{FileID: [16]byte{id, 0, 0xff}, Generation: 1, Epoch: epoch, DurableIndex: index}
	}
	msgs := numbered("orders", 1, 60)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders0", numbered("orders0", 1, 1))
	left := 60
	ack := func(q queue.Queue, f queue.RegistryEntry, n int, wantOK bool, want queue.RegistryEntry) {
		t.Helper()
		if ok, err := q.AckFile(ctx, "orders", f, ids(msgs[:n])); ok != wantOK || err != nil {
			t.Fatalf("AckFile(%+v) = %v, %v, want %v", f, ok, err, wantOK)
		}
		if wantOK {
			msgs, left = msgs[n:], left-n
		}
		if got := fetchAll(t, other, "orders"); len(got) != left {
			t.Errorf("%d messages are pending after AckFile(%+v), want %d", len(got), f, left)
		}
		if got, _, err := other.RegistryEntry(ctx, "orders"); got != want || err != nil {
			t.Errorf("File = %+v, %v after AckFile(%+v), want %+v", got, err, f, want)
		}
	}
	ack(q, file(1, 5, 10), 10, false, queue.RegistryEntry{}) // none is registered, and none is by that
	register(t, q, file(1, 5, 0))
	ack(q, file(1, 5, 10), 10, true, file(1, 5, 10))
	ack(q, file(1, 5, 20), 25, true, file(1, 5, 20))
	ack(q, file(1, 5, 3), 1, true, file(1, 5, 20)) // a lower index changes nothing
	ack(q, file(2, 9, 99), 3, false, file(1, 5, 20))
	ack(other, file(1, 6, 21), 1, true, file(1, 6, 21)) // a later writer …
	ack(q, file(1, 5, 99), 3, false, file(1, 6, 21))    // … and from then on no earlier one
	ack(q, file(1, 6, 22), 0, true, file(1, 6, 22))
	if ok, err := q.AckFile(ctx, "orders", file(1, 6, 22), ids(numbered("orders", 1, 5))); !ok || err != nil {
		t.Errorf("AckFile of messages that are gone = %v, %v", ok, err)
	}
	next := file(2, 7, 22)
	if _, ok, err := q.SucceedFile(ctx, "orders", file(1, 0, 0).FileID, next); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ack(q, file(1, 7, 99), 3, false, next) // the file's successor is registered
	ack(q, file(2, 7, 40), len(msgs), true, file(2, 7, 40))
	if got := fetchAll(t, q, "orders0"); len(got) != 1 {
		t.Errorf("%d messages of another type, want 1", len(got))
	}
}

// register registers a file and fails the test unless it is the one that is registered.
func register(t *testing.T, q queue.Queue, f queue.RegistryEntry) {
	t.Helper()
	got, err := q.RegisterFile(t.Context(), "orders", f)
	if f.Generation = max(f.Generation, 1); got != f || err != nil {
		t.Fatalf("RegisterFile = %+v, %v, want %+v", got, err, f)
	}
}

// A successor takes the entry over from the file it names, from no other; nothing goes back.
func testFileSuccession(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	id := func(b byte) [16]byte { return [16]byte{b, 0, 0xff} }
	succeed := func(old byte, f, want queue.RegistryEntry) {
		t.Helper()
		now, ok, err := q.SucceedFile(ctx, "orders", id(old), f)
		if now != want || !ok || err != nil {
			t.Errorf("SucceedFile(%d, %+v) = %+v, %v, %v, want %+v", old, f, now, ok, err, want)
		}
		if now, ok, err := q.RegistryEntry(ctx, "orders"); now != want || !ok || err != nil {
			t.Errorf("File = %+v, %v, %v after SucceedFile(%d, %+v), want %+v", now, ok, err, old, f, want)
		}
	}
	second := queue.RegistryEntry{FileID: id(2), Generation: 2, Epoch: 7, DurableIndex: 120}
	if now, ok, err := q.SucceedFile(ctx, "orders", id(1), second); ok || err != nil || now != (queue.RegistryEntry{}) {
		t.Errorf("SucceedFile of a type without a file = %+v, %v, %v", now, ok, err)
	}
	if _, ok, err := q.RegistryEntry(ctx, "orders"); ok || err != nil {
		t.Fatalf("it made an entry: %v, %v", ok, err)
	}
	register(t, q, queue.RegistryEntry{FileID: id(1), Epoch: 5, DurableIndex: 100}) // generation 1 by default
	succeed(1, second, second)
	succeed(1, second, second) // repeated after an unclear answer
	succeed(1, queue.RegistryEntry{FileID: id(9), Generation: 2, Epoch: 99, DurableIndex: 999}, second)
	succeed(8, queue.RegistryEntry{FileID: id(9), Generation: 3, Epoch: 99, DurableIndex: 999}, second)
	if ok, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{FileID: id(1), Epoch: 99, DurableIndex: 999}); ok || err != nil {
		t.Errorf("UpdateFile of the predecessor = %v, %v", ok, err)
	}
	if ok, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{FileID: id(2), Epoch: 8, DurableIndex: 150}); !ok || err != nil {
		t.Errorf("UpdateFile of the successor = %v, %v", ok, err)
	}
	succeed(1, second, queue.RegistryEntry{FileID: id(2), Generation: 2, Epoch: 8, DurableIndex: 150}) // repeated late: nothing goes back
	if got, err := q.RegisterFile(ctx, "orders", queue.RegistryEntry{FileID: id(1)}); got.FileID != id(2) || err != nil {
		t.Errorf("RegisterFile of the predecessor = %+v, %v", got, err)
	}
	third := queue.RegistryEntry{FileID: id(3), Generation: 3, Epoch: 1, DurableIndex: 2}
	succeed(2, third, queue.RegistryEntry{FileID: id(3), Generation: 3, Epoch: 8, DurableIndex: 150})
	succeed(1, second, queue.RegistryEntry{FileID: id(3), Generation: 3, Epoch: 8, DurableIndex: 150}) // carried out much too late
	succeed(3, queue.RegistryEntry{FileID: id(4)}, queue.RegistryEntry{FileID: id(4), Generation: 1, Epoch: 8, DurableIndex: 150})
	if _, ok, err := q.RegistryEntry(ctx, "orders0"); ok || err != nil {
		t.Errorf("another type has a file: %v, %v", ok, err)
	}
}

// Of many successors of one file exactly one wins, and all learn which.
func testFileSuccessionRace(t *testing.T, open func(t *testing.T) queue.Queue) {
	const processes, rounds = 4, 8
	last := queue.RegistryEntry{Generation: 1}
	register(t, open(t), last)
	queues := make([]queue.Queue, processes)
	for p := range queues {
		queues[p] = open(t)
	}
	for round := range rounds {
		var mu sync.Mutex
		registered := map[queue.RegistryEntry]bool{}
		var wg sync.WaitGroup
		for p, q := range queues {
			wg.Go(func() {
				mine := queue.RegistryEntry{FileID: [16]byte{byte(p + 1), byte(round + 1)}, Generation: uint64(round + 2), Epoch: uint64(round), DurableIndex: uint64(round)}
				now, ok, err := q.SucceedFile(t.Context(), "orders", last.FileID, mine)
				if !ok || err != nil {
					t.Errorf("SucceedFile = %v, %v", ok, err)
				}
				mu.Lock()
				registered[now] = true
				mu.Unlock()
			})
		}
		wg.Wait()
		now, ok, err := queues[0].RegistryEntry(t.Context(), "orders")
		if len(registered) != 1 || !registered[now] || now.FileID == last.FileID || !ok || err != nil {
			t.Fatalf("round %d: File = %+v, %v, %v, the callers were told %v", round, now, ok, err, registered)
		}
		last = now
	}
}

// Whether the answer or the operation was lost: repeating it finds out.
func testFileSuccessionFaults(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	last := queue.RegistryEntry{Generation: 1}
	register(t, q, last)
	for i, kind := range []Kind{LostAnswer, Lost, HangPerformed, Hang, Unreachable} {
		var used bool
		faulty := &Faulty{Queue: q, Next: func(op Op, _ string, _ int) Fault {
			if used || op != OpSucceedFile {
				return Fault{}
			}
			used = true
			return Fault{Kind: kind}
		}}
		next := queue.RegistryEntry{FileID: [16]byte{byte(i + 1)}, Generation: last.Generation + 1, Epoch: uint64(i), DurableIndex: uint64(i)}
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		if _, ok, err := faulty.SucceedFile(short, "orders", last.FileID, next); ok || err == nil {
			t.Errorf("kind %d: SucceedFile = %v, %v", kind, ok, err)
		}
		cancel()
		if now, ok, err := faulty.SucceedFile(ctx, "orders", last.FileID, next); now != next || !ok || err != nil {
			t.Errorf("kind %d: repeated SucceedFile = %+v, %v, %v, want %+v", kind, now, ok, err, next)
		}
		last = next
	}
}

// Publishers on several handles, one consumer that fetches and acknowledges: everything arrives once per insert, in order.
func testConcurrent(t *testing.T, open func(t *testing.T) queue.Queue) {
	const publishers, batches, size = 4, 20, 25
	var wg sync.WaitGroup
	for p := range publishers {
		q := open(t)
		wg.Go(func() {
			for b := range batches {
				var msgs []queue.Message
				for n := b*size + 1; n <= (b+1)*size; n++ {
					msgs = append(msgs, queue.Message{ID: id(b, uint64(p+1), uint64(n)), Payload: fmt.Appendf(nil, "%d/%d", p+1, n)})
				}
				if err := q.Insert(t.Context(), "orders", msgs); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	q := open(t)
	got := map[string]bool{}
	for finished := false; ; {
		select {
		case <-done:
			finished = true
		default:
		}
		msgs := mustFetch(t, q, "orders", queue.ID{}, queue.Limit{Messages: 64})
		if len(msgs) == 0 && finished {
			break
		}
		for i, m := range msgs {
			if i > 0 && m.ID.Compare(msgs[i-1].ID) <= 0 {
				t.Fatalf("%v after %v", m.ID, msgs[i-1].ID)
			}
			if want := fmt.Sprintf("%d/%d", m.ID.Producer(), m.ID.N()); string(m.Payload) != want || got[want] {
				t.Fatalf("payload %q of %s, seen before: %v", m.Payload, want, got[want])
			}
			got[string(m.Payload)] = true
		}
		mustAck(t, q, "orders", ids(msgs))
	}
	if len(got) != publishers*batches*size {
		t.Errorf("got %d messages, want %d", len(got), publishers*batches*size)
	}
}

// While a batch lands, and while it lands again, a reader never sees a message without those before it.
func testVisibleInOrder(t *testing.T, open func(t *testing.T) queue.Queue) {
	const rounds, size = 8, 200
	writer, rival, reader := open(t), open(t), open(t)
	ctx := t.Context()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			highest := map[uint64]uint64{}
			msgs, err := reader.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 100_000})
			if err != nil {
				t.Error(err)
				return
			}
			// rule: one read in ID order. Within a producer, what it shows is a prefix.
			for _, m := range msgs {
				p := m.ID.Producer()
				if m.ID.N() != highest[p]+1 {
					t.Errorf("producer %d: n=%d is visible, %d is not", p, m.ID.N(), highest[p]+1)
					return
				}
				highest[p] = m.ID.N()
			}
		}
	})
	for round := range rounds {
		var msgs []queue.Message
		for n := 1; n <= size; n++ {
			msgs = append(msgs, queue.Message{ID: id(round, uint64(round+1), uint64(n)), Payload: []byte("x")})
		}
		var both sync.WaitGroup
		for i, q := range []queue.Queue{writer, rival} { // a late attempt and its repetition
			both.Go(func() {
				if err := q.Insert(ctx, "orders", msgs[:size/(2-i)]); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
	close(stop)
	wg.Wait()
	if got := fetchAll(t, reader, "orders"); len(got) != rounds*size {
		t.Errorf("%d messages, want %d", len(got), rounds*size)
	}
}

// The publisher on this backend, with answers lost on the way.
func testPublisher(t *testing.T, open func(t *testing.T) queue.Queue) {
	q := open(t)
	rng := rand.New(rand.NewPCG(5, 6))
	var mu sync.Mutex
	faulty := &Faulty{Queue: q, Next: func(op Op, _ string, n int) Fault {
		mu.Lock()
		defer mu.Unlock()
		if op != OpInsert || rng.IntN(3) > 0 {
			return Fault{}
		}
		return Fault{Kind: []Kind{LostAnswer, Lost, Partial}[rng.IntN(3)], Keep: rng.IntN(n + 1)}
	}}
	p, err := queue.NewPublisher(t.Context(), faulty, queue.PublisherOptions{BatchMessages: 50})
	if err != nil {
		t.Fatal(err)
	}
	const total = 400
	var oracle Oracle
	for i := range total {
		payload := fmt.Appendf(nil, "payload %d", i)
		if err := p.Send(t.Context(), queue.Message{Type: "orders", Payload: payload}, func(r queue.Result) {
			oracle.Report("test", "orders", payload, r)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := fetchAll(t, q, "orders")
	for i, m := range got {
		oracle.Observe(m)
		if want := fmt.Sprintf("payload %d", i); string(m.Payload) != want {
			t.Fatalf("at %d: %s", i, m.Payload)
		}
	}
	if err := oracle.Check(); err != nil || len(got) != total {
		t.Errorf("%d messages, %v", len(got), err)
	}
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"orders"}) {
		t.Errorf("Types = %v, %v", types, err)
	}
}
