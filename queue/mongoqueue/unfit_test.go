package mongoqueue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

func slotKey(s queue.ScheduleKey) string {
	return fmt.Sprintf("%015d/%s/%v", s.Due.UnixMilli(), s.Type, s.ID)
}

func TestUnfitInMongoDB(t *testing.T) {
	race.Skip(t)
	queuetest.RunUnfit(t, func(t *testing.T) queuetest.UnfitStore {
		uri, db := mongotest.Fresh(t)
		put := func(t *testing.T, key any, fields ...bson.E) {
			t.Helper()
			if _, err := db.Collection("scheduled").InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: key}}, fields...)); err != nil {
				t.Fatal(err)
			}
		}
		doc := func(fields ...bson.E) func(*testing.T, queue.ScheduleKey) {
			return func(t *testing.T, s queue.ScheduleKey) { put(t, slotKey(s), fields...) }
		}
		key := func(keys ...any) func(*testing.T) {
			return func(t *testing.T) {
				for _, k := range keys {
					put(t, k, bson.E{Key: "b", Value: "x"})
				}
			}
		}
		past := time.UnixMilli(1_700_000_000_000)
		return queuetest.UnfitStore{
			Open: func(t *testing.T) queue.Queue { return open(t, uri, mongoqueue.Options{}) },
			Plant: func(t *testing.T, msgs ...queue.Message) {
				for some := range slices.Chunk(msgs, 500) {
					var docs []any
					for _, m := range some {
						headers := bson.D{}
						for k, v := range m.Headers {
							headers = append(headers, bson.E{Key: k, Value: v})
						}
						docs = append(docs, bson.D{{Key: "_id", Value: slotKey(queue.ScheduleKeyOf(&m))}, {Key: "b", Value: m.Payload}, {Key: "h", Value: headers}})
					}
					if _, err := db.Collection("scheduled").InsertMany(t.Context(), docs); err != nil {
						t.Fatal(err)
					}
				}
			},
			Foreign: map[string]func(*testing.T, queue.ScheduleKey){
				"the payload is a number": doc(bson.E{Key: "b", Value: 7}),
				"a header is a number":    doc(bson.E{Key: "b", Value: "x"}, bson.E{Key: "h", Value: bson.D{{Key: "k", Value: 7}}}),
				"headers are a text":      doc(bson.E{Key: "b", Value: "x"}, bson.E{Key: "h", Value: "k=v"}),
				"an earlier version stored it in pieces": func(t *testing.T, s queue.ScheduleKey) {
					put(t, "#"+slotKey(s)+"+1", bson.E{Key: "b", Value: []byte("unf")})
					put(t, "#"+slotKey(s)+"+2", bson.E{Key: "b", Value: []byte("it")})
					put(t, slotKey(s), bson.E{Key: "p", Value: int32(2)}, bson.E{Key: "s", Value: int32(5)})
				},
			},
			Unnamed: map[string]func(*testing.T){
				"keys that are no slots": key("0", "0000000000/what", fmt.Sprintf("%015d/orders", past.UnixMilli()), fmt.Sprintf("%015d/orders/1", past.UnixMilli()), int64(7),
					fmt.Sprintf("%d/orders/%v", past.UnixMilli(), queue.NewID(past, 1, 1)), fmt.Sprintf("%015d/%v", past.UnixMilli(), queue.NewID(past, 1, 1))),
				"a type that would change a terminal": key(slotKey(queue.ScheduleKey{Due: past, Type: "\x1b[2J", ID: queue.NewID(past, 1, 1)})),
			},
		}
	})
}

func TestSpoiledInMongoDB(t *testing.T) {
	race.Skip(t)
	queuetest.RunSpoiled(t, func(t *testing.T) queuetest.SpoiledStore {
		uri, db := mongotest.Fresh(t)
		messages := db.Collection("messages")
		among := queue.NewID(time.UnixMilli(1_700_000_000_000), 7, 1).String()
		update := func(update func(m bson.M) bson.D) func(*testing.T, string, queue.ID) {
			return func(t *testing.T, typ string, id queue.ID) {
				key := bson.D{{Key: "_id", Value: typ + "/" + id.String()}}
				var doc bson.M
				if err := messages.FindOne(t.Context(), key).Decode(&doc); err != nil {
					t.Fatal(err)
				}
				if r, err := messages.UpdateOne(t.Context(), key, update(doc)); err != nil || r.ModifiedCount != 1 {
					t.Fatalf("%+v, %v", r, err)
				}
			}
		}
		set := func(field string, value any) bson.D {
			return bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: value}}}}
		}
		spoil := func(field string, value any, why ...string) queuetest.Spoiling {
			var old any
			return queuetest.Spoiling{Why: why,
				Do:   update(func(doc bson.M) bson.D { old = doc[field]; return set(field, value) }),
				Undo: update(func(bson.M) bson.D { return set(field, old) })}
		}
		return queuetest.SpoiledStore{
			Open: func(t *testing.T) queue.Queue { return open(t, uri, mongoqueue.Options{}) },
			Spoil: map[string]queuetest.Spoiling{
				"a header is a number": {Why: []string{`"attempts"`, "field h", "32-bit integer", "string"},
					Do:   update(func(bson.M) bson.D { return set("h.attempts", int32(1)) }),
					Undo: update(func(bson.M) bson.D { return bson.D{{Key: "$unset", Value: bson.D{{Key: "h.attempts", Value: 1}}}} })},
				"a listed header is a number":     spoil("h", bson.A{"k", "v", "attempts", 1.5}, `"attempts"`, "field h", "double", "string"),
				"a listed key is a number":        spoil("h", bson.A{7, "v"}, "field h", "key 1", "32-bit integer"),
				"a key without a value":           spoil("h", bson.A{"k"}, "field h", "1 elements"),
				"headers are a text":              spoil("h", "k=v", "field h", "string", "document"),
				"the payload is a number":         spoil("b", int64(42), "field b", "64-bit integer", "binary"),
				"the payload is a document":       spoil("b", bson.D{{Key: "x", Value: 1}}, "field b", "embedded document"),
				"a key that changes the terminal": spoil("h", bson.D{{Key: "\x1b[2J", Value: 1}}, `"\x1b[2J"`),
			},
			Keys: []string{"orders/!", "orders/" + strings.Repeat("0", queue.IDLen), "orders/" + among + "\n", "orders/" + among + "x", "orders/1",
				"orders/" + strings.Repeat("Z", queue.IDLen), "orders/note-1", "orders/zzz"},
			PlantHeaders: func(t *testing.T, dead bool, m queue.Message) {
				in, headers := messages, bson.A{}
				if dead {
					in = db.Collection("dead")
				}
				for k, v := range m.Headers {
					headers = append(headers, k, v)
				}
				var stored any = headers
				if len(m.Headers) < 1000 { // in the other form
					stored = m.Headers
				}
				if _, err := in.InsertOne(t.Context(), bson.D{{Key: "_id", Value: m.Type + "/" + m.ID.String()}, {Key: "b", Value: m.Payload}, {Key: "h", Value: stored}}); err != nil {
					t.Fatal(err)
				}
			},
			PlantForeign: func(t *testing.T, _ string, keys ...string) {
				for _, key := range keys {
					if _, err := messages.InsertOne(t.Context(), bson.D{{Key: "_id", Value: key}, {Key: "b", Value: "x"}}); err != nil {
						t.Fatal(err)
					}
				}
			},
			KeyOf: func(typ string, id queue.ID) string { return typ + "/" + id.String() },
		}
	})
}

// TestKeptMessagesAreLookedAtAgain: an operator may have repaired them.
func TestKeptMessagesAreLookedAtAgain(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	m := message("orders", 1, nil)
	m.Due = m.ID.Time()
	if _, err := db.Collection("scheduled").InsertOne(t.Context(), bson.D{{Key: "_id", Value: slotKey(queue.ScheduleKeyOf(&m))}, {Key: "b", Value: 7}}); err != nil {
		t.Fatal(err)
	}
	promote := func(want int) {
		t.Helper()
		if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != want || !p.Next.IsZero() {
			t.Fatalf("promoted %+v, %v; want %d, and nothing left that is due", p, err, want)
		}
	}
	promote(0)
	if _, err := db.Collection("scheduled").UpdateByID(t.Context(), slotKey(queue.ScheduleKeyOf(&m)), bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: "seven"}}}}); err != nil {
		t.Fatal(err)
	}
	promote(0) // it is skipped for a while
	q.ForgetKept()
	promote(1)
}

// TestNoRoomForADeadLetter: with its reason the letter exceeds the size of a document. The message stays where it is, and
// blocks no other.
func TestNoRoomForADeadLetter(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	good, bad := message("orders", 1, []byte("good")), message("orders", 2, nil)
	good.Due = good.ID.Time()
	bad.Due = good.Due
	if _, err := db.Collection("scheduled").InsertOne(t.Context(), bson.D{{Key: "_id", Value: slotKey(queue.ScheduleKeyOf(&bad))}, {Key: "b", Value: "x"},
		{Key: "h", Value: bson.D{{Key: "k", Value: strings.Repeat("v", 16<<20-200)}}}}); err != nil {
		t.Fatal(err)
	}
	if err := q.Delay(t.Context(), []queue.Message{good}); err != nil {
		t.Fatal(err)
	}
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 || p.DeadLetters != 0 || !p.Next.IsZero() {
		t.Errorf("promoted %+v, %v; want 1, and nothing left that is due", p, err)
	}
	list, err := q.Delayed(t.Context(), queue.ScheduleKey{}, queue.Limit{Messages: 10})
	if err != nil || len(list) != 1 || list[0].ID != bad.ID {
		t.Errorf("%d delayed messages are left, %v", len(list), err)
	}
	if n, err := q.CancelDelayed(t.Context(), []queue.ScheduleKey{queue.ScheduleKeyOf(&bad)}); n != 1 || err != nil {
		t.Errorf("cancelled %d, %v", n, err)
	}
}
