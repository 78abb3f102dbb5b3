package mongoqueue

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/combine"
	"github.com/fencepost/fencepost/internal/mongomany"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/queue"
)

func queueOn(t *testing.T, uri string) *Queue {
	t.Helper()
	q, err := Open(t.Context(), uri, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	return q
}

// short formats answers briefly.
func short[A any](answers []combine.Answer[A], value func(A) string) (all []string) {
	for _, a := range answers {
		switch {
		case a.Again:
			all = append(all, "again")
		case a.Err != nil:
			all = append(all, "error")
		default:
			all = append(all, value(a.Value))
		}
	}
	return all
}

func yes(ok bool) string { return fmt.Sprint(ok) }

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestSharedAnswersOfAServer: what the answer to a shared command means for each of its members.
func TestSharedAnswersOfAServer(t *testing.T) {
	concern := bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "timed out"}}}
	failed := func(index, code int) bson.E {
		return bson.E{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: index}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}}}}
	}
	answer := func(n int, more ...bson.E) bson.D {
		return append(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: n}, {Key: "nModified", Value: n}}, more...)
	}
	again, failing := []string{"again", "again"}, []string{"error", "error"}
	for name, tc := range map[string]struct {
		answer                    bson.D
		updates, inserts, deletes []string
	}{
		"two":                      {answer(2), []string{"true", "true"}, []string{"true", "true"}, []string{"", ""}},
		"one":                      {answer(1), again, []string{"true", "true"}, []string{"", ""}},
		"none":                     {answer(0), again, []string{"true", "true"}, []string{"", ""}},
		"one failed":               {answer(1, failed(1, 11000)), again, []string{"true", "again"}, again},
		"not at a majority":        {answer(2, concern), again, again, again},
		"one failed, no majority":  {answer(1, failed(0, 11000), concern), again, again, again},
		"an answer without sense":  {answer(1, failed(77, 11000)), nil, again, again}, // the driver panics with such an answer to updates
		"an error of one, perhaps": {fake.Failed(2), again, again, again},
		"the user may not":         {fake.Failed(13), failing, failing, failing},
		"an unexpected error":      {fake.Failed(424242), again, again, again},
	} {
		t.Run(name, func(t *testing.T) {
			s := fake.Start(t, func(command string) bson.D {
				switch command {
				case "insert", "update", "delete":
					return tc.answer
				}
				return nil
			})
			q := queueOn(t, "mongodb://"+s.Addr()+"/db?directConnection=true")
			ctx := t.Context()
			set := bson.D{{Key: "$set", Value: bson.D{{Key: "epoch", Value: 1}}}}
			if tc.updates != nil {
				expect(t, "updates", short(q.updateEntries(ctx, []mongomany.Update{{ID: "b", Filter: bson.D{{Key: "_id", Value: "b"}}, Update: set}, {ID: "a", Filter: bson.D{{Key: "_id", Value: "a"}}, Update: set}}), yes), tc.updates...)
			}
			expect(t, "inserts", short(q.insertEntries(ctx, []fileDoc{{Type: "a"}, {Type: "b"}}), yes), tc.inserts...)
			nothing := func(struct{}) string { return "" }
			expect(t, "deletes", short(q.deleteKeysOfMany(ctx, [][]string{{"a/1"}, {"b/1", "b/2"}}), nothing), tc.deletes...)
		})
	}
}

// TestReadsOfManyTypes: each caller gets the messages of its own type, and one that would not get all of them
// reads alone.
func TestReadsOfManyTypes(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	q, ctx := queueOn(t, uri), t.Context()
	put := func(typ string, n int, size int) {
		var msgs []queue.Message
		for i := range n {
			msgs = append(msgs, queue.Message{Type: typ, ID: queue.NewID(time.UnixMilli(1_700_000_000_000), 7, uint64(i+1)), Payload: make([]byte, size)})
		}
		if err := q.Insert(ctx, typ, msgs); err != nil {
			t.Fatal(err)
		}
	}
	put("few", 3, 10)
	put("few-more", 2, 10)
	put("exactly", unionDocs, 10)
	put("many", unionDocs+1, 10)
	if _, err := q.messages.InsertOne(ctx, bson.D{{Key: "_id", Value: "few/foreign"}}); err != nil {
		t.Fatal(err)
	}
	want := func(typ string, most int) wanted {
		return wanted{typ, typeRange(typ, queue.ID{}), queue.Limit{Messages: most, Foreign: func(string) {}}}
	}
	counts := func(f fetched) string { return fmt.Sprint(len(f.msgs), "+", len(f.foreign), " of ", f.read) }
	got := q.fetchMany(ctx, []wanted{want("many", 1000), want("few", 1000), want("none", 1000), want("few-more", 1000), want("exactly", 1000)})
	expect(t, "fetch", short(got, counts), "again", "3+1 of 4", "0+0 of 0", "2+0 of 2", "again")
	for _, m := range got[1].Value.msgs {
		if m.Type != "few" || len(m.Payload) != 10 {
			t.Errorf("fetched %v", m)
		}
	}
	expect(t, "fetch a few", short(q.fetchMany(ctx, []wanted{want("many", unionDocs), want("few", 2)}), counts), fmt.Sprint(unionDocs, "+0 of ", unionDocs), "2+0 of 2")
	little := want("many", unionDocs)
	little.limit.Bytes = 1
	expect(t, "fetch a few bytes", short(q.fetchMany(ctx, []wanted{little, want("few", 1000)}), counts), "1+0 of 1", "3+1 of 4")
	expect(t, "one type twice", short(q.fetchMany(ctx, []wanted{want("few", 1000), want("few-more", 1000), want("few", 1)}), counts), "again", "2+0 of 2", "again")
	keys := func(keys []string) string { return fmt.Sprint(len(keys)) }
	expect(t, "keys", short(q.fewKeysOfMany(ctx, []string{"none", "few", "many"}), keys), "0", "2", "2")
	put("large", 3, unionBytes/2)
	expect(t, "large", short(q.fetchMany(ctx, []wanted{want("large", 1000), want("few", 1000)}), counts), "again", "again")
	if msgs, err := q.Fetch(ctx, "large", queue.ID{}, queue.Limit{Messages: 1000}); err != nil || len(msgs) != 3 || !q.isLarge("large") {
		t.Errorf("fetched %d, %v; large: %v", len(msgs), err, q.isLarge("large"))
	}
}

// TestAServerWithoutUnions: it gets one query with a union.
func TestAServerWithoutUnions(t *testing.T) {
	for _, code := range []int{codeCommandNotSupported, codeUnknownStage} {
		s := fake.Start(t, func(command string) bson.D {
			if command == "aggregate" {
				return fake.Failed(code)
			}
			return nil
		})
		q := queueOn(t, "mongodb://"+s.Addr()+"/db?directConnection=true")
		expect(t, "keys", short(q.fewKeysOfMany(t.Context(), []string{"a", "b"}), func([]string) string { return "" }), "again", "again")
		if !q.unionless.Load() {
			t.Errorf("code %d is not noticed", code)
		}
	}
}

// TestManyTypesAtTheSameTime: sessions of many types, whose calls share commands, each with its own answer.
func TestManyTypesAtTheSameTime(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	q, ctx := queueOn(t, uri), t.Context()
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			typ := fmt.Sprintf("t%02d", i)
			entry := queue.RegistryEntry{FileID: [16]byte{byte(i + 1)}, Epoch: 5, DurableIndex: uint64(i)}
			other := entry
			other.FileID[15] = 1
			_, known, err := q.RegistryEntry(ctx, typ)
			if known || err != nil {
				t.Errorf("%s: %v, %v", typ, known, err)
			}
			var msgs []queue.Message
			for n := range 3 {
				msgs = append(msgs, queue.Message{Type: typ, ID: queue.NewID(time.UnixMilli(1_700_000_000_000), uint64(i+1), uint64(n+1)), Payload: []byte(typ)})
			}
			now, err := q.RegisterFile(ctx, typ, entry)
			if err != nil || now.FileID != entry.FileID {
				t.Errorf("%s: registered %v, %v", typ, now, err)
			}
			if now, err = q.RegisterFile(ctx, typ, other); err != nil || now.FileID != entry.FileID {
				t.Errorf("%s: registered again %v, %v", typ, now, err)
			}
			if err := q.Insert(ctx, typ, msgs); err != nil {
				t.Error(err)
			}
			got, err := q.Fetch(ctx, typ, queue.ID{}, queue.Limit{Messages: 1000})
			if err != nil || len(got) != 3 || string(got[0].Payload) != typ {
				t.Errorf("%s: fetched %v, %v", typ, got, err)
			}
			// For a third of them, another writer is now registered.
			ack := entry
			ack.DurableIndex += 3
			if i%3 == 0 {
				ack = other
			}
			ok, err := q.AckFile(ctx, typ, ack, []queue.ID{msgs[0].ID, msgs[1].ID})
			if err != nil || ok != (i%3 != 0) {
				t.Errorf("%s: acknowledged %v, %v", typ, ok, err)
			}
			d, err := q.Depth(ctx, typ, 1)
			if want := msgs[0].ID; err != nil || ok && (d.Pending != 1 || d.Capped || d.Oldest != msgs[2].ID) || !ok && (d.Pending != 1 || !d.Capped || d.Oldest != want) {
				t.Errorf("%s: depth %v, %v", typ, d, err)
			}
			if now, known, err = q.RegistryEntry(ctx, typ); err != nil || !known || now.FileID != entry.FileID || ok != (now.DurableIndex == entry.DurableIndex+3) {
				t.Errorf("%s: entry %v, %v", typ, now, err)
			}
		})
	}
	all.Wait()
}
