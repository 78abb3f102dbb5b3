package mongoqueue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// plant stores n documents under keys.
func plant(t testing.TB, in *mongo.Collection, n int, key func(i int) string) {
	t.Helper()
	for from := 0; from < n; from += 10_000 {
		var docs []any
		for i := from; i < min(from+10_000, n); i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: key(i)}, {Key: "b", Value: 7}})
		}
		if _, err := in.InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTypesPassOverStrays: types before, between and after 20,000 foreign keys, no two of which can be skipped together, are listed with
// one command per page.
func TestTypesPassOverStrays(t *testing.T) {
	race.Skip(t)
	for name, key := range map[string]func(i int) string{
		"no separator": func(i int) string { return fmt.Sprintf("m%06d", i) },
		"bad names":    func(i int) string { return fmt.Sprintf("m%06d:note/1", i) },
		"long names":   func(i int) string { return fmt.Sprintf("m%064d/1", i) },
	} {
		t.Run(name, func(t *testing.T) {
			uri, db := mongotest.Fresh(t)
			w := &wire{}
			q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
			const most = 20_000
			plant(t, db.Collection("messages"), most, key)
			want := []string{"audit", "orders"}
			between := "m" + fmt.Sprintf("%06d", most/2) + "a"
			if name != "long names" {
				want = slices.Insert(want, 1, between)
			}
			for _, typ := range want {
				mustInsert(t, q, typ, message(typ, 1, nil), message(typ, 2, nil))
			}
			w.take()
			types, err := q.Types(t.Context())
			names, _ := w.take()
			if !slices.Equal(types, want) || err != nil {
				t.Errorf("Types = %v, %v; want %v", types, err, want)
			}
			if len(names) > 35 {
				t.Errorf("it took %d commands for %d foreign keys, want at most 35", len(names), most)
			}
		})
	}
}

// TestManyTypesAreListedInPages: a foreign program may have many types as well.
func TestManyTypesAreListedInPages(t *testing.T) {
	race.Skip(t)
	uri, db := mongotest.Fresh(t)
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	const most, each = 5000, 4
	plant(t, db.Collection("messages"), most*each, func(i int) string { return fmt.Sprintf("t%06d/%d", i/each, i%each) })
	plant(t, db.Collection("messages"), 3000, func(i int) string { return "zebra/" + message("", i+1, nil).ID.String() })
	w.take()
	types, err := q.Types(t.Context())
	names, _ := w.take()
	if len(types) != most+1 || err != nil || !slices.IsSorted(types) || types[most] != "zebra" {
		t.Errorf("%d types, %v; want %d", len(types), err, most+1)
	}
	if len(names) > 40 {
		t.Errorf("it took %d commands, want at most 40", len(names))
	}
}

// strayShapes are foreign keys of the collection scheduled. Each sorts by its time.
var strayShapes = map[string]func(at time.Time, i int) string{
	"no slots": func(at time.Time, i int) string { return fmt.Sprintf("%015d/note-%06d", at.UnixMilli(), i) },
	"foreign types": func(at time.Time, i int) string {
		return fmt.Sprintf("%015d/T%06d/%v", at.UnixMilli(), i, queue.NewID(at, 1, 1))
	},
	"zero IDs": func(at time.Time, i int) string { return fmt.Sprintf("%015d/t%06d/%v", at.UnixMilli(), i, queue.ID{}) },
	"unreadable": func(at time.Time, i int) string {
		return fmt.Sprintf("%015d/t%06d/%v", at.UnixMilli(), i, queue.NewID(at, 1, 1))
	},
}

// TestDueMessagesAmongStrays: messages due before, between and after 20,000 foreign keys are promoted with few calls and few commands, in
// order; those due later are found; and the next searches do not read all of these keys again.
func TestDueMessagesAmongStrays(t *testing.T) {
	race.Skip(t)
	for name, key := range strayShapes {
		t.Run(name, func(t *testing.T) {
			uri, db := mongotest.Fresh(t)
			w := &wire{}
			q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
			now, err := q.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			const most = 20_000
			begin := now.Add(-time.Hour)
			at := func(i int) time.Time { return begin.Add(time.Duration(i/10) * 100 * time.Millisecond) }
			plant(t, db.Collection("scheduled"), most, func(i int) string { return key(at(i), i) })
			if name != "unreadable" { // that is known once it is due
				plant(t, db.Collection("scheduled"), 500, func(i int) string { return key(now.Add(time.Minute), i) })
			}
			var msgs []queue.Message
			for i, due := range []time.Time{begin.Add(-time.Second), at(most / 3), at(most / 2), at(most / 2).Add(50 * time.Millisecond), at(most - 1), now.Add(-time.Minute)} {
				m := message("orders", i+1, fmt.Append(nil, i+1))
				m.Due = due
				msgs = append(msgs, m)
			}
			later := message("orders", 99, nil)
			later.Due = time.UnixMilli(now.Add(time.Hour).UnixMilli())
			slices.Reverse(msgs)
			if err := q.Delay(t.Context(), append(slices.Clone(msgs), later)); err != nil {
				t.Fatal(err)
			}
			w.take()
			calls, promoted := 0, 0
			var next time.Time
			for promoted < len(msgs) && calls < 10 {
				q.HoldWalk()
				p, err := q.Promote(t.Context(), queue.Limit{Messages: 1000})
				if err != nil {
					t.Fatal(err)
				}
				next = p.Next
				promoted += p.Messages
				calls++
			}
			names, _ := w.take()
			if promoted != len(msgs) || calls > 6 || next.UnixMilli() != later.Due.UnixMilli() {
				t.Errorf("%d of %d messages promoted by %d calls, the next is due at %v; want at most 6 calls, and %v", promoted, len(msgs), calls, next, later.Due)
			}
			bound := 150
			if name == "unreadable" {
				bound += most / 100
			}
			if len(names) > bound {
				t.Errorf("it took %d commands, want at most %d", len(names), bound)
			}
			var got []string
			for _, m := range fetchAll(t, q, "orders") {
				got = append(got, string(m.Payload))
			}
			if want := "1 2 3 4 5 6"; strings.Join(got, " ") != want {
				t.Errorf("promoted in the order %v, want %s", got, want)
			}
			q.HoldWalk()
			for range 10 {
				if due, ok, err := q.NextDue(t.Context()); err != nil || !ok || due.UnixMilli() != later.Due.UnixMilli() {
					t.Fatalf("NextDue = %v, %v, %v", due, ok, err)
				}
			}
			if names, _ := w.take(); len(names) > 30 {
				t.Errorf("10 looks took %d commands, want at most 30", len(names))
			}
		})
	}
}

// TestMessageStoredAmongStrays: a message stored late, among keys already skipped, is found when those are read again.
func TestMessageStoredAmongStrays(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	now, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plant(t, db.Collection("scheduled"), 1500, func(i int) string { return strayShapes["no slots"](now.Add(-time.Minute), i) })
	plant(t, db.Collection("scheduled"), 1500, func(i int) string { return strayShapes["no slots"](now.Add(time.Minute), i) })
	promote := func(want int) {
		t.Helper()
		if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != want {
			t.Fatalf("promoted %+v, %v; want %d", p, err, want)
		}
	}
	delay := func(n int, due time.Time) {
		t.Helper()
		m := message("orders", n, nil)
		m.Due = due
		if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	promote(0)
	// Before keys that are not due: it is found as soon as it is due.
	if now, err = q.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	delay(1, now.Add(time.Millisecond))
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) { // the queue's clock is an estimate, and may go back
		p, err := q.Promote(t.Context(), queue.Limit{Messages: 10})
		if err != nil || p.Messages > 1 {
			t.Fatalf("promoted %+v, %v", p, err)
		}
		if p.Messages == 1 {
			break
		}
		if time.Since(began) > 4*time.Second { // after 5 s every search starts over
			t.Fatal("not found")
		}
	}
	delay(2, now.Add(-2*time.Minute))
	q.ForgetKept()
	promote(1)
}

// TestLooksAreBounded: a search ends, says that something may be due, and the next one continues.
func TestLooksAreBounded(t *testing.T) {
	race.Skip(t)
	uri, db := mongotest.Fresh(t)
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	now, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	past := now.Add(-time.Hour)
	plant(t, db.Collection("scheduled"), mongoqueue.WalkMost/mongoqueue.ReadCost+2000, func(i int) string { return strayShapes["unreadable"](past, i) })
	m := message("orders", 1, nil)
	m.Due = now.Add(-time.Minute)
	if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
		t.Fatal(err)
	}
	w.take()
	due, ok, err := q.NextDue(t.Context())
	if err != nil || !ok || due.UnixMilli() == m.Due.UnixMilli() || due.After(time.Now().Add(time.Minute)) {
		t.Errorf("NextDue = %v, %v, %v; want that something may be due now", due, ok, err)
	}
	if names, _ := w.take(); len(names) > mongoqueue.WalkMost/1000 {
		t.Errorf("a look took %d commands, want at most %d", len(names), mongoqueue.WalkMost/1000)
	}
	if due, ok, err := q.NextDue(t.Context()); err != nil || !ok || due.UnixMilli() != m.Due.UnixMilli() {
		t.Errorf("the next look: %v, %v, %v; want %v", due, ok, err, m.Due)
	}
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 || !p.Next.IsZero() {
		t.Errorf("promoted %+v, %v", p, err)
	}
}

// mongosh parses the filter of a remedy, as a driver accepts it.
func mongosh(t *testing.T, s queue.Strays) (collection string, filter bson.D) {
	t.Helper()
	command := regexp.MustCompile(`db\.(\w+)\.deleteMany\((.*)\) removes them$`).FindStringSubmatch(s.Remedy)
	if command == nil {
		t.Fatalf("no command in %q", s.Remedy)
	}
	text := regexp.MustCompile(`([$_]\w+):`).ReplaceAllString(command[2], `"$1":`)
	text = regexp.MustCompile(`/\^.*\$?/}`).ReplaceAllStringFunc(text, func(literal string) string {
		pattern, err := json.Marshal(strings.TrimSuffix(literal[1:], "/}"))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"$regularExpression": {"pattern": %s, "options": ""}}}`, pattern)
	})
	if err := bson.UnmarshalExtJSON([]byte(text), false, &filter); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return command[1], filter
}

// TestStraysAreNamed: an operator learns which foreign documents exist, and the remedy removes those and nothing else.
func TestStraysAreNamed(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	now, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	delayed := message("orders", 1, nil)
	delayed.Due = time.UnixMilli(now.Add(time.Hour).UnixMilli())
	if err := q.Delay(t.Context(), []queue.Message{delayed}); err != nil {
		t.Fatal(err)
	}
	mustInsert(t, q, "orders", message("orders", 1, nil), message("orders", 2, nil))
	if err := q.MoveToDeadLetters(t.Context(), "orders", []queue.DeadLetter{{Message: message("orders", 2, nil)}}); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"0", "orders", "z.-_9" + strings.Repeat("a", queue.MaxTypeLen-5)} {
		if err := q.RegisterType(t.Context(), typ); err != nil {
			t.Fatal(err)
		}
		if _, err := q.RegisterFile(t.Context(), typ, queue.RegistryEntry{FileID: [16]byte{1}}); err != nil {
			t.Fatal(err)
		}
	}
	look := func() (all []queue.Strays) {
		t.Helper()
		if types, err := q.Types(t.Context()); len(types) != 3 || err != nil {
			t.Fatalf("Types = %v, %v", types, err)
		}
		if _, err := q.Promote(t.Context(), queue.Limit{Messages: 1}); err != nil {
			t.Fatal(err)
		}
		return q.Strays()
	}
	if got := look(); len(got) != 0 {
		t.Fatalf("there are none, but %v are reported", got)
	}
	documents := func() (n int64) {
		t.Helper()
		for _, c := range []string{"messages", "dead", "scheduled", "types", "files"} {
			here, err := db.Collection(c).CountDocuments(t.Context(), bson.D{})
			if err != nil {
				t.Fatal(err)
			}
			n += here
		}
		return n
	}
	ours := documents()
	const each = 200
	shape := func(formats ...string) func(int) string {
		return func(i int) string { return fmt.Sprintf(formats[i%len(formats)], i) }
	}
	heads := shape("m%d", "m%d /x", "a_m%d?", strings.Repeat("a", queue.MaxTypeLen)+"%d/1")
	names := shape("T%d", "m%d/", "_%d", strings.Repeat("a", queue.MaxTypeLen)+"%d")
	for c, key := range map[string]func(int) string{"messages": heads, "dead": heads, "types": names, "files": names,
		"scheduled": func(i int) string {
			key := []func(time.Time, int) string{strayShapes["no slots"], strayShapes["foreign types"], strayShapes["zero IDs"]}[i%3]
			return key(now.Add(time.Duration(i-each/2)*time.Second), i)
		}} {
		plant(t, db.Collection(c), each, key)
	}
	all := look()
	if len(all) != 5 {
		t.Errorf("reported %v, want five collections", all)
	}
	for _, s := range all {
		if s.Count != each || s.Example == "" || !strings.Contains(s.String(), fmt.Sprint(each)) || !strings.Contains(s.String(), s.Example) {
			t.Errorf("%v; want %d, and an example", s, each)
		}
		c, filter := mongosh(t, s)
		if r, err := db.Collection(c).DeleteMany(t.Context(), filter); err != nil || r.DeletedCount != each {
			t.Errorf("%s removes %+v, %v; want %d documents of %s", s.Remedy, r, err, each, s.In)
		}
	}
	q.ForgetKept()
	if got := look(); len(got) != 0 || documents() != ours {
		t.Errorf("reported %v, and %d documents are left, want %d", got, documents(), ours)
	}
}

// TestScansAreBounded: a call of Types ends, and the next one continues and knows what the first has found. The server is a double that
// generates its keys.
func TestScansAreBounded(t *testing.T) {
	race.Skip(t)
	const keys, second = mongoqueue.ScanMost * 3 / 2, mongoqueue.ScanMost * 5 / 4
	types := map[int]bool{50: true, second: true, keys - 1: true}
	name := func(i int) string { return fmt.Sprintf("m%08d", i) }
	finds := 0
	s := fake.StartWith(t, func(command string, document bson.Raw) bson.D {
		if command != "find" {
			return nil
		}
		docs := bson.A{}
		if document.Lookup("find").StringValue() == "messages" {
			finds++
			first, err := 0, error(nil)
			if from := document.Lookup("filter", "_id", "$gt").StringValue(); len(from) > 8 {
				first, err = strconv.Atoi(from[1:9])
				first++
			}
			if err != nil {
				return fake.Failed(1)
			}
			for i := first; i < min(first+int(document.Lookup("limit").AsInt64()), keys); i++ {
				key := name(i)
				if types[i] {
					key += "/" + message("", 1, nil).ID.String()
				}
				docs = append(docs, bson.D{{Key: "_id", Value: key}})
			}
		}
		return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.messages"}, {Key: "firstBatch", Value: docs}}}}
	})
	q := open(t, "mongodb://"+s.Addr()+"/db?directConnection=true&heartbeatFrequencyMS=100000", mongoqueue.Options{})
	for call, want := range []struct {
		types  []string
		pages  int // and one or two that are not full
		strays int
	}{
		{[]string{name(50)}, mongoqueue.ScanMost / 1000, mongoqueue.ScanMost},
		{[]string{name(50), name(second), name(keys - 1)}, (keys - mongoqueue.ScanMost) / 1000, keys - 3},
		{[]string{name(50)}, mongoqueue.ScanMost / 1000, mongoqueue.ScanMost}, // from the start again
	} {
		finds = 0
		types, err := q.Types(t.Context())
		if err != nil || !slices.Equal(types, want.types) || finds < want.pages || finds > want.pages+3 {
			t.Errorf("call %d: Types = %v, %v, with %d pages; want %v, %d pages", call, types, err, finds, want.types, want.pages)
		}
		if strays := q.Strays(); len(strays) != 1 || strays[0].Count < want.strays || strays[0].Count > want.strays+1000 {
			t.Errorf("call %d: reported %v, want %d", call, strays, want.strays)
		}
	}
}

// TestAListThatTakesTooLongGoesOn: no call has the time for all pages. Each continues where the last one ended, and together the calls
// reach the end. A call that sees that it has no time for another page returns what it has found; one that is interrupted within a page
// fails.
func TestAListThatTakesTooLongGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		first, more time.Duration // how long the first page of a call takes, and each further one
		timeout     time.Duration // of a call
		types       int           // in five pages: of 100 and then 1,000, or of 100 if no call gets further than that
		fails       bool
	}{
		"in time": {first: time.Second, more: time.Second, timeout: 3500 * time.Millisecond, types: 4000},
		"cut off": {more: time.Second / 2, timeout: 400 * time.Millisecond, types: 450, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			uri, db := mongotest.Fresh(t)
			var finds, ofCall atomic.Int32
			q := open(t, uri, mongoqueue.Options{Monitor: &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
				if e.CommandName != "find" {
					return
				}
				finds.Add(1)
				if ofCall.Add(1) == 1 {
					time.Sleep(c.first)
				} else {
					time.Sleep(c.more)
				}
			}}})
			plant(t, db.Collection("messages"), c.types, func(i int) string { return fmt.Sprintf("t%06d/%s", i, message("", i+1, nil).ID) })
			finds.Store(0)
			var counts []int
			for calls := int32(1); ; calls++ {
				ofCall.Store(0)
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				types, err := q.PendingTypes(ctx)
				cancel()
				counts = append(counts, len(types))
				if len(types) == c.types {
					if n := finds.Load(); n > 5+calls {
						t.Errorf("%d finds in %d calls (%v types) for five pages", n, calls, counts)
					}
					return
				}
				if c.fails != (err != nil) && ofCall.Load() > 1 { // if not even the first page was in time, each call fails
					t.Errorf("call %d, with %d finds: %v", calls, ofCall.Load(), err)
				}
				if calls == 50 {
					t.Fatalf("not at the end: %v types, the last error: %v", counts, err)
				}
			}
		})
	}
}
