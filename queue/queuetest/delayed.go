package queuetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
)

var anyLimit = queue.Limit{Messages: 100_000}

// now returns the queue's clock. It may be ahead of the clocks that decide what is due, by half of the
// time that reading it took. So tests that need a message due now make it due a second before.
func now(t *testing.T, q queue.Queue) time.Time {
	t.Helper()
	at, err := q.Now(t.Context())
	if err != nil {
		t.Fatalf("Now: %v", err)
	}
	return at
}

// delayedMessages makes messages of a type that are due at the given time.
func delayedMessages(typ string, due, published time.Time, producer uint64, from, to int) (msgs []queue.Message) {
	for n := from; n <= to; n++ {
		msgs = append(msgs, queue.Message{Type: typ, ID: queue.NewID(published, producer, uint64(n)), Payload: fmt.Appendf(nil, "%s %d", typ, n), Due: due})
	}
	return msgs
}

// mustDelay delays messages, and fails the test if that fails.
func mustDelay(t *testing.T, q queue.Queue, msgs []queue.Message) {
	t.Helper()
	if err := q.Delay(t.Context(), msgs); err != nil {
		t.Fatalf("Delay: %v", err)
	}
}

// mustPromote promotes once, and fails the test if that fails.
func mustPromote(t *testing.T, q queue.Queue, limit queue.Limit) queue.Promotion {
	t.Helper()
	p, err := q.Promote(t.Context(), limit)
	if err != nil {
		t.Fatalf("Promote: %v", err)
	}
	return p
}

// promoteAll promotes until nothing is due.
func promoteAll(t *testing.T, q queue.Queue) (n int) {
	t.Helper()
	for {
		p := mustPromote(t, q, anyLimit)
		if n += p.Messages; p.Messages == 0 {
			return n
		}
	}
}

// listDelayed returns all delayed messages.
func listDelayed(t *testing.T, q queue.Queue) []queue.Message {
	t.Helper()
	msgs, err := q.Delayed(t.Context(), queue.ScheduleKey{}, anyLimit)
	if err != nil {
		t.Fatalf("Delayed: %v", err)
	}
	return msgs
}

// wantPayloads compares the payloads of messages, in order.
func wantPayloads(t *testing.T, got []queue.Message, want ...string) {
	t.Helper()
	var have []string
	for _, m := range got {
		have = append(have, string(m.Payload))
	}
	if !slices.Equal(have, want) {
		t.Fatalf("got %q, want %q", have, want)
	}
}

// promotedAs is the delayed message as it is promoted under an ID.
func promotedAs(m queue.Message, id queue.ID) queue.Message {
	m.Headers = maps.Clone(m.Headers)
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	m.Headers[queue.DelayedHeader] = m.ID.String() + " " + id.String()
	m.ID, m.Due = id, time.Time{}
	return m
}

// wantPromoted checks what consumers rely on: consecutive numbers per producer number, in order, and no Due.
func wantPromoted(t *testing.T, got []queue.Message) {
	t.Helper()
	last := map[uint64]uint64{}
	for i, m := range got {
		if m.ID.N() != last[m.ID.Producer()]+1 {
			t.Errorf("message %d (%s) has number %d of %016x, after %d", i, short(m), m.ID.N(), m.ID.Producer(), last[m.ID.Producer()])
		}
		if last[m.ID.Producer()] = m.ID.N(); !m.Due.IsZero() {
			t.Errorf("message %d has a Due", i)
		}
	}
}

// testDelayed: delayed messages are listed in the order of their keys and are not pending; promotion makes those that are due pending, in
// the same order, after the pending messages; and a late retry of their publisher stores none of them again.
func testDelayed(t *testing.T, q queue.Queue) {
	at := now(t, q)
	past, soon, later := at.Add(-2*time.Second), at.Add(-time.Second), at.Add(time.Hour)
	orders := delayedMessages("orders", soon, at, 1, 1, 3)
	orders[1].Headers = map[string]string{"k": "v", "a.b": "dot"}
	first := delayedMessages("orders", past, at, 2, 9, 9)
	audit := delayedMessages("audit", soon, at, 3, 1, 2)
	future := delayedMessages("orders", later, at, 4, 5, 5)
	mustDelay(t, q, future)
	mustDelay(t, q, slices.Concat(orders, audit))
	mustDelay(t, q, slices.Concat(orders, audit)) // a retry
	mustDelay(t, q, first)
	mustInsert(t, q, "orders", []queue.Message{{ID: queue.NewID(past, 7, 1), Payload: []byte("already there")}})

	if got := fetchAll(t, q, "orders"); len(got) != 1 {
		t.Fatalf("%d messages before anything is promoted", len(got))
	}
	if d, err := q.Depth(t.Context(), "audit", 10); err != nil || d.Pending != 0 {
		t.Fatalf("Depth = %+v, %v", d, err)
	}
	if due, ok, err := q.NextDue(t.Context()); err != nil || !ok || due.UnixMilli() != past.UnixMilli() {
		t.Fatalf("NextDue = %v, %v, %v, want %v", due, ok, err, past)
	}
	list := listDelayed(t, q)
	wantPayloads(t, list, "orders 9", "audit 1", "audit 2", "orders 1", "orders 2", "orders 3", "orders 5")
	if m := list[4]; m.Type != "orders" || m.ID != orders[1].ID || m.Due.UnixMilli() != soon.UnixMilli() || m.Headers["a.b"] != "dot" {
		t.Errorf("listed as %+v", m)
	}
	page, err := q.Delayed(t.Context(), queue.ScheduleKeyOf(&list[2]), queue.Limit{Messages: 2})
	if err != nil {
		t.Fatal(err)
	}
	wantPayloads(t, page, "orders 1", "orders 2")

	if p := mustPromote(t, q, queue.Limit{Messages: 2}); p.Messages != 2 || p.Next.UnixMilli() != soon.UnixMilli() || p.Next.After(p.Now) {
		t.Errorf("promoted %+v, want 2 and the next ones due", p)
	}
	mustDelay(t, q, slices.Concat(orders, audit, first)) // a late retry
	if p := mustPromote(t, q, queue.Limit{Messages: 100, Bytes: 1}); p.Messages != 1 {
		t.Errorf("promoted %+v within 1 byte", p)
	}
	promoteAll(t, q)
	got := fetchAll(t, q, "orders")
	wantPayloads(t, got, "already there", "orders 9", "orders 1", "orders 2", "orders 3")
	wantPromoted(t, got)
	if a, b := got[1].ID, got[4].ID; a.Producer() != b.Producer() {
		t.Errorf("promoted under the producer numbers %016x and then %016x: a consumer cannot know their order", a.Producer(), b.Producer())
	}
	wantMessages(t, got[2:4], []queue.Message{promotedAs(orders[0], got[2].ID), promotedAs(orders[1], got[3].ID)})
	if old := at.Add(-time.Second); got[1].ID.Time().Before(old) {
		t.Errorf("promoted with the time %v, want it to be now", got[1].ID.Time())
	}
	wantPayloads(t, fetchAll(t, q, "audit"), "audit 1", "audit 2")
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"audit", "orders"}) {
		t.Errorf("Types = %v, %v", types, err)
	}

	mustAck(t, q, "audit", ids(fetchAll(t, q, "audit")))
	mustAck(t, q, "orders", ids(got))
	mustDelay(t, q, slices.Concat(orders, audit, first)) // a very late retry
	if p := mustPromote(t, q, anyLimit); p.Messages != 0 || p.Next.UnixMilli() != later.UnixMilli() {
		t.Errorf("promoted %+v, want none, and the next in an hour", p)
	}
	wantPayloads(t, listDelayed(t, q), "orders 5")
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"audit", "orders"}) {
		t.Errorf("Types = %v, %v", types, err)
	}
	if n := len(fetchAll(t, q, "orders")) + len(fetchAll(t, q, "audit")); n != 0 {
		t.Errorf("%d messages were promoted twice", n)
	}
}

// testDelayedNeverEarly waits for a message with a short delay, by the queue's clock.
func testDelayedNeverEarly(t *testing.T, q queue.Queue) {
	if due, ok, err := q.NextDue(t.Context()); err != nil || ok {
		t.Fatalf("NextDue of an empty queue = %v, %v, %v", due, ok, err)
	}
	if p := mustPromote(t, q, anyLimit); p.Messages != 0 || !p.Next.IsZero() || p.Now.IsZero() {
		t.Fatalf("an empty queue promoted %+v", p)
	}
	at := now(t, q)
	due := at.Add(150 * time.Millisecond)
	mustDelay(t, q, delayedMessages("orders", due, at, 1, 1, 1))
	for {
		p := mustPromote(t, q, anyLimit)
		if p.Messages == 1 {
			break
		}
		if p.Next.UnixMilli() != due.UnixMilli() {
			t.Fatalf("promoted %+v, want the next at %v", p, due)
		}
		time.Sleep(max(p.Next.Sub(p.Now), time.Millisecond))
	}
	if after := now(t, q); after.UnixMilli() < due.UnixMilli() {
		t.Errorf("promoted at %v, due at %v", after, due)
	}
	if got := fetchAll(t, q, "orders"); len(got) != 1 || got[0].ID.Time().UnixMilli() < due.UnixMilli() {
		t.Errorf("promoted as %v, due at %v", got, due)
	}
}

// Recognizing a late retry does not depend on the age of its ID, which would compare the clocks of two processes.
func testDelayedLongAgo(t *testing.T, q queue.Queue) {
	at := now(t, q)
	for producer, age := range map[uint64]time.Duration{1: 0, 2: 48 * time.Hour, 3: -48 * time.Hour, 4: 1000 * time.Hour} {
		typ := fmt.Sprintf("orders%d", producer)
		msgs := delayedMessages(typ, at.Add(-time.Second), at.Add(-age), producer, 1, 3)
		mustDelay(t, q, msgs)
		if n, err := q.CancelDelayed(t.Context(), []queue.ScheduleKey{queue.ScheduleKeyOf(&msgs[1])}); n != 1 || err != nil {
			t.Fatalf("cancelled %d, %v", n, err)
		}
		for n := range 2 {
			promoteAll(t, q)
			wantPayloads(t, fetchAll(t, q, typ), typ+" 1", typ+" 3")
			if left := listDelayed(t, q); len(left) != 0 {
				t.Errorf("IDs of %v ago, promotion %d: %d are delayed", age, n+1, len(left))
			}
			mustDelay(t, q, msgs)
		}
	}
}

// testDelayInvalid: if one message of a call is invalid, none is stored, and the error is clear: nothing will be stored later. Delay must
// refuse everything that could not be promoted.
func testDelayInvalid(t *testing.T, q queue.Queue) {
	at := now(t, q)
	good := delayedMessages("orders", at, at, 1, 1, 1)[0]
	change := func(f func(*queue.Message)) queue.Message { m := good; f(&m); return m }
	for what, m := range map[string]queue.Message{
		"type":     change(func(m *queue.Message) { m.Type = "Orders" }),
		"no type":  change(func(m *queue.Message) { m.Type = "" }),
		"ID":       change(func(m *queue.Message) { m.ID = queue.ID{} }),
		"number 0": change(func(m *queue.Message) { m.ID = queue.NewID(at, 1, 0) }),
		"no due":   change(func(m *queue.Message) { m.Due = time.Time{} }),
		"past due": change(func(m *queue.Message) { m.Due = time.UnixMilli(-1) }),
		"far due":  change(func(m *queue.Message) { m.Due = queue.MaxDue.Add(time.Second) }),
		"size":     change(func(m *queue.Message) { m.Payload = make([]byte, queue.MaxPayload+1) }),
		"headers":  change(func(m *queue.Message) { m.Headers = headersOf(queue.MaxHeaderCount, "") }), // no room for another one
		"header":   change(func(m *queue.Message) { m.Headers = map[string]string{"": "v"} }),
		"half":     change(func(m *queue.Message) { m.Incomplete = true }),
	} {
		var ie *queue.InsertError
		if err := q.Delay(t.Context(), []queue.Message{good, m}); !errors.As(err, &ie) || !ie.Refused || ie.Temporary || ie.Stored != 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := listDelayed(t, q); len(got) != 0 {
		t.Errorf("%d messages are stored", len(got))
	}
	if err := q.Insert(t.Context(), "orders", []queue.Message{good}); err == nil {
		t.Error("Insert took a message with a Due")
	}
	mustDelay(t, q, nil)
	for _, l := range []queue.Limit{{}, {Messages: 1, Bytes: -1}} {
		if _, err := q.Promote(t.Context(), l); err == nil {
			t.Errorf("Promote(%+v) worked", l)
		}
		if _, err := q.Delayed(t.Context(), queue.ScheduleKey{}, l); err == nil {
			t.Errorf("Delayed(%+v) worked", l)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, promoteErr := q.Promote(ended, anyLimit)
	_, cancelErr := q.CancelDelayed(ended, []queue.ScheduleKey{queue.ScheduleKeyOf(&good)})
	for what, err := range map[string]error{"Delay": q.Delay(ended, []queue.Message{good}), "Promote": promoteErr, "CancelDelayed": cancelErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s after the end of its context: %v", what, err)
		}
	}
}

// testDelayedLargest: the largest message with the most headers is stored, listed and promoted. Promotion adds a header, for which Delay
// has kept room.
func testDelayedLargest(t *testing.T, q queue.Queue) {
	race.Skip(t)
	at := now(t, q)
	msgs := delayedMessages("orders", at.Add(-time.Second), at, 1, 1, 4)
	msgs[0].Payload = bytes.Repeat([]byte("0123456789abcdef"), queue.MaxPayload/16)
	const room = 82 // for the DelayedHeader of the promoted message
	msgs[0].Headers = map[string]string{"k": strings.Repeat("v", queue.MaxHeaders-room-1)}
	msgs[1].Payload = nil
	msgs[2].Payload = bytes.Repeat([]byte{0xff}, queue.MaxPayload-1)
	mustDelay(t, q, msgs)
	mustDelay(t, q, msgs)
	list := listDelayed(t, q)
	wantMessages(t, list, msgs)
	if n, err := q.CancelDelayed(t.Context(), []queue.ScheduleKey{queue.ScheduleKeyOf(&msgs[2])}); n != 1 || err != nil {
		t.Fatalf("cancelled %d, %v", n, err)
	}
	if n := promoteAll(t, q); n != 3 {
		t.Fatalf("promoted %d", n)
	}
	got := fetchAll(t, q, "orders")
	wantPromoted(t, got)
	want := []queue.Message{msgs[0], msgs[1], msgs[3]}
	for i := range want {
		want[i] = promotedAs(want[i], got[i].ID)
	}
	wantMessages(t, got, want)
}

// testCancelDelayed: a cancelled message is never promoted, not even after a late retry of its publisher.
func testCancelDelayed(t *testing.T, q queue.Queue) {
	at := now(t, q)
	msgs := slices.Concat(delayedMessages("orders", at.Add(-time.Second), at, 1, 1, 4), delayedMessages("orders", at.Add(time.Hour), at, 1, 5, 6))
	cancel := func(want int, m ...queue.Message) {
		t.Helper()
		var slots []queue.ScheduleKey
		for i := range m {
			slots = append(slots, queue.ScheduleKeyOf(&m[i]))
		}
		if n, err := q.CancelDelayed(t.Context(), slots); n != want || err != nil {
			t.Fatalf("CancelDelayed = %d, %v, want %d", n, err, want)
		}
	}
	mustDelay(t, q, msgs)
	cancel(2, msgs[1], msgs[4])
	cancel(0, msgs[1], msgs[4])
	cancel(0)
	mustDelay(t, q, msgs) // a late retry does not store them again
	promoteAll(t, q)
	got := fetchAll(t, q, "orders")
	wantPayloads(t, got, "orders 1", "orders 3", "orders 4")
	wantPromoted(t, got)
	cancel(1, msgs[0], msgs[1], msgs[5])
	// A retry of a cancelled message may be stored until it is due; it is never promoted.
	if n := promoteAll(t, q); n != 0 || len(fetchAll(t, q, "orders")) != 3 {
		t.Errorf("%d more were promoted", n)
	}
}

// testPromoteConcurrently: several processes delay, cancel and promote concurrently. Every message is promoted once or cancelled, and
// the numbers of a type have no gaps.
func testPromoteConcurrently(t *testing.T, open func(t *testing.T) queue.Queue) {
	const producers, batches, each = 3, 12, 5
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	types := []string{"audit", "orders"}
	var stored, promoters sync.WaitGroup
	fail := func(err error) {
		if err != nil && ctx.Err() == nil {
			t.Error(err)
			cancel()
		}
	}
	for range 3 {
		q := open(t)
		promoters.Go(func() {
			for ctx.Err() == nil {
				_, err := q.Promote(ctx, queue.Limit{Messages: 7})
				fail(err)
				time.Sleep(time.Millisecond)
			}
		})
	}
	for p := range producers {
		q := open(t)
		stored.Go(func() {
			for b := range batches {
				at, err := q.Now(ctx)
				fail(err)
				typ := types[b%2]
				fail(q.Delay(ctx, delayedMessages(typ, at.Add(time.Duration(b%3)*5*time.Millisecond), at, uint64(p+1), b*each+1, (b+1)*each)))
			}
		})
	}
	stored.Wait()
	q := open(t)
	total := producers * batches * each
	for deadline := time.Now().Add(time.Minute); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if len(fetchAll(t, q, "orders"))+len(fetchAll(t, q, "audit")) >= total && len(listDelayed(t, q)) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Error("not everything was promoted within a minute")
			break
		}
	}
	cancel()
	promoters.Wait()
	seen := map[string]bool{}
	for _, typ := range types {
		got := fetchAll(t, q, typ)
		wantPromoted(t, got)
		for _, m := range got {
			seen[string(m.Payload)] = true // all producers have the same payloads
		}
		if len(got) != total/2 {
			t.Errorf("%d messages of %s, want %d", len(got), typ, total/2)
		}
	}
	if len(seen) != batches*each {
		t.Errorf("%d different messages, want %d", len(seen), batches*each)
	}
}

// testDelayedUnderLostAnswers: a publisher whose answers are lost retries messages that were promoted meanwhile. None is stored twice.
func testDelayedUnderLostAnswers(t *testing.T, open func(t *testing.T) queue.Queue) {
	q := open(t)
	rng := rand.New(rand.NewPCG(9, 6))
	var mu sync.Mutex
	faulty := &Faulty{Queue: q, Next: func(op Op, _ string, n int) Fault {
		mu.Lock()
		defer mu.Unlock()
		if op != OpDelay || rng.IntN(2) > 0 {
			return Fault{}
		}
		return Fault{Kind: []Kind{LostAnswer, Lost, Partial}[rng.IntN(3)], Keep: rng.IntN(n + 1)}
	}}
	p, err := queue.NewPublisher(t.Context(), faulty, queue.PublisherOptions{BatchMessages: 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var promoting sync.WaitGroup
	other := open(t)
	promoting.Go(func() {
		for ctx.Err() == nil {
			if _, err := other.Promote(ctx, anyLimit); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	const total = 200
	for i := range total {
		m := queue.Message{Type: "orders", Payload: fmt.Appendf(nil, "payload %d", i), Due: p.Now()}
		if err := p.Send(t.Context(), m, func(r queue.Result) {
			if r.Status != queue.Stored {
				t.Errorf("message %d: %v, %v", i, r.Status, r.Err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	promoting.Wait()
	promoteAll(t, q)
	got := fetchAll(t, q, "orders")
	wantPromoted(t, got)
	if len(got) != total {
		t.Errorf("%d messages, want %d", len(got), total)
	}
	for i, m := range got {
		if want := fmt.Sprintf("payload %d", i); string(m.Payload) != want {
			t.Fatalf("at %d: %s", i, m.Payload)
		}
	}
}
