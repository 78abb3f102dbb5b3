package queuetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// UnfitStore is an empty store into which a test can put delayed messages that Delay refuses: an earlier version, or another program,
// may have stored them.
type UnfitStore struct {
	Open  func(t *testing.T) queue.Queue
	Plant func(t *testing.T, msgs ...queue.Message) // stores those that were not settled

	// Foreign stores something that cannot be decoded as a delayed message; the key says what is wrong.
	Foreign map[string]func(t *testing.T, at queue.ScheduleKey)
	// Unnamed stores an entry that no ScheduleKey can name, before the other delayed messages.
	Unnamed map[string]func(t *testing.T)
}

// RunUnfit checks the handling of delayed messages that cannot be promoted: each backend handles them in the same way, and they block no
// other message.
func RunUnfit(t *testing.T, fresh func(t *testing.T) UnfitStore) {
	headers := func(k, v string) func(m *queue.Message) {
		return func(m *queue.Message) { m.Headers = map[string]string{k: v} }
	}
	for name, change := range map[string]func(m *queue.Message){
		"headers too large":     headers("k", strings.Repeat("v", queue.MaxHeaders)),
		"empty idempotency key": headers(queue.KeyHeader, ""),
		"header without a key":  headers("", "v"),
		"number 0":              func(m *queue.Message) { m.ID = queue.NewID(m.ID.Time(), 9, 0) },
		"payload too large":     func(m *queue.Message) { m.Payload = bytes.Repeat([]byte("x"), queue.MaxPayload+1) },
	} {
		t.Run("Buried/"+name, func(t *testing.T) {
			s := fresh(t)
			testUnfitIsBuried(t, s, unfit(t, s, change))
		})
	}
	for name, change := range map[string]func(m *queue.Message){
		"type":    func(m *queue.Message) { m.Type = "Orders" },
		"zero ID": func(m *queue.Message) { m.ID = queue.ID{} },
		"headers": func(m *queue.Message) { m.Headers = headersOf(queue.MaxHeaderCount+1, "") },
	} {
		t.Run("Kept/"+name, func(t *testing.T) {
			s := fresh(t)
			m := unfit(t, s, change)
			s.Plant(t, m)
			testUnfitIsKept(t, s, queue.ScheduleKeyOf(&m))
		})
	}
	for name := range fresh(t).Foreign {
		t.Run("Kept/"+name, func(t *testing.T) {
			s := fresh(t)
			m := unfit(t, s, func(*queue.Message) {})
			s.Foreign[name](t, queue.ScheduleKeyOf(&m))
			testUnfitIsKept(t, s, queue.ScheduleKeyOf(&m))
		})
	}
	for name := range fresh(t).Unnamed {
		t.Run("Unnamed/"+name, func(t *testing.T) {
			s := fresh(t)
			s.Unnamed[name](t)
			testOthersArePromoted(t, s, 0)
			if list := listDelayed(t, s.Open(t)); len(list) != 1 {
				t.Errorf("%d delayed messages are listed, want the one that is not due", len(list))
			}
		})
	}
	t.Run("HeadersOfEarlierVersions", func(t *testing.T) { testHeadersOfEarlierVersions(t, fresh(t)) })
	t.Run("Cancelled", func(t *testing.T) { testUnfitIsCancelled(t, fresh(t)) })
	t.Run("Many", func(t *testing.T) { testManyUnfit(t, fresh(t)) })
	t.Run("AmongThousands", func(t *testing.T) { testAmongThousands(t, fresh(t)) })
}

// unfit returns a delayed message that precedes all others.
func unfit(t *testing.T, s UnfitStore, change func(m *queue.Message)) queue.Message {
	at := now(t, s.Open(t))
	m := queue.Message{Type: "orders", ID: queue.NewID(at, 9, 1), Payload: []byte("unfit"), Due: time.UnixMilli(at.Add(-2 * time.Minute).UnixMilli())}
	change(&m)
	return m
}

// testOthersArePromoted delays messages after the existing ones, and promotes a few at a time.
func testOthersArePromoted(t *testing.T, s UnfitStore, wantBuried int) {
	t.Helper()
	q := s.Open(t)
	at := now(t, q)
	due, later := at.Add(-time.Minute), at.Add(time.Hour)
	mustDelay(t, q, slices.Concat(delayedMessages("audit", due, at, 1, 1, 2), delayedMessages("orders", due, at, 2, 1, 3), delayedMessages("orders", later, at, 2, 4, 4)))
	promoted, buried := 0, 0
	var p queue.Promotion
	for range 10 {
		p = mustPromote(t, q, queue.Limit{Messages: 2})
		promoted, buried = promoted+p.Messages, buried+p.DeadLetters
	}
	if promoted != 5 || buried != wantBuried || p.Next.UnixMilli() != later.UnixMilli() {
		t.Errorf("promoted %d, buried %d, the next is due at %v; want 5, %d, %v", promoted, buried, p.Next, wantBuried, later)
	}
	for _, q := range []queue.Queue{q, s.Open(t)} {
		if next, ok, err := q.NextDue(t.Context()); err != nil || !ok || next.UnixMilli() != later.UnixMilli() {
			t.Errorf("NextDue = %v, %v, %v, want %v: nothing that is due can be promoted", next, ok, err, later)
		}
	}
	audit, orders := fetchAll(t, q, "audit"), fetchAll(t, q, "orders")
	wantPayloads(t, audit, "audit 1", "audit 2")
	wantPayloads(t, orders, "orders 1", "orders 2", "orders 3")
	wantPromoted(t, audit)
	wantPromoted(t, orders)
}

// testUnfitIsBuried: a delayed message that breaks a limit becomes one dead letter, and the messages after it are promoted.
func testUnfitIsBuried(t *testing.T, s UnfitStore, m queue.Message) {
	s.Plant(t, m)
	testOthersArePromoted(t, s, 1)
	q := s.Open(t)
	want := m
	want.Due = time.Time{}
	letters := dead(t, q, m.Type)
	if len(letters) != 1 {
		t.Fatalf("%d dead letters, want 1", len(letters))
	}
	wantMessages(t, []queue.Message{letters[0].Message}, []queue.Message{want})
	fate, why := queuedriver.DecideDue(&m, len(m.Payload))
	if fate != queuedriver.MakeDeadLetter || !strings.Contains(letters[0].Reason, why.Error()) || letters[0].Time.IsZero() {
		t.Errorf("the letter of %v says %q; want %v", letters[0].Time, letters[0].Reason, why)
	}
	if list := listDelayed(t, q); len(list) != 1 {
		t.Errorf("%d delayed messages are left, want the one that is not due", len(list))
	}
	// A late retry stores it once more: that does not make another letter.
	if err := q.RemoveDeadLetters(t.Context(), m.Type, []queue.ID{m.ID}); err != nil {
		t.Fatal(err)
	}
	s.Plant(t, m)
	if p := mustPromote(t, q, anyLimit); p.DeadLetters != 0 || len(dead(t, q, m.Type)) != 0 || len(listDelayed(t, q)) != 1 {
		t.Errorf("promoted %+v, and there are %d letters after a retry", p, len(dead(t, q, m.Type)))
	}
}

// testUnfitIsKept: a delayed message that cannot be decoded, or is foreign, stays where it is, and the messages after it are promoted.
func testUnfitIsKept(t *testing.T, s UnfitStore, slot queue.ScheduleKey) {
	testOthersArePromoted(t, s, 0)
	q := s.Open(t)
	list := listDelayed(t, q)
	if len(list) != 2 || queue.ScheduleKeyOf(&list[0]).Compare(slot) != 0 {
		t.Fatalf("%d delayed messages are listed, want that of %v and the one that is not due", len(list), slot)
	}
	if behind, err := q.Delayed(t.Context(), slot, anyLimit); err != nil || len(behind) != 1 {
		t.Errorf("%d delayed messages are listed after it, want 1 (%v)", len(behind), err)
	}
	if n, err := q.CancelDelayed(t.Context(), []queue.ScheduleKey{slot}); n != 1 || err != nil {
		t.Errorf("cancelled %d, %v", n, err)
	}
	if list := listDelayed(t, q); len(list) != 1 {
		t.Errorf("%d delayed messages are left", len(list))
	}
}

// testHeadersOfEarlierVersions: those versions accepted headers that leave no room for a DelayedHeader.
func testHeadersOfEarlierVersions(t *testing.T, s UnfitStore) {
	m := unfit(t, s, func(m *queue.Message) { m.Headers = map[string]string{"k": strings.Repeat("v", queue.MaxHeaders-1)} })
	s.Plant(t, m)
	q := s.Open(t)
	if p := mustPromote(t, q, anyLimit); p.Messages != 1 || p.DeadLetters != 0 {
		t.Fatalf("promoted %+v", p)
	}
	got := fetchAll(t, q, m.Type)
	if len(got) != 1 {
		t.Fatalf("%d messages", len(got))
	}
	m.ID, m.Due = got[0].ID, time.Time{}
	wantMessages(t, got, []queue.Message{m})
}

// testUnfitIsCancelled: a delayed message that can never be promoted can still be cancelled, so that an operator can remove it.
func testUnfitIsCancelled(t *testing.T, s UnfitStore) {
	m := unfit(t, s, func(m *queue.Message) { m.Headers = map[string]string{"": "v"} })
	s.Plant(t, m)
	q := s.Open(t)
	if n, err := q.CancelDelayed(t.Context(), []queue.ScheduleKey{queue.ScheduleKeyOf(&m)}); n != 1 || err != nil {
		t.Fatalf("cancelled %d, %v", n, err)
	}
	s.Plant(t, m)
	testOthersArePromoted(t, s, 0)
	if letters := dead(t, q, m.Type); len(letters) != 0 {
		t.Errorf("a cancelled message became a dead letter: %s", letters[0].Reason)
	}
}

// testManyUnfit: more than a page of messages that cannot be promoted, of both kinds.
func testManyUnfit(t *testing.T, s UnfitStore) {
	const each = 300
	var many []queue.Message
	for n := range uint64(each) {
		for _, typ := range []string{"Orders", "orders"} {
			many = append(many, unfit(t, s, func(m *queue.Message) {
				m.Type, m.ID, m.Headers = typ, queue.NewID(m.ID.Time(), 9, n+1), map[string]string{"": "v"}
			}))
		}
	}
	s.Plant(t, many...)
	q := s.Open(t)
	if p := mustPromote(t, q, anyLimit); p.Messages != 0 || p.DeadLetters != each {
		t.Errorf("promoted %+v, want %d letters", p, each)
	}
	testOthersArePromoted(t, s, 0)
	if letters := dead(t, q, "orders"); len(letters) != each {
		t.Errorf("%d dead letters, want %d", len(letters), each)
	}
}

// testAmongThousands: messages that are due before, among and after thousands of others that cannot be promoted are promoted in order, and
// one that is due later is known.
func testAmongThousands(t *testing.T, s UnfitStore) {
	q := s.Open(t)
	at := now(t, q)
	begin := at.Add(-time.Hour)
	const most = 3000
	many := make([]queue.Message, most)
	for i := range many {
		m := queue.Message{Type: "orders", ID: queue.NewID(begin, 9, uint64(i+1)), Payload: []byte("x"), Due: time.UnixMilli(begin.Add(time.Duration(i/5) * time.Second).UnixMilli())}
		switch i % 3 {
		case 0:
			m.Type = "Orders"
		case 1:
			m.Type, m.ID = fmt.Sprintf("t%06d", i), queue.ID{}
		default:
			m.Headers = headersOf(queue.MaxHeaderCount+1, "")
		}
		many[i] = m
	}
	s.Plant(t, many...)
	dues := []time.Time{begin.Add(-time.Second), begin.Add(most / 15 * time.Second), begin.Add(most/10*time.Second + time.Millisecond), begin.Add(most / 5 * time.Second), at.Add(-time.Minute)}
	later := at.Add(time.Hour)
	for i, due := range slices.Backward(dues) {
		mustDelay(t, q, delayedMessages("orders", due, at, 1, i+1, i+1))
	}
	mustDelay(t, q, delayedMessages("orders", later, at, 2, 1, 1))
	promoted := 0
	var p queue.Promotion
	for range 2 * len(dues) {
		p = mustPromote(t, q, queue.Limit{Messages: 2})
		promoted += p.Messages
	}
	if promoted != len(dues) || p.Next.UnixMilli() != later.UnixMilli() {
		t.Errorf("promoted %d, the next is due at %v; want %d, %v", promoted, p.Next, len(dues), later)
	}
	wantPayloads(t, fetchAll(t, q, "orders"), "orders 1", "orders 2", "orders 3", "orders 4", "orders 5")
	if n := len(listDelayed(t, q)); n != most+1 {
		t.Errorf("%d delayed messages are left, want %d and the one that is not due", n, most)
	}
}
