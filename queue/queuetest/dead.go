package queuetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
)

// lettersOf makes letters of messages.
func lettersOf(msgs []queue.Message) []queue.DeadLetter {
	var letters []queue.DeadLetter
	for i, m := range msgs {
		letters = append(letters, queue.DeadLetter{Message: m, Reason: fmt.Sprintf("reason %d", i), Attempts: i, Worker: "worker"})
	}
	return letters
}

// mustBury moves letters to the dead letters, and fails the test if that fails.
func mustBury(t *testing.T, q queue.Queue, typ string, letters []queue.DeadLetter) {
	t.Helper()
	if err := q.MoveToDeadLetters(t.Context(), typ, letters); err != nil {
		t.Fatalf("Bury(%s, %d letters): %v", typ, len(letters), err)
	}
}

// dead returns all dead letters of a type.
func dead(t *testing.T, q queue.Queue, typ string) []queue.DeadLetter {
	t.Helper()
	letters, err := q.DeadLetters(t.Context(), typ, queue.ID{}, queue.Limit{Messages: 100_000})
	if err != nil {
		t.Fatalf("Dead(%s): %v", typ, err)
	}
	return letters
}

// wantLetters compares dead letters, all but their times.
func wantLetters(t *testing.T, got, want []queue.DeadLetter) {
	t.Helper()
	var g, w []queue.Message
	for _, l := range got {
		g = append(g, l.Message)
	}
	for _, l := range want {
		w = append(w, l.Message)
	}
	wantMessages(t, g, w)
	for i, l := range got {
		if l.Reason != want[i].Reason || l.Attempts != want[i].Attempts || l.Worker != want[i].Worker {
			t.Fatalf("letter %d: got %q, %d attempts, %q, want %q, %d, %q", i, l.Reason, l.Attempts, l.Worker, want[i].Reason, want[i].Attempts, want[i].Worker)
		}
	}
}

// testBury: a message is a dead letter and not pending afterwards, unchanged in all its fields; moving it again changes nothing; and a
// copy that comes back to the queue is removed by moving it once more.
func testBury(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 10)
	msgs[2].Headers = map[string]string{"k": "v", "a.b": "dot"}
	msgs[3].Payload = nil
	mustInsert(t, q, "orders", msgs)
	letters := lettersOf(msgs)
	now, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustBury(t, q, "orders", nil)
	mustBury(t, q, "orders", letters[2:5])
	wantMessages(t, fetchAll(t, q, "orders"), append(slices.Clone(msgs[:2]), msgs[5:]...))
	wantLetters(t, dead(t, q, "orders"), letters[2:5])
	for _, l := range dead(t, q, "orders") {
		if d := l.Time.Sub(now); d < -time.Second || d > time.Minute {
			t.Errorf("the letter is from %v, it was buried at %v", l.Time, now)
		}
	}

	// Again, and with others: existing letters stay unchanged.
	again := slices.Clone(letters[1:5])
	for i := range again {
		again[i].Reason = "another reason"
	}
	mustBury(t, q, "orders", again)
	letters[1].Reason = "another reason"
	wantLetters(t, dead(t, q, "orders"), letters[1:5])

	// The message came back (a lost deletion, a late insert): burying it again removes it.
	mustInsert(t, q, "orders", msgs[2:3])
	mustBury(t, q, "orders", letters[2:3])
	wantMessages(t, fetchAll(t, q, "orders"), append(slices.Clone(msgs[:1]), msgs[5:]...))

	// Letters of another type with a common prefix.
	mustInsert(t, q, "orders-b", numbered("orders-b", 1, 3))
	mustBury(t, q, "orders-b", lettersOf(numbered("orders-b", 1, 3)))
	wantLetters(t, dead(t, q, "orders"), letters[1:5])
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"orders", "orders-b"}) {
		t.Errorf("Types = %v, %v: a type with only dead letters must be listed", types, err)
	}

	// In pages, as a reader does.
	var all []queue.DeadLetter
	for after := (queue.ID{}); ; after = all[len(all)-1].ID {
		got, err := q.DeadLetters(t.Context(), "orders", after, queue.Limit{Messages: 3})
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			break
		}
		all = append(all, got...)
	}
	wantLetters(t, all, letters[1:5])
	if got, err := q.DeadLetters(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10, Bytes: 1}); err != nil || len(got) != 1 {
		t.Errorf("%d letters within 1 byte, %v", len(got), err)
	}

	for range 2 {
		if err := q.RemoveDeadLetters(t.Context(), "orders", []queue.ID{msgs[1].ID, msgs[3].ID, id(99, 9, 9)}); err != nil {
			t.Fatal(err)
		}
		wantLetters(t, dead(t, q, "orders"), []queue.DeadLetter{letters[2], letters[4]})
	}
	if err := q.RemoveDeadLetters(t.Context(), "orders", nil); err != nil {
		t.Error(err)
	}
	wantLetters(t, dead(t, q, "orders-b"), lettersOf(numbered("orders-b", 1, 3)))
	wantMessages(t, fetchAll(t, q, "orders"), append(slices.Clone(msgs[:1]), msgs[5:]...))
}

// testBuryInvalid: if one letter of a call is invalid, nothing is moved. Messages beyond the limits are moved, because being too large
// may be the reason, and so are reasons with any bytes, in a storable form.
func testBuryInvalid(t *testing.T, q queue.Queue) {
	good := numbered("orders", 1, 2)
	mustInsert(t, q, "orders", good)
	for name, l := range map[string]queue.DeadLetter{
		"no ID":          {},
		"incomplete":     {Message: queue.Message{ID: id(1, 1, 1), Incomplete: true}},
		"another type's": {Message: queue.Message{ID: id(1, 1, 1), Type: "audit"}},
	} {
		if err := q.MoveToDeadLetters(t.Context(), "orders", append(lettersOf(good), l)); err == nil {
			t.Errorf("%s: buried", name)
		}
	}
	wantMessages(t, fetchAll(t, q, "orders"), good)
	wantLetters(t, dead(t, q, "orders"), nil)

	// Messages that the file cannot take, as a foreign publisher may have stored them.
	large := queue.DeadLetter{Message: queue.Message{Type: "audit", ID: id(1, 1, 1), Headers: map[string]string{"k": strings.Repeat("v", queue.MaxHeaders+1)}}}
	nameless := queue.DeadLetter{Message: queue.Message{Type: "audit", ID: id(1, 1, 2), Headers: map[string]string{"": "v"}}}
	mustBury(t, q, "audit", []queue.DeadLetter{large, nameless})
	wantLetters(t, dead(t, q, "audit"), []queue.DeadLetter{large, nameless})

	// A handler may give any reason.
	l := lettersOf(good)
	l[0].Reason, l[1].Reason = "zero \x00, not \xff text", strings.Repeat("ü", queue.MaxReason)
	mustBury(t, q, "orders", l)
	if got := dead(t, q, "orders"); len(got) != 2 || got[0].Reason != "zero  , not  text" || len(got[1].Reason) != queue.MaxReason {
		t.Errorf("reasons: %.100v", got)
	}
}

// testBuryLargest: the largest message becomes a dead letter, is listed and removed. A dead letter has more fields than a message, and
// must still fit.
func testBuryLargest(t *testing.T, q queue.Queue) {
	race.Skip(t)
	var msgs []queue.Message
	for n, size := range []int{queue.MaxPayload, 8<<20 + 1, 1} {
		msgs = append(msgs, queue.Message{Type: "orders", ID: id(1, 1, uint64(n+1)), Payload: bytes.Repeat([]byte{byte(n + 1), 0}, size)[:size],
			Headers: map[string]string{"k": strings.Repeat("v", queue.MaxHeaders-1)}})
	}
	mustInsert(t, q, "orders", msgs)
	letters := lettersOf(fetchAll(t, q, "orders"))
	letters[0].Reason = strings.Repeat("r", queue.MaxReason)
	mustBury(t, q, "orders", letters)
	mustBury(t, q, "orders", letters)
	wantLetters(t, dead(t, q, "orders"), letters)
	if got := fetchAll(t, q, "orders"); len(got) != 0 {
		t.Errorf("%d messages left", len(got))
	}
	if err := q.RemoveDeadLetters(t.Context(), "orders", ids(msgs[:2])); err != nil {
		t.Fatal(err)
	}
	wantLetters(t, dead(t, q, "orders"), letters[2:])
	if got, err := q.DeadLetters(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 100}); err != nil || len(got) != 1 {
		t.Errorf("%d letters, %v", len(got), err)
	}
}

// testBuryFaults: whether the answer or the operation was lost, a message is always in at least one of the two places, and after a retry
// it is a dead letter only.
func testBuryFaults(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 50)
	mustInsert(t, q, "orders", msgs)
	for i, kind := range []Kind{LostAnswer, Lost, Partial, HangPerformed, Hang} {
		batch := lettersOf(msgs[10*i : 10*i+10])
		faulty := &Faulty{Queue: q, Next: func(Op, string, int) Fault { return Fault{Kind: kind, Keep: 4} }}
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := faulty.MoveToDeadLetters(short, "orders", batch); err == nil {
			t.Errorf("kind %d: no error", kind)
		}
		cancel()
		if n := len(fetchAll(t, q, "orders")) + len(dead(t, q, "orders")); n < len(msgs) {
			t.Fatalf("kind %d: %d of %d messages are left", kind, n, len(msgs))
		}
		mustBury(t, q, "orders", batch)
		if n := len(fetchAll(t, q, "orders")) + len(dead(t, q, "orders")); n != len(msgs) {
			t.Errorf("kind %d: %d messages in both places, want %d", kind, n, len(msgs))
		}
	}
	if got := dead(t, q, "orders"); len(got) != len(msgs) {
		t.Errorf("%d letters", len(got))
	}
}

// testLetters: DeadLetters finds exactly the letters that its filter selects, in order and across pages, even while letters are removed.
func testLetters(t *testing.T, q queue.Queue) {
	var want []queue.DeadLetter
	for _, typ := range []string{"audit", "orders"} {
		msgs := numbered(typ, 1, 450) // more than a page
		mustInsert(t, q, typ, msgs)
		letters := lettersOf(msgs)
		mustBury(t, q, typ, letters)
		want = append(want, letters...)
	}
	collect := func(f queue.DeadLetterFilter) (got []queue.DeadLetter) {
		t.Helper()
		for l, err := range queue.DeadLetters(t.Context(), q, f) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, l)
		}
		return got
	}
	wantLetters(t, collect(queue.DeadLetterFilter{}), want)
	wantLetters(t, collect(queue.DeadLetterFilter{Type: "orders"}), want[450:])
	wantLetters(t, collect(queue.DeadLetterFilter{Type: "orders", IDs: []queue.ID{want[452].ID, want[450].ID, id(99, 1, 1), want[452].ID}}),
		[]queue.DeadLetter{want[450], want[452]})
	wantLetters(t, collect(queue.DeadLetterFilter{IDs: []queue.ID{want[7].ID}}), []queue.DeadLetter{want[7], want[457]})
	wantLetters(t, collect(queue.DeadLetterFilter{Type: "audit", Reason: "reason 44"}), append(slices.Clone(want[44:45]), want[440:450]...))
	wantLetters(t, collect(queue.DeadLetterFilter{Since: time.Now().Add(24 * time.Hour)}), nil)
	wantLetters(t, collect(queue.DeadLetterFilter{Before: time.Now().Add(-24 * time.Hour)}), nil)
	wantLetters(t, collect(queue.DeadLetterFilter{Since: time.Now().Add(-24 * time.Hour), Before: time.Now().Add(24 * time.Hour)}), want)
	wantLetters(t, collect(queue.DeadLetterFilter{IDs: []queue.ID{}}), nil)
	// Removing while reading, and stopping early.
	seen := 0
	for l, err := range queue.DeadLetters(t.Context(), q, queue.DeadLetterFilter{Type: "audit"}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := q.RemoveDeadLetters(t.Context(), l.Type, []queue.ID{l.ID}); err != nil {
			t.Fatal(err)
		}
		if seen++; seen == 300 {
			break
		}
	}
	wantLetters(t, dead(t, q, "audit"), want[300:450])
	faulty := &Faulty{Queue: q, Next: func(op Op, _ string, _ int) Fault { return Fault{Kind: Lost} }}
	for _, f := range []queue.DeadLetterFilter{{}, {Type: "orders"}, {Type: "orders", IDs: ids(numbered("", 1, 2))}} {
		n := 0
		for _, err := range queue.DeadLetters(t.Context(), faulty, f) {
			if n++; !errors.Is(err, ErrFault) {
				t.Errorf("%+v: %v", f, err)
			}
		}
		if n != 1 {
			t.Errorf("%+v: %d errors, want one", f, n)
		}
	}
}

// testRequeue: requeued letters become pending messages, in order. Whatever answer is lost meanwhile, no message is lost.
func testRequeue(t *testing.T, q queue.Queue) {
	msgs := numbered("orders", 1, 20)
	msgs[0].Headers = map[string]string{"k": "v"}
	mustInsert(t, q, "orders", msgs)
	mustBury(t, q, "orders", lettersOf(msgs))
	remove := Fault{}
	faulty := &Faulty{Queue: q, Next: func(op Op, _ string, _ int) Fault {
		if op == OpRemoveDeadLetters {
			return remove
		}
		return Fault{}
	}}
	p, err := queue.NewPublisher(t.Context(), faulty, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	requeue := func(ctx context.Context, letters []queue.DeadLetter) (int, error) {
		return queue.Requeue(ctx, faulty, p, letters)
	}
	payloads := func(from int) (got []string) {
		for _, m := range fetchAll(t, q, "orders")[from:] {
			got = append(got, string(m.Payload))
		}
		return got
	}
	want := func(msgs []queue.Message) (want []string) {
		for _, m := range msgs {
			want = append(want, string(m.Payload))
		}
		return want
	}
	if n, err := requeue(t.Context(), dead(t, q, "orders")[:10]); n != 10 || err != nil {
		t.Fatalf("requeued %d, %v", n, err)
	}
	if got := payloads(0); !slices.Equal(got, want(msgs[:10])) {
		t.Errorf("messages: %q", got)
	}
	first := fetchAll(t, q, "orders")[0]
	if first.ID == msgs[0].ID || first.Headers["k"] != "v" {
		t.Errorf("the first message is %v with headers %v: want a new ID and the old headers", first.ID, first.Headers)
	}
	wantLetters(t, dead(t, q, "orders"), lettersOf(msgs)[10:])

	// The removal fails permanently, as if this process had died before it: the letters stay, nothing is lost.
	remove.Kind = Lost
	if n, err := requeue(t.Context(), dead(t, q, "orders")); n != 0 || err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("requeued %d, %v", n, err)
	}
	wantLetters(t, dead(t, q, "orders"), lettersOf(msgs)[10:])
	if got := payloads(10); !slices.Equal(got, want(msgs[10:])) {
		t.Errorf("messages: %q", got)
	}
	// As documented, requeueing again makes a second copy.
	remove.Kind = None
	if n, err := requeue(t.Context(), dead(t, q, "orders")); n != 10 || err != nil {
		t.Errorf("requeued %d, %v", n, err)
	}
	if got := payloads(20); !slices.Equal(got, want(msgs[10:])) {
		t.Errorf("messages: %q", got)
	}
	wantLetters(t, dead(t, q, "orders"), nil)

	// Nothing is sent with an ended context: the letters stay.
	mustBury(t, q, "orders", lettersOf(fetchAll(t, q, "orders"))[:5])
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := requeue(ended, dead(t, q, "orders")); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("requeued %d, %v", n, err)
	}
	if n := len(dead(t, q, "orders")); n != 5 {
		t.Errorf("%d letters left, want 5", n)
	}
}

// testHolderNotes: a holder note belongs to its type, the last one wins, and it does not make the type known to Types.
func testHolderNotes(t *testing.T, open func(t *testing.T) queue.Queue) {
	q := open(t)
	want := func(typ, note string) {
		t.Helper()
		if got, err := open(t).HolderNote(t.Context(), typ); err != nil || string(got) != note {
			t.Errorf("HolderNote(%s) = %q, %v, want %q", typ, got, err, note)
		}
	}
	want("orders", "")
	for _, note := range []string{`{"a":1}`, "", `{"b":"ü"}`, `{"b":"ü"}`} {
		if err := q.SetHolderNote(t.Context(), "orders", []byte(note)); err != nil {
			t.Fatal(err)
		}
		want("orders", note)
		want("orders-b", "")
	}
	if types, err := q.Types(t.Context()); err != nil || len(types) != 0 {
		t.Errorf("Types = %v, %v: a type with only a note must not be listed", types, err)
	}
}
