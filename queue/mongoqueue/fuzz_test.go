package mongoqueue

import (
	"bytes"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Documents of foreign programs, other versions and people: a decoder may reject them, and says why. What it accepts, it also accepts from
// a document of our own, with the same result.

func fuzzID(n byte) (id queue.ID) {
	id[0], id[19] = 1, n
	return id
}

// seedBSON adds the documents, truncated variants of each, and an empty one.
func seedBSON(f *testing.F, docs ...any) {
	for _, d := range docs {
		raw := mustBSON(f, d)
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
	}
	f.Add([]byte{5, 0, 0, 0, 0})
}

func mustBSON(t testing.TB, doc any) []byte {
	t.Helper()
	raw, err := bson.Marshal(doc)
	if err != nil {
		t.Fatalf("%v: %v", doc, err)
	}
	return raw
}

func messageSeeds(key string) (docs []any) {
	m := queue.Message{ID: fuzzID(1), Payload: []byte("payload")}
	for _, headers := range []map[string]string{nil, {"a": "b"}, {"a.b": "c", "$d": ""}, {queue.LooseHeader: queue.LooseValue}} {
		m.Headers = headers
		doc := documents("orders", []queue.Message{m})[0].body
		doc[0].Value = key
		docs = append(docs, doc)
	}
	id := bson.E{Key: "_id", Value: key}
	return append(docs, bson.D{id, {Key: "b", Value: "text"}, {Key: "h", Value: bson.A{"k", "v", "l"}}}, bson.D{id, {Key: "b", Value: 7}},
		bson.D{id, {Key: "p", Value: 3}, {Key: "h", Value: 1.5}}, bson.D{id, {Key: "b", Value: nil}, {Key: "h", Value: bson.D{{Key: "k", Value: 7}}}})
}

// checkMessage reports what is wrong with a message that a decoder accepted, and decodes it once more from our own document.
func checkMessage(t *testing.T, m queue.Message, decodeAgain func(body bson.D) (queue.Message, bool)) {
	t.Helper()
	if m.Incomplete {
		if m.Why == "" {
			t.Fatalf("incomplete, and nothing says why: %+v", m)
		}
		return
	}
	if len(m.Headers) > queue.MaxHeaderCount {
		t.Fatalf("%d headers", len(m.Headers))
	}
	for k := range m.Headers {
		if strings.IndexByte(k, 0) >= 0 {
			return // in an array of keys and values; an embedded document cannot have such a key, and no publisher sends one
		}
	}
	again, ok := decodeAgain(documents(m.Type, []queue.Message{m})[0].body)
	if !ok || again.Incomplete || again.Loose() != m.Loose() || again.ID != m.ID || again.Type != m.Type || !again.Due.Equal(m.Due) || !bytes.Equal(again.Payload, m.Payload) ||
		!maps.Equal(again.Headers, m.Headers) {
		t.Fatalf("%+v became %+v, %v", m, again, ok)
	}
}

// FuzzDecodeHead decodes documents of messages.
func FuzzDecodeHead(f *testing.F) {
	seedBSON(f, messageSeeds(headKey("orders", fuzzID(1)))...)
	seedBSON(f, messageSeeds(headKey("orders", queue.NewLooseID(time.UnixMilli(1_700_000_000_000))))...)
	seedBSON(f, bson.D{{Key: "_id", Value: headKey("orders", queue.ID{})}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, ok := decodeHead("orders", raw)
		if !ok {
			return
		}
		if m.ID.IsZero() || m.Type != "orders" || isForeign("orders", headKey("orders", m.ID)) {
			t.Fatalf("accepted %+v", m)
		}
		checkMessage(t, m, func(body bson.D) (queue.Message, bool) { return decodeHead("orders", mustBSON(t, body)) })
	})
}

// FuzzDecodeDelayed decodes documents of scheduled.
func FuzzDecodeDelayed(f *testing.F) {
	slot := queue.ScheduleKey{Due: time.UnixMilli(1_700_000_000_000), Type: "orders", ID: fuzzID(1)}
	seedBSON(f, messageSeeds(slotKey(slot))...)
	seedBSON(f, bson.D{{Key: "_id", Value: slotKey(slot)}, {Key: "x", Value: true}}, bson.D{{Key: "_id", Value: "000000000000001//" + fuzzID(1).String()}},
		bson.D{{Key: "_id", Value: "1/orders/" + fuzzID(1).String()}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, ok := decodeDelayed(raw)
		if !ok {
			return
		}
		isCancelled(raw)
		key := slotKey(queue.ScheduleKeyOf(&m))
		if s, ok := parseSlot(key); !ok || s != queue.ScheduleKeyOf(&m) || !bytes.Contains(raw, []byte(key)) {
			t.Fatalf("the slot of %+v is %q, which is %+v", m, key, s)
		}
		checkMessage(t, m, func(body bson.D) (queue.Message, bool) {
			body[0].Value = key
			return decodeDelayed(mustBSON(t, body))
		})
	})
}

// FuzzDecodeLetter decodes documents of dead. Damage outside the message is left out and reported.
func FuzzDecodeLetter(f *testing.F) {
	seeds := messageSeeds(headKey("orders", fuzzID(1)))
	whole := append(seeds[1].(bson.D), bson.D{{Key: "reason", Value: "why"}, {Key: "attempts", Value: int64(3)}, {Key: "worker", Value: "w1"},
		{Key: "at", Value: time.UnixMilli(1_700_000_000_000)}}...)
	odd := append(seeds[0].(bson.D), bson.D{{Key: "reason", Value: 7}, {Key: "attempts", Value: "x"}, {Key: "worker", Value: nil}, {Key: "at", Value: 1}}...)
	seedBSON(f, append(seeds, whole, odd)...)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, ok := decodeHead("orders", raw)
		if !ok {
			return
		}
		l := queue.DeadLetter{Message: m}
		decodeLetter(raw, &l)
		if l.Damaged != "" {
			if !strings.HasPrefix(l.Damaged, "field ") {
				t.Fatalf("no field is named: %q", l.Damaged)
			}
			return
		}
		again := queue.DeadLetter{Message: m}
		decodeLetter(mustBSON(t, bson.D{{Key: "reason", Value: l.Reason}, {Key: "attempts", Value: int64(l.Attempts)}, {Key: "worker", Value: l.Worker},
			{Key: "at", Value: l.Time}}), &again)
		if l.Time.IsZero() { // there was none
			again.Time = l.Time
		}
		if again.Damaged != "" || again.Reason != l.Reason || again.Attempts != l.Attempts || again.Worker != l.Worker || !again.Time.Equal(l.Time) {
			t.Fatalf("%+v became %+v", l, again)
		}
	})
}

// FuzzDecodeFile decodes documents of files. An entry that cannot be decoded stops the type, so the error says what is wrong.
func FuzzDecodeFile(f *testing.F) {
	doc, err := encodeFile("orders", queue.RegistryEntry{FileID: [16]byte{1}, Generation: 2, Epoch: 3, DurableIndex: 4})
	if err != nil {
		f.Fatal(err)
	}
	seedBSON(f, doc, bson.D{{Key: "_id", Value: "orders"}, {Key: "file_id", Value: bson.Binary{Data: []byte{1}}}},
		bson.D{{Key: "_id", Value: "orders"}, {Key: "file_id", Value: bson.Binary{Data: make([]byte, 16)}}, {Key: "epoch", Value: int64(-1)}},
		bson.D{{Key: "_id", Value: "orders"}, {Key: "file_id", Value: "text"}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		entry, err := decodeFile(raw)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without a text")
			}
			return
		}
		doc, err := encodeFile("orders", entry)
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", entry, err)
		}
		if again, err := decodeFile(mustBSON(t, doc)); err != nil || again != entry || entry.Generation < 1 {
			t.Fatalf("%+v became %+v, %v", entry, again, err)
		}
	})
}

// FuzzDecodeSettings decodes documents of types. A field with an invalid value counts as not set.
func FuzzDecodeSettings(f *testing.F) {
	seedBSON(f, bson.D{{Key: "_id", Value: "orders"}, {Key: "drain_paused", Value: true}, {Key: "publish_paused", Value: false}, {Key: "max_backlog", Value: int64(5)},
		{Key: "why", Value: "text"}, {Key: "changed", Value: time.UnixMilli(1_700_000_000_000)}},
		bson.D{{Key: "_id", Value: 1}, {Key: "drain_paused", Value: "yes"}, {Key: "max_backlog", Value: int64(-5)}, {Key: "changed", Value: 1}},
		bson.D{{Key: "_id", Value: "a"}, {Key: "max_backlog", Value: 1e300}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		typ, s := decodeSettings(raw)
		if s.MaxBacklog < 0 || s.MaxBacklog > queue.MaxBacklogLimit {
			t.Fatalf("a backlog limit of %d", s.MaxBacklog)
		}
		doc := bson.D{{Key: "_id", Value: typ}, {Key: "drain_paused", Value: s.DrainPaused}, {Key: "publish_paused", Value: s.PublishPaused},
			{Key: "max_backlog", Value: int64(s.MaxBacklog)}, {Key: "why", Value: s.Why}}
		if !s.Changed.IsZero() {
			doc = append(doc, bson.E{Key: "changed", Value: s.Changed})
		}
		if typ2, again := decodeSettings(mustBSON(t, doc)); typ2 != typ || again != s {
			t.Fatalf("%q %+v became %q %+v", typ, s, typ2, again)
		}
	})
}

// FuzzDecodeMember decodes documents of workers.
func FuzzDecodeMember(f *testing.F) {
	m := queue.Member{Instance: "w1", Host: "h", PID: 4711, Version: "v1", Started: time.UnixMilli(1_700_000_000_000), Types: []string{"a", "b-*"}, MaxTypes: 3, Held: []string{"a"},
		Stopping: true, Errors: map[string]string{"a.b": "why"}, Beat: 9, Seen: time.UnixMilli(1_700_000_000_001)}
	seedBSON(f, encodeMember(m), bson.D{{Key: "_id", Value: "w3"}, {Key: "stopping", Value: true}, {Key: "max_types", Value: 3}, {Key: "idle", Value: bson.A{"a"}},
		{Key: "leaving", Value: bson.A{"b"}}, {Key: "host", Value: "h"}, {Key: "version", Value: "v"}, {Key: "beat", Value: 7}, {Key: "pid", Value: 8}},
		bson.D{{Key: "_id", Value: "w2"}}, bson.D{{Key: "_id", Value: "w2"}, {Key: "types", Value: "a"}},
		bson.D{{Key: "_id", Value: 7}, {Key: "errors", Value: bson.D{{Key: "a", Value: "b"}}}}, bson.D{{Key: "_id", Value: "w"}, {Key: "pid", Value: 1.5}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, ok := decodeMember(raw)
		if !ok {
			return
		}
		again, ok := decodeMember(mustBSON(t, encodeMember(m)))
		same := again.Started.Equal(m.Started) && again.Seen.Equal(m.Seen)
		again.Started, again.Seen = m.Started, m.Seen
		if !ok || !same || !reflect.DeepEqual(withNil(again), withNil(m)) {
			t.Fatalf("%+v became %+v", m, again)
		}
	})
}

// withNil returns m with nil for empty lists, which mean the same.
func withNil(m queue.Member) queue.Member {
	for _, list := range []*[]string{&m.Types, &m.Held, &m.Idle, &m.Leaving} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	if len(m.Errors) == 0 {
		m.Errors = nil
	}
	return m
}

// FuzzDecodePlan decodes the document plan of scheduled. The error names the document and the remedy.
func FuzzDecodePlan(f *testing.F) {
	slot := queue.ScheduleKey{Due: time.UnixMilli(1_700_000_000_000), Type: "orders", ID: fuzzID(1)}
	p := plan{version: "v", items: []planItem{{slot, fuzzID(2)}}, letters: []planLetter{{slot, "why"}}, passed: time.Hour,
		sequences: map[string]queuedriver.Sequence{"orders": {Producer: 1 << 63, N: 5, At: 6, Used: 7}}}
	id := bson.E{Key: "_id", Value: planKey}
	whole := append(bson.D{id}, p.fields()...)
	seedBSON(f, whole, bson.D{id, {Key: "v", Value: "w"}, {Key: "seq", Value: bson.A{bson.D{{Key: "t", Value: "a"}, {Key: "p", Value: int64(1)}}}}}, // of an earlier version
		bson.D{id}, bson.D{id, {Key: "v", Value: 1}}, bson.D{id, {Key: "v", Value: "w"}, {Key: "items", Value: bson.A{bson.D{{Key: "k", Value: "x"}}}}},
		bson.D{id, {Key: "v", Value: "w"}, {Key: "passed", Value: int64(1) << 62}}, bson.D{id, {Key: "v", Value: "w"}, {Key: "passed", Value: int64(-1)}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := decodePlan(raw)
		if err != nil {
			if !errors.Is(err, errPlan) {
				t.Fatalf("the error names no remedy: %v", err)
			}
			return
		}
		if again, err := decodePlan(mustBSON(t, p.fields())); err != nil || p.passed < 0 || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
	})
}

// FuzzDecodeLog decodes documents of notifications. The result follows from the count and the list of a log, whatever they contain.
func FuzzDecodeLog(f *testing.F) {
	id, long := bson.E{Key: "_id", Value: "3"}, bson.A{}
	for range 2 * queuedriver.KeptNotifications {
		long = append(long, "orders")
	}
	seedBSON(f, bson.D{id, {Key: "n", Value: int64(7)}, {Key: "t", Value: bson.A{"orders", "audit"}}}, bson.D{id, {Key: "n", Value: int64(-1) << 63}, {Key: "t", Value: long}},
		bson.D{id, {Key: "n", Value: 7.5}, {Key: "t", Value: bson.A{7, "../x", nil, "a"}}}, bson.D{id, {Key: "t", Value: bson.A{"a"}}}, bson.D{id, {Key: "n", Value: int32(3)}, {Key: "t", Value: "a"}},
		bson.D{{Key: "_id", Value: 3}, {Key: "n", Value: int64(7)}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, count, latest, ok := decodeLog(raw)
		if !ok {
			return
		}
		if len(latest) > queuedriver.KeptNotifications {
			t.Fatalf("%d types of a log", len(latest))
		}
		log2, count2, latest2, ok := decodeLog(mustBSON(t, bson.D{{Key: "_id", Value: log}, {Key: "n", Value: count}, {Key: "t", Value: latest}}))
		if !ok || log2 != log || count2 != count || !slices.Equal(latest2, latest) {
			t.Fatalf("%q %d %q became %q %d %q, %v", log, count, latest, log2, count2, latest2, ok)
		}
	})
}
