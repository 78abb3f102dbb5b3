package mongoqueue

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
)

// refusing is a server with a validator on the collection messages: it accepts no payload that begins with "bad".
type refusing struct{ planned }

func (q refusing) publish(ctx context.Context, typ string, msgs []queue.Message) error {
	i := slices.IndexFunc(msgs, func(m queue.Message) bool { return bytes.HasPrefix(m.Payload, []byte("bad")) })
	if i < 0 {
		return q.planned.publish(ctx, typ, msgs)
	}
	if err := q.planned.publish(ctx, typ, msgs[:i]); err != nil {
		return err
	}
	return &queue.InsertError{Stored: i, Refused: true, Err: &documentError{why: "Document failed validation (code 121)", err: queue.ErrUnsupported}}
}

// TestServerRefusesOne: a message that the server permanently refuses becomes a dead letter, and no other message waits for it.
func TestServerRefusesOne(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q, err := Open(t.Context(), uri, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	q.promoter = &promoter{store: refusing{planned{q}}}
	at := q.now().Add(-time.Minute)
	large := func(s string) string { return s + strings.Repeat("x", 9<<20) }
	n := uint64(0)
	delay := func(typ string, due time.Time, payloads ...string) {
		t.Helper()
		var msgs []queue.Message
		for _, p := range payloads {
			n++
			msgs = append(msgs, queue.Message{Type: typ, ID: queue.NewID(at, 7, n), Payload: []byte(p), Due: due, Headers: map[string]string{"k": "v"}})
		}
		if err := q.Delay(t.Context(), msgs); err != nil {
			t.Fatal(err)
		}
	}
	delay("audit", at, "a1", "a2")
	delay("orders", at, "o1", large("bad 1"), large("o2"), "bad 2", "o3")
	delay("refunds", at, "bad 3")
	delay("zebra", at, "z1")
	delay("audit", at.Add(time.Second), "bad 4", "a3", "a4")
	messages, buried := 0, 0
	for range 5 {
		p, err := q.Promote(t.Context(), queue.Limit{Messages: 9})
		if err != nil {
			t.Fatal(err)
		}
		messages, buried = messages+p.Messages, buried+p.DeadLetters
	}
	if messages != 8 || buried != 4 {
		t.Errorf("promoted %d, buried %d; want 8 and 4", messages, buried)
	}
	if due, ok, err := q.NextDue(t.Context()); ok || err != nil {
		t.Errorf("the next is due at %v, %v", due, err)
	}
	brief := func(payload []byte) string { return string(payload[:min(len(payload), 5)]) }
	var letters []queue.DeadLetter
	for typ, want := range map[string][2]string{"audit": {"1 a1 2 a2 3 a3 4 a4", "bad 4"}, "orders": {"1 o1 2 o2xxx 3 o3", "bad 1 bad 2"}, "refunds": {"", "bad 3"}, "zebra": {"1 z1", ""}} {
		msgs, err := q.Fetch(t.Context(), typ, queue.ID{}, queue.Limit{Messages: 100})
		if err != nil {
			t.Fatal(err)
		}
		var got, dead []string
		for _, m := range msgs {
			got = append(got, fmt.Sprint(m.ID.N()), brief(m.Payload))
			if m.ID.Producer() != msgs[0].ID.Producer() || m.Incomplete || m.Payload[0] == 'o' && len(m.Payload) > 5 && string(m.Payload) != large("o2") {
				t.Errorf("%s is number %d of %016x, with %d bytes, incomplete: %v", brief(m.Payload), m.ID.N(), m.ID.Producer(), len(m.Payload), m.Incomplete)
			}
		}
		of, err := q.DeadLetters(t.Context(), typ, queue.ID{}, queue.Limit{Messages: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range of {
			dead = append(dead, brief(l.Payload))
			if !strings.Contains(l.Reason, "Document failed validation") || l.Headers["k"] != "v" || l.ID.Producer() != 7 {
				t.Errorf("the letter %v of %s says %q, with the headers %v", l.ID, brief(l.Payload), l.Reason, l.Headers)
			}
		}
		letters = append(letters, of...)
		if got, dead := strings.Join(got, " "), strings.Join(dead, " "); got != want[0] || dead != want[1] {
			t.Errorf("%s: messages %q, dead letters %q; want %q, %q", typ, got, dead, want[0], want[1])
		}
	}
	if n, err := db.Collection("messages").CountDocuments(t.Context(), bson.D{{Key: "_id", Value: probeKey}}); n != 0 || err != nil {
		t.Errorf("%d messages for trying are left (%v)", n, err)
	}

	p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if n, err := queue.Requeue(t.Context(), q, p, letters); n != 4 || err != nil {
		t.Errorf("requeued %d, %v", n, err)
	}
	got, err := q.Fetch(t.Context(), "refunds", queue.ID{}, queue.Limit{Messages: 100})
	if err != nil || len(got) != 1 || len(got[0].Headers) != 1 {
		t.Errorf("%d messages of refunds, %v", len(got), err)
	}
}

// withOneDelayed returns a queue, its database, and its only delayed message, which is due.
func withOneDelayed(t *testing.T) (*Queue, *mongo.Database, queue.Message) {
	t.Helper()
	uri, db := mongotest.Fresh(t)
	q, err := Open(t.Context(), uri, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	m := queue.Message{Type: "orders", ID: queue.NewID(q.now(), 7, 1), Payload: []byte("x"), Due: q.now().Add(-time.Minute)}
	if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
		t.Fatal(err)
	}
	return q, db, m
}

// TestLettersOfAnotherPlan: a version of this program that knows no letters in plans replaces the other fields and keeps the letters.
func TestLettersOfAnotherPlan(t *testing.T) {
	q, db, m := withOneDelayed(t)
	old := plan{version: "1", letters: []planLetter{letterOf(queue.ScheduleKeyOf(&m), "it was refused")}}
	if err := (planned{q}).createPlan(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if read, _, err := (planned{q}).readPlan(t.Context()); err != nil || len(read.letters) != 1 || read.letters[0].why != "it was refused" {
		t.Fatalf("the plan has %v, %v", read.letters, err)
	}
	if _, err := db.Collection("scheduled").UpdateByID(t.Context(), planKey, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: "2"}}}}); err != nil {
		t.Fatal(err)
	}
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 || p.DeadLetters != 0 {
		t.Errorf("promoted %+v, %v", p, err)
	}
}

// TestPlanOfAVersionThatCountedNoTime: its sequences may just have been used, and continue; versions that do not know its count keep it.
func TestPlanOfAVersionThatCountedNoTime(t *testing.T) {
	q, db, _ := withOneDelayed(t)
	if _, err := db.Collection("scheduled").InsertOne(t.Context(), bson.D{{Key: "_id", Value: planKey}, {Key: "v", Value: "1"}, {Key: "items", Value: bson.A{}},
		{Key: "seq", Value: bson.A{bson.D{{Key: "t", Value: "orders"}, {Key: "p", Value: int64(5)}, {Key: "n", Value: int64(41)}, {Key: "at", Value: q.now().UnixMilli()}}}},
		{Key: "dead", Value: bson.A{}}, {Key: "of", Value: "1"}, {Key: "passed", Value: time.Hour.Milliseconds()}}); err != nil {
		t.Fatal(err)
	}
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 {
		t.Fatalf("promoted %+v, %v", p, err)
	}
	got, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10})
	if err != nil || len(got) != 1 || got[0].ID.Producer() != 5 || got[0].ID.N() != 42 {
		t.Errorf("%+v, %v; want number 42 of 5", got, err)
	}
	if p, ok, err := (planned{q}).readPlan(t.Context()); err != nil || !ok || p.passed != time.Hour || p.sequences["orders"].Used != time.Hour.Milliseconds() {
		t.Errorf("the plan is %+v, %v", p, err)
	}
}
