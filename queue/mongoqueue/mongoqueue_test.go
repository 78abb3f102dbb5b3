package mongoqueue_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/queue/queuedriver"
	"github.com/fencepost/fencepost/queue/queuetest"
)

func open(t testing.TB, uri string, opt mongoqueue.Options) *mongoqueue.Queue {
	t.Helper()
	q, err := mongoqueue.Open(t.Context(), uri, opt)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return q
}

// leakCheck fails the test if it leaves goroutines behind that were not running before. Call it before anything else.
func leakCheck(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func message(typ string, n int, payload []byte) queue.Message {
	return queue.Message{Type: typ, ID: queue.NewID(time.UnixMilli(1_700_000_000_000), 7, uint64(n)), Payload: payload}
}

func fetchAll(t *testing.T, q queue.Queue, typ string) []queue.Message {
	t.Helper()
	msgs, err := q.Fetch(t.Context(), typ, queue.ID{}, queue.Limit{Messages: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	return msgs
}

func mustInsert(t *testing.T, q queue.Queue, typ string, msgs ...queue.Message) {
	t.Helper()
	if err := q.Insert(t.Context(), typ, msgs); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *mongo.Database) int {
	t.Helper()
	n, err := db.Collection("messages").CountDocuments(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

func TestMongoDBConforms(t *testing.T) {
	queuetest.Run(t, func(t *testing.T) func(*testing.T) queue.Queue {
		uri, _ := mongotest.Fresh(t)
		w := &wire{only: "find"}
		t.Cleanup(func() { // checks the finds of the whole suite
			if _, unbounded := w.sortedFinds(); unbounded != nil {
				t.Errorf("sorted finds without both bounds: %v", unbounded)
			}
		})
		return func(t *testing.T) queue.Queue { return open(t, uri, mongoqueue.Options{Monitor: w.monitor()}) }
	})
}

// wire records the commands sent.
type wire struct {
	only string // commands of this name; empty: all

	mu       sync.Mutex
	commands []bson.Raw
	names    []string
}

func (w *wire) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if w.only != "" && w.only != e.CommandName {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.commands = append(w.commands, slices.Clone(e.Command))
		w.names = append(w.names, e.CommandName)
	}}
}

func (w *wire) take() (names []string, commands []bson.Raw) {
	w.mu.Lock()
	defer w.mu.Unlock()
	names, commands = w.names, w.commands
	w.names, w.commands = nil, nil
	return names, commands
}

// sortedFinds returns how many finds with a sort were sent to each collection, and which of them lack a bound.
func (w *wire) sortedFinds() (sent map[string]int, unbounded []bson.Raw) {
	sent = map[string]int{}
	_, commands := w.take()
	for _, c := range commands {
		collection, isFind := c.Lookup("find").StringValueOK()
		if _, err := c.LookupErr("sort"); !isFind || err != nil {
			continue
		}
		sent[collection]++
		if !bounded(c, "$gt", "$gte") || !bounded(c, "$lt", "$lte") {
			unbounded = append(unbounded, c)
		}
	}
	return sent, unbounded
}

func bounded(find bson.Raw, operators ...string) bool {
	return slices.ContainsFunc(operators, func(op string) bool {
		v, err := find.LookupErr("filter", "_id", op)
		return err == nil && v.Type == bson.TypeString
	})
}

// TestSortedFindsHaveBothBounds: with one bound, PostgreSQL behind FerretDB reads and sorts everything beyond it for a single key, if its
// statistics date from when the collection was empty.
func TestSortedFindsHaveBothBounds(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	mustInsert(t, q, "orders", message("orders", 1, nil), message("orders", 2, nil))
	w.take()
	some := queue.Limit{Messages: 10}
	for _, err := range []error{
		second(q.Fetch(t.Context(), "orders", queue.ID{}, some)),
		second(q.Fetch(t.Context(), "orders", message("", 1, nil).ID, some)),
		second(q.Depth(t.Context(), "orders", 1)), second(q.Types(t.Context())),
		q.MoveToDeadLetters(t.Context(), "orders", []queue.DeadLetter{{Message: message("orders", 2, nil)}}),
		second(q.DeadLetters(t.Context(), "orders", queue.ID{}, some)), second(q.Types(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sent, unbounded := w.sortedFinds()
	if sent["messages"] < 5 || sent["dead"] < 3 {
		t.Errorf("sorted finds seen: %v", sent)
	}
	if unbounded != nil {
		t.Errorf("without both bounds: %v", unbounded)
	}

	// This test can fail.
	m := &wire{}
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetMonitor(m.monitor()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	for _, filter := range []bson.D{{}, {{Key: "_id", Value: bson.D{{Key: "$gt", Value: ""}}}}, {{Key: "_id", Value: bson.D{{Key: "$lt", Value: "{"}}}}} {
		err := client.Database(db.Name()).Collection("messages").FindOne(t.Context(), filter, options.FindOne().SetSort(bson.D{{Key: "_id", Value: 1}})).Err()
		if err != nil {
			t.Fatal(err)
		}
		if _, unbounded := m.sortedFinds(); len(unbounded) != 1 {
			t.Errorf("filter %v was not noticed", filter)
		}
	}
}

// checkWrites exercises every operation and returns the writes on the wire that break a rule of durability or order.
func checkWrites(t *testing.T, q queue.Queue, w *wire) (broken []string) {
	t.Helper()
	ctx := t.Context()
	w.take()
	file := queue.RegistryEntry{FileID: [16]byte{1}, Epoch: 1}
	mustInsert(t, q, "orders", message("orders", 1, nil))
	mustInsert(t, q, "orders", message("orders", 1, nil), message("orders", 2, nil), message("orders", 3, nil))
	mustInsert(t, q, "orders", message("orders", 4, make([]byte, 9<<20)))
	for _, err := range []error{
		q.RegisterType(ctx, "orders"), q.RegisterType(ctx, "orders"),
		second(q.RegisterFile(ctx, "orders", file)), second(q.RegisterFile(ctx, "orders", file)), second(q.UpdateFile(ctx, "orders", file)),
		second(q.AckFile(ctx, "orders", file, []queue.ID{message("", 3, nil).ID})),
		third(q.SucceedFile(ctx, "orders", file.FileID, queue.RegistryEntry{FileID: [16]byte{2}})),
		second(q.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 10})),
		q.Ack(ctx, "orders", []queue.ID{message("", 1, nil).ID, message("", 4, nil).ID}),
		q.MoveToDeadLetters(ctx, "orders", []queue.DeadLetter{{Message: message("orders", 2, nil)}, {Message: message("orders", 5, make([]byte, 9<<20))}}),
		q.SetHolderNote(ctx, "orders", []byte("{}")), q.SetHolderNote(ctx, "orders", []byte("{}")), second(q.HolderNote(ctx, "orders")),
		second(q.DeadLetters(ctx, "orders", queue.ID{}, queue.Limit{Messages: 10})),
		q.RemoveDeadLetters(ctx, "orders", []queue.ID{message("", 2, nil).ID, message("", 5, nil).ID}),
		second(q.PatchSettings(ctx, "orders", queue.SettingsPatch{DrainPaused: new(true)})), second(q.PatchSettings(ctx, "audit", queue.SettingsPatch{MaxBacklog: new(1)})),
		second(q.Settings(ctx, "orders")), second(q.AllSettings(ctx)),
		q.Heartbeat(ctx, queue.Member{Instance: "w"}), q.Heartbeat(ctx, queue.Member{Instance: "w"}), second(q.Members(ctx, "", 0)), q.Leave(ctx, "w"),
		q.Notify(ctx, []string{"orders"}), second(q.Notifications(ctx, nil)), second(q.PendingTypes(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]int{}
	names, commands := w.take()
	for i, c := range commands {
		level, journal := "", false
		if wc, ok := c.Lookup("writeConcern").DocumentOK(); ok {
			if s, ok := wc.Lookup("w").StringValueOK(); ok {
				level = s
			} else if n, ok := wc.Lookup("w").AsInt64OK(); ok {
				level = fmt.Sprint(n)
			}
			journal, _ = wc.Lookup("j").BooleanOK()
		}
		switch names[i] {
		case "insert", "update":
			if in := c.Lookup(names[i]).StringValue(); in == "workers" || in == "notifications" {
				break // a heartbeat may be lost, and so may a notification
			}
			if ordered, ok := c.Lookup("ordered").BooleanOK(); ok && !ordered {
				broken = append(broken, "insert is not ordered")
			}
			if level != "majority" || !journal {
				broken = append(broken, fmt.Sprintf("%s into %s with w: %q, j: %v", names[i], c.Lookup(names[i]).StringValue(), level, journal))
			}
		case "delete":
			if c.Lookup("delete").StringValue() == "dead" {
				if level != "majority" || !journal {
					broken = append(broken, "removal of a dead letter with w: "+level)
				}
			} else if level != "1" {
				broken = append(broken, "delete waits for more than it needs: w: "+level)
			}
		case "findAndModify", "aggregate", "bulkWrite":
			broken = append(broken, names[i]+" is not among the operations that all servers have")
		}
		if _, err := c.LookupErr("txnNumber"); err == nil {
			broken = append(broken, names[i]+" is repeated by the driver")
		}
		seen[names[i]]++
	}
	for _, name := range []string{"insert", "update", "delete", "find"} {
		if seen[name] == 0 {
			t.Errorf("no %s was seen: this test proves nothing", name)
		}
	}
	return broken
}

// A dead letter is stored, durably, before its message is deleted.
func TestBuryStoresBeforeItDeletes(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	mustInsert(t, q, "orders", message("orders", 1, nil))
	w.take()
	letters := []queue.DeadLetter{{Message: message("orders", 1, nil)}}
	if err := q.MoveToDeadLetters(t.Context(), "orders", letters); err != nil {
		t.Fatal(err)
	}
	names, commands := w.take()
	if !slices.Equal(names, []string{"insert", "delete"}) || commands[0].Lookup("insert").StringValue() != "dead" {
		t.Fatalf("commands %v", names)
	}
	// And it is not deleted if the letter is not known to be stored.
	mustInsert(t, q, "orders", message("orders", 2, nil))
	ended, cancel := context.WithCancel(t.Context())
	stop := mongoqueue.Options{Monitor: &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "insert" {
			cancel() // while it is in flight
		}
	}}}
	if err := open(t, uri, stop).MoveToDeadLetters(ended, "orders", []queue.DeadLetter{{Message: message("orders", 2, nil)}}); err == nil {
		t.Fatal("buried with an ended context")
	}
	if n := count(t, db); n != 1 {
		t.Errorf("%d messages are left, want the one whose letter is not certain to be stored", n)
	}
}

func second[T any](_ T, err error) error        { return err }
func third[T, U any](_ T, _ U, err error) error { return err }

// Everything that must not be lost is written with w: majority, in order, and sent once. Checked on the wire, because a server without
// replicas cannot show the difference.
func TestWritesAreDurableAndOrderedOnTheWire(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	w := &wire{}
	if broken := checkWrites(t, open(t, uri, mongoqueue.Options{Monitor: w.monitor()}), w); len(broken) > 0 {
		t.Errorf("%s", strings.Join(broken, "\n"))
	}
}

// … whatever the URI sets.
func TestTheURICannotWeakenWrites(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	w := &wire{}
	sep := "?"
	if strings.Contains(uri, "?") {
		sep = "&"
	}
	q := open(t, uri+sep+"w=0&journal=false&retryWrites=true&readPreference=secondaryPreferred", mongoqueue.Options{Monitor: w.monitor()})
	if broken := checkWrites(t, q, w); len(broken) > 0 {
		t.Errorf("%s", strings.Join(broken, "\n"))
	}
}

func TestOneRoundTripEach(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	var msgs []queue.Message
	var ids []queue.ID
	for n := 1; n <= 1000; n++ {
		msgs = append(msgs, message("orders", n, make([]byte, 256)))
		ids = append(ids, msgs[n-1].ID)
	}
	w.take()
	mustInsert(t, q, "orders", msgs...)
	for _, limit := range []queue.Limit{{Messages: 1000}, {Messages: 1000, Bytes: 4 << 20}, {Messages: 2000}, {Messages: 10}} {
		if _, err := q.Fetch(t.Context(), "orders", message("", 0, nil).ID, limit); err != nil {
			t.Fatal(err)
		}
	}
	for typ, want := range map[string]queue.Depth{"orders": {Pending: 1, Capped: true, Oldest: ids[0]}, "none": {}} {
		if d, err := q.Depth(t.Context(), typ, 1); err != nil || d != want {
			t.Errorf("depth of %s: %+v, %v", typ, d, err)
		}
	}
	if err := q.Ack(t.Context(), "orders", ids); err != nil {
		t.Fatal(err)
	}
	if names, _ := w.take(); !slices.Equal(names, []string{"insert", "find", "find", "find", "find", "find", "find", "delete"}) {
		t.Errorf("commands %v", names)
	}
	if names, err := q.Types(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// Depth reads the first keys, and counts if there are more.
func TestDepthBeyondWhatIsRead(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	var msgs []queue.Message
	for n := 1; n <= 150; n++ {
		msgs = append(msgs, message("orders", n, nil))
	}
	mustInsert(t, q, "orders", msgs...)
	for _, most := range []int{0, 1, 99, 100, 101, 149, 150, 151, 1000} {
		want := queue.Depth{Pending: min(most, 150), Capped: most < 150, Oldest: msgs[0].ID}
		if d, err := q.Depth(t.Context(), "orders", most); err != nil || d != want {
			t.Errorf("Depth(%d) = %+v, %v", most, d, err)
		}
	}
}

// Listing types takes one command per type, however many messages there are.
func TestTypesDoesNotWalkMessages(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	for _, typ := range []string{"a", "b", "c"} {
		var msgs []queue.Message
		for n := 1; n <= 500; n++ {
			msgs = append(msgs, message(typ, n, nil))
		}
		mustInsert(t, q, typ, msgs...)
		piece := bson.D{{Key: "_id", Value: fmt.Sprintf("%s#%v+1", typ, message(typ, 501, nil).ID)}} // of a large message of an earlier version
		if _, err := db.Collection("messages").InsertOne(t.Context(), piece); err != nil {
			t.Fatal(err)
		}
	}
	w.take()
	types, err := q.Types(t.Context())
	if err != nil || !slices.Equal(types, []string{"a", "b", "c"}) {
		t.Fatalf("Types = %v, %v", types, err)
	}
	// types and files, then per type: its pieces, its messages; and the end; and that there are no dead letters.
	if names, _ := w.take(); len(names) > 2+2*3+1+1 {
		t.Errorf("%d commands: %v", len(names), names)
	}
}

// Earlier versions stored a message of more than 8 MiB as a head and pieces. It is pending, and incomplete: its number is not used in the
// file, and only its acknowledgement removes any of it.
func TestMessagesOfEarlierVersionsInPieces(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	id := message("", 2, nil).ID
	plant := func(collection string, more ...bson.E) {
		t.Helper()
		if _, err := db.Collection(collection).InsertMany(t.Context(), []any{
			bson.D{{Key: "_id", Value: fmt.Sprintf("orders#%v+1", id)}, {Key: "b", Value: []byte("half of")}},
			bson.D{{Key: "_id", Value: fmt.Sprintf("orders#%v+2", id)}, {Key: "b", Value: []byte(" a payload")}},
			append(bson.D{{Key: "_id", Value: fmt.Sprintf("orders/%v", id)}, {Key: "p", Value: int32(2)}, {Key: "s", Value: int32(17)},
				{Key: "h", Value: bson.D{{Key: "k", Value: "v"}}}}, more...),
		}); err != nil {
			t.Fatal(err)
		}
	}
	plant("messages")
	mustInsert(t, q, "orders", message("orders", 1, []byte("before")), message("orders", 3, []byte("behind")))
	got := fetchAll(t, q, "orders")
	if len(got) != 3 || got[0].Incomplete || got[1].ID != id || !got[1].Incomplete || !strings.Contains(got[1].Why, "earlier version") || got[1].Payload != nil || string(got[2].Payload) != "behind" || got[2].Incomplete {
		t.Fatalf("got %+v", got)
	}
	if d, err := q.Depth(t.Context(), "orders", 10); err != nil || d.Pending != 3 {
		t.Errorf("Depth = %+v, %v", d, err)
	}
	var ie *queue.InsertError
	if err := q.Insert(t.Context(), "orders", got[1:2]); !errors.As(err, &ie) || !ie.Refused {
		t.Errorf("inserted again: %v", err)
	}
	if err := q.MoveToDeadLetters(t.Context(), "orders", []queue.DeadLetter{{Message: got[1], Reason: "why not"}}); err == nil {
		t.Error("it became a dead letter without its payload")
	}
	if n := count(t, db); n != 5 {
		t.Errorf("%d documents are left, want all 5", n)
	}

	// A dead letter is not published again without its payload, and stays.
	plant("dead", bson.E{Key: "reason", Value: "r"})
	letters, err := q.DeadLetters(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10})
	if err != nil || len(letters) != 1 || !letters[0].Incomplete || letters[0].Reason != "r" {
		t.Fatalf("letters %+v, %v", letters, err)
	}
	p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if n, err := queue.Requeue(t.Context(), q, p, letters); n != 0 || err == nil {
		t.Errorf("requeued %d, %v", n, err)
	}
	if letters, err := q.DeadLetters(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10}); err != nil || len(letters) != 1 {
		t.Errorf("%d letters are left, %v", len(letters), err)
	}
	if err := q.RemoveDeadLetters(t.Context(), "orders", []queue.ID{id}); err != nil {
		t.Fatal(err)
	}
	if letters, err := q.DeadLetters(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10}); err != nil || len(letters) != 0 {
		t.Errorf("%d letters are left, %v", len(letters), err)
	}
}

// Promoting removes the notes of settled messages, once promoters have seen that they are no longer needed; also those of earlier versions,
// which have no time.
func TestOldNotesAreRemoved(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	scheduled := db.Collection("scheduled")
	notes := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: "settled/"}, {Key: "$lt", Value: "settled0"}}}}
	if _, err := scheduled.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "settled/" + message("", 99, nil).ID.String()}}); err != nil {
		t.Fatal(err)
	}
	for n, step := range []struct {
		passed time.Duration
		notes  int64
	}{
		{0, 2},
		{queuedriver.SettledFor + 30*time.Minute, 3},
		{queuedriver.SettledFor + 2*time.Hour, 2}, // this one and the one before
	} {
		if _, err := scheduled.UpdateByID(t.Context(), "plan", bson.D{{Key: "$set", Value: bson.D{{Key: "passed", Value: step.passed.Milliseconds()}}}}); err != nil {
			t.Fatal(err)
		}
		q.ForgetNow()
		m := message("orders", n+1, nil)
		m.Due = m.ID.Time()
		if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
			t.Fatal(err)
		}
		if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 {
			t.Fatalf("%v: promoted %d messages, %v", step.passed, p.Messages, err)
		}
		if n, err := scheduled.CountDocuments(t.Context(), notes); err != nil || n != step.notes {
			t.Errorf("%v: %d notes, want %d (%v)", step.passed, n, step.notes, err)
		}
	}
}

// A process that connected while the clocks were two days ahead promotes nothing two days early, and reads the server's clock again.
func TestClockIsReadAgain(t *testing.T) {
	const ahead = 48 * time.Hour
	for name, f := range map[string]func(q *mongoqueue.Queue) error{
		"promote":   func(q *mongoqueue.Queue) error { return second(q.Promote(t.Context(), queue.Limit{Messages: 10})) },
		"heartbeat": func(q *mongoqueue.Queue) error { return q.Heartbeat(t.Context(), queue.Member{Instance: "me"}) },
	} {
		t.Run(name, func(t *testing.T) {
			uri, _ := mongotest.Fresh(t)
			q := open(t, uri, mongoqueue.Options{})
			at, err := q.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			m := message("orders", 1, nil)
			m.ID, m.Due = queue.NewID(at, 7, 1), at.Add(ahead/2)
			if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
				t.Fatal(err)
			}
			q.SetClock(at.Add(ahead))
			if err := f(q); err != nil {
				t.Fatal(err)
			}
			if now, err := q.Now(t.Context()); err != nil || now.Sub(at) > ahead/2 {
				t.Errorf("it is %v, %v; it was %v at first", now, err, at)
			}
			p, err := q.Promote(t.Context(), queue.Limit{Messages: 10})
			if err != nil || p.Messages != 0 || p.Now.Sub(at) > ahead/2 || p.Next.UnixMilli() != m.Due.UnixMilli() {
				t.Errorf("promoted %+v, %v; it is due at %v", p, err, m.Due)
			}
			if msgs := fetchAll(t, q, "orders"); len(msgs) != 0 {
				t.Errorf("%d messages were promoted a day early", len(msgs))
			}
		})
	}
}

// Foreign documents in the collection neither block a type nor disappear.
func TestForeignDocuments(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	key := func(n int) string { return "orders/" + message("", n, nil).ID.String() }
	for _, doc := range []bson.D{
		{{Key: "_id", Value: key(1)}, {Key: "b", Value: "a string"}},
		{{Key: "_id", Value: key(2)}},
		{{Key: "_id", Value: key(3)}, {Key: "b", Value: nil}, {Key: "h", Value: bson.D{{Key: "k", Value: "v"}}}, {Key: "note", Value: "whatever"}},
		{{Key: "_id", Value: key(4)}, {Key: "b", Value: 42}},
		{{Key: "_id", Value: key(5)}, {Key: "b", Value: "x"}, {Key: "h", Value: bson.D{{Key: "k", Value: 42}}}},
		{{Key: "_id", Value: key(6)}, {Key: "b", Value: "x"}, {Key: "h", Value: "k=v"}},
		{{Key: "_id", Value: key(7)}, {Key: "p", Value: "two"}},
		{{Key: "_id", Value: key(8)}, {Key: "b", Value: bson.Binary{Subtype: 0x80, Data: []byte("custom")}}},
		// No message IDs: foreign keys.
		{{Key: "_id", Value: bson.NewObjectID()}, {Key: "b", Value: "x"}},
		{{Key: "_id", Value: 42}},
		{{Key: "_id", Value: "orders"}},
		{{Key: "_id", Value: "orders/"}},
		{{Key: "_id", Value: "orders/1"}},
		{{Key: "_id", Value: "orders/" + strings.Repeat("Z", 32)}},
		{{Key: "_id", Value: strings.ToUpper(key(1))}},
		{{Key: "_id", Value: key(1) + "x"}},
		{{Key: "_id", Value: "orders/" + strings.Repeat("0", 32)}},
		{{Key: "_id", Value: "Bad Type/" + message("", 1, nil).ID.String()}},
		{{Key: "_id", Value: "grüße/1"}},
		{{Key: "_id", Value: "~"}},
		{{Key: "_id", Value: "a\U0010ffff/1"}},
		{{Key: "_id", Value: ""}},
	} {
		if _, err := db.Collection("messages").InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{1, 2, 3, 100} { // a page of only foreign keys is not the end
		var got []queue.Message
		for after := (queue.ID{}); ; after = got[len(got)-1].ID {
			page, err := q.Fetch(t.Context(), "orders", after, queue.Limit{Messages: limit})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
		}
		var shown []string
		for _, m := range got {
			shown = append(shown, fmt.Sprintf("%d:%s:%v:%v", m.ID.N(), m.Payload, m.Headers, m.Incomplete))
		}
		want := []string{"1:a string:map[]:false", "2::map[]:false", "3::map[k:v]:false", "4::map[]:true", "5::map[]:true", "6::map[]:true", "7::map[]:true", "8:custom:map[]:false"}
		if !slices.Equal(shown, want) {
			t.Errorf("limit %d: got %q", limit, shown)
		}
	}
	d, err := q.Depth(t.Context(), "orders", 1)
	if err != nil || d.Oldest != message("", 1, nil).ID {
		t.Errorf("Depth = %+v, %v", d, err)
	}
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"orders"}) {
		t.Errorf("Types = %v, %v", types, err)
	}
}

func TestSkipAlwaysGoesForward(t *testing.T) {
	for key, want := range map[string][2]string{
		"orders/abc":                   {"orders", "orders0"},
		"orders#abc":                   {"", "orders$"},
		"orders":                       {"", "orders"},
		"orders x/1":                   {"", "orders!"},
		"/x":                           {"", "0"},
		"":                             {"", ""},
		"a\U0010ffffb":                 {"", "a\U0010ffffb"},
		"ä/1":                          {"", "å"},
		"-a/1":                         {"", "-a0"},
		strings.Repeat("a", 65) + "/1": {"", strings.Repeat("a", 65) + "0"},
	} {
		if typ, next, _ := mongoqueue.Skip(key); typ != want[0] || next != want[1] {
			t.Errorf("skip(%q) = %q, %q, want %q", key, typ, next, want)
		}
	}
}

func TestOpenRefusesBadURIsWithoutTellingThePassword(t *testing.T) {
	const secret = "s3cr3t-pa55"
	for name, uri := range map[string]string{
		"scheme":               "postgres://user:" + secret + "@host/db",
		"no scheme":            "user:" + secret + "@host/db",
		"no host":              "mongodb://user:" + secret + "@/db",
		"empty":                "",
		"unescaped at":         "mongodb://user:" + secret + "@@host/db",
		"unescaped slash":      "mongodb://user:" + secret + "/x@host/db",
		"bad escape":           "mongodb://user:" + secret + "%zz@host/db",
		"bad port":             "mongodb://user:" + secret + "@host:port/db",
		"port range":           "mongodb://user:" + secret + "@host:99999/db",
		"bad option":           "mongodb://user:" + secret + "@host/db?w=-5",
		"bad timeout":          "mongodb://user:" + secret + "@host/db?serverSelectionTimeoutMS=" + secret + "x",
		"database with a dot":  "mongodb://user:" + secret + "@host/a.b",
		"database with spaces": "mongodb://user:" + secret + "@host/a%20b",
		"long database":        "mongodb://user:" + secret + "@host/" + strings.Repeat("a", 64),
		"session token":        "mongodb://host/db?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:" + secret,
		"unescaped question":   "mongodb://user:" + secret[:3] + "?" + secret + "@host/db?w=-5",
		"key's password":       "mongodb://host/db?tlsCertificateKeyFilePassword=%zz" + secret,
		"after a semicolon":    "mongodb://host/db?w=1;tlsCertificateKeyFilePassword=%zz" + secret,
		"two direct hosts":     "mongodb://user:" + secret + "@a,b/db?directConnection=true",
	} {
		q, err := mongoqueue.Open(t.Context(), uri, mongoqueue.Options{ConnectTimeout: time.Second})
		if err == nil {
			q.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if !errors.Is(err, queue.ErrInvalidURL) {
			t.Errorf("%s: %v", name, err)
		}
		if name != "bad timeout" && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "%zz")) {
			t.Errorf("%s: the error contains the password: %v", name, err)
		}
	}
	if _, err := mongoqueue.Open(t.Context(), "mongodb://host/", mongoqueue.Options{ConnectTimeout: -1}); err == nil {
		t.Error("negative timeout")
	}
}

func TestUnreachableServer(t *testing.T) {
	leakCheck(t)
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := refusing.Addr().String()
	refusing.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, host := range map[string]string{"nobody listens": nobody, "nobody answers": silent.Addr().String()} {
		why := map[string]string{"nobody listens": host + ": connection refused; check that", "nobody answers": host + ": no answer; check that"}[name]
		begin := time.Now()
		_, err := mongoqueue.Open(t.Context(), "mongodb://user:s3cr3t@"+host+"/db?authSource=admin", mongoqueue.Options{ConnectTimeout: 300 * time.Millisecond})
		if !errors.Is(err, queue.ErrUnreachable) || !strings.Contains(err.Error(), "mongodb://"+host+"/db") || !strings.Contains(err.Error(), "check that the server runs") {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(fmt.Sprint(err), "s3cr3t") {
			t.Errorf("%s: the error contains the password: %v", name, err)
		}
		if !strings.Contains(fmt.Sprint(err), why) || strings.Contains(fmt.Sprint(err), "topology") {
			t.Errorf("%s: not %q, or the driver's view: %v", name, why, err)
		}
		if d := time.Since(begin); d > 20*time.Second { // a busy machine; the driver's own timeout is 30 s
			t.Errorf("%s: took %v", name, d)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := mongoqueue.Open(ctx, "mongodb://"+nobody+"/db", mongoqueue.Options{ConnectTimeout: time.Minute}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
}

func TestWrongCredentials(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	if strings.Contains(uri, "@") {
		t.Skip("the test's server was given with credentials")
	}
	bad := strings.Replace(uri, "mongodb://", "mongodb://nobody:s3cr3t@", 1)
	_, err := mongoqueue.Open(t.Context(), bad, mongoqueue.Options{})
	if !errors.Is(err, queue.ErrPermission) || !strings.Contains(err.Error(), "authSource") {
		t.Errorf("got %v", err)
	}
	if strings.Contains(fmt.Sprint(err), "s3cr3t") {
		t.Errorf("the error contains the password: %v", err)
	}
}

func TestPartitionedServer(t *testing.T) {
	leakCheck(t)
	uri, _ := mongotest.Fresh(t)
	p, through := newProxy(t, uri)
	q := open(t, through, mongoqueue.Options{})
	mustInsert(t, q, "orders", message("orders", 1, nil))
	p.stall()
	for name, op := range map[string]func(ctx context.Context) error{
		"Insert": func(ctx context.Context) error {
			return q.Insert(ctx, "orders", []queue.Message{message("orders", 2, nil)})
		},
		"Fetch": func(ctx context.Context) error {
			return second(q.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 1}))
		},
		"Ack":          func(ctx context.Context) error { return q.Ack(ctx, "orders", []queue.ID{message("", 1, nil).ID}) },
		"Types":        func(ctx context.Context) error { return second(q.Types(ctx)) },
		"Depth":        func(ctx context.Context) error { return second(q.Depth(ctx, "orders", 1)) },
		"RegisterFile": func(ctx context.Context) error { return second(q.RegisterFile(ctx, "orders", queue.RegistryEntry{})) },
		"UpdateFile":   func(ctx context.Context) error { return second(q.UpdateFile(ctx, "orders", queue.RegistryEntry{})) },
		"AckFile":      func(ctx context.Context) error { return second(q.AckFile(ctx, "orders", queue.RegistryEntry{}, nil)) },
		"SucceedFile": func(ctx context.Context) error {
			return third(q.SucceedFile(ctx, "orders", [16]byte{}, queue.RegistryEntry{}))
		},
	} {
		within := 50 * time.Millisecond
		if name == "Insert" { // one that begins after its context has ended is certain that it has stored nothing
			within = time.Second
		}
		for how, start := range map[string]func() (context.Context, context.CancelFunc){
			"deadline": func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), within)
			},
			"cancel": func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				stop := time.AfterFunc(within, cancel)
				return ctx, func() { stop.Stop(); cancel() }
			},
		} {
			ctx, cancel := start()
			begin := time.Now()
			err := op(ctx)
			if d := time.Since(begin); d > 8*time.Second { // a busy machine; without its context an operation waits for the socket's timeout
				t.Errorf("%s took %v to notice the %s", name, d-within, how)
			}
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: %v", name, how, err)
			}
			var ie *queue.InsertError
			if errors.As(err, &ie) && ie.Refused && !ie.Temporary {
				t.Errorf("%s, %s: the outcome is unknown, but it says refused: %v", name, how, err)
			}
			cancel()
		}
	}
	p.cut()
}

// The connection breaks after the server has performed an insert: the answer is unclear, and the retry finds out.
func TestLostAnswerOnTheWire(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	p, through := newProxy(t, uri)
	q := open(t, through, mongoqueue.Options{})
	msgs := []queue.Message{message("orders", 1, []byte("a")), message("orders", 2, []byte("b")), message("orders", 3, []byte("c"))}
	if err := q.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.muteNext.Store(1)
	err := q.Insert(t.Context(), "orders", msgs)
	var ie *queue.InsertError
	if !errors.As(err, &ie) || ie.Stored != 0 || ie.Refused {
		t.Fatalf("got %v, want an unclear InsertError", err)
	}
	if got := fetchAll(t, open(t, uri, mongoqueue.Options{}), "orders"); len(got) != 3 {
		t.Fatalf("%d messages landed: this test proves nothing", len(got))
	}
	mustInsert(t, q, "orders", msgs...)
	if got := fetchAll(t, q, "orders"); len(got) != 3 {
		t.Errorf("%d messages", len(got))
	}
}

// A publisher over an unreliable connection: connections break and answers get lost, yet everything is stored once and in order.
func TestPublisherOverABadLine(t *testing.T) {
	leakCheck(t)
	uri, _ := mongotest.Fresh(t)
	p, through := newProxy(t, uri)
	q := open(t, through, mongoqueue.Options{})
	repeats := 0
	pub, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{BatchMessages: 20, OnRepeat: func(queue.Repeat) { repeats++ }})
	if err != nil {
		t.Fatal(err)
	}
	const total = 360
	var oracle queuetest.Oracle
	rng := rand.New(rand.NewPCG(1, 2))
	var settled sync.WaitGroup
	for i := range total {
		payload := fmt.Appendf(nil, "payload %d", i)
		settled.Add(1)
		if err := pub.Send(t.Context(), queue.Message{Type: "orders", Payload: payload}, func(r queue.Result) {
			oracle.Report("test", "orders", payload, r)
			settled.Done()
		}); err != nil {
			t.Fatal(err)
		}
		if i%60 == 59 {
			switch rng.IntN(2) {
			case 0:
				p.cut()
			case 1:
				p.muteNext.Store(1)
			}
			settled.Wait()
		}
	}
	if err := pub.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := fetchAll(t, open(t, uri, mongoqueue.Options{}), "orders")
	for i, m := range got {
		oracle.Observe(m)
		if string(m.Payload) != fmt.Sprintf("payload %d", i) {
			t.Fatalf("at %d: %s", i, m.Payload)
		}
	}
	if err := oracle.Check(); err != nil || len(got) != total {
		t.Errorf("%d messages, %v", len(got), err)
	}
	if st := pub.Stats(); st.Stored != total || repeats == 0 {
		t.Errorf("stats %+v, %d repeats: was the line bad at all?", st, repeats)
	}
}

func TestCloseLeavesNothingRunning(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	leakCheck(t)
	q, err := mongoqueue.Open(t.Context(), uri, mongoqueue.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mustInsert(t, q, "orders", message("orders", 1, nil))
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestClockIsTheServersAndMonotonic(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	var hello struct {
		LocalTime time.Time `bson:"localTime"`
	}
	before, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Client().Database("admin").RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	after, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Both were read half a round trip before or after the true time.
	const slack = 2 * time.Second
	if hello.LocalTime.Before(before.Add(-slack)) || hello.LocalTime.After(after.Add(slack)) {
		t.Errorf("the server says %v, the queue %v to %v", hello.LocalTime, before, after)
	}
	q.SetClock(time.UnixMilli(0))
	if now, err := q.Now(t.Context()); err != nil || now.Sub(time.UnixMilli(0)) > time.Minute || now.Before(time.UnixMilli(0)) {
		t.Errorf("%v, %v: the local wall clock must not matter", now, err)
	}
}

// An entry of a version that knew no generations counts as that of a first file, and can be succeeded.
func TestFileEntryWithoutGeneration(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	first := queue.RegistryEntry{FileID: [16]byte{1}, Generation: 1, Epoch: 3, DurableIndex: 4}
	if _, err := db.Collection("files").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "orders"}, {Key: "file_id", Value: bson.Binary{Data: first.FileID[:]}},
		{Key: "epoch", Value: 3}, {Key: "durable_index", Value: 4}}); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := q.RegistryEntry(t.Context(), "orders"); got != first || !ok || err != nil {
		t.Errorf("RegistryEntry = %+v, %v, %v, want %+v", got, ok, err, first)
	}
	next := queue.RegistryEntry{FileID: [16]byte{2}, Generation: 2, Epoch: 5, DurableIndex: 6}
	if got, ok, err := q.SucceedFile(t.Context(), "orders", first.FileID, next); got != next || !ok || err != nil {
		t.Errorf("SucceedFile = %+v, %v, %v, want %+v", got, ok, err, next)
	}
}

// Foreign documents, or an earlier version's, block nothing; members that have been gone for long are forgotten.
func TestSettingsAndMembersThatAreDamagedOrGone(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	insert := func(collection string, docs ...any) {
		t.Helper()
		if _, err := db.Collection(collection).InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	insert("types", bson.M{"_id": "a", "drain_paused": "yes", "publish_paused": 1, "max_backlog": "10", "why": 7, "changed": "today"},
		bson.M{"_id": "b", "max_backlog": 10.0, "color": "blue"}, bson.M{"_id": "c", "max_backlog": int64(1) << 60, "publish_paused": true},
		bson.M{"_id": "Not a type", "drain_paused": true}, bson.M{"_id": "d", "max_backlog": -3, "drain_paused": nil})
	all, err := q.AllSettings(t.Context())
	if want := (map[string]queue.Settings{"b": {MaxBacklog: 10}, "c": {MaxBacklog: queue.MaxBacklogLimit, PublishPaused: true}}); err != nil || !maps.Equal(all, want) {
		t.Errorf("AllSettings = %v, %v, want %v", all, err, want)
	}
	if s, err := q.PatchSettings(t.Context(), "a", queue.SettingsPatch{DrainPaused: new(true)}); err != nil || !s.DrainPaused || s.PublishPaused || s.MaxBacklog != 0 {
		t.Errorf("Settings = %+v, %v", s, err)
	}
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"a", "b", "c", "d"}) {
		t.Errorf("Types = %v, %v", types, err)
	}

	insert("workers", bson.M{"_id": "damaged", "held": 5, "seen": now}, bson.M{"_id": "old", "seen": now.Add(-queue.MemberRetention - time.Minute)},
		bson.M{"_id": "young", "seen": now.Add(-queue.MemberRetention + time.Minute), "future": true})
	want := func(want string) {
		t.Helper()
		members, err := q.Members(t.Context(), "", 0)
		var got []string
		for _, m := range members {
			got = append(got, m.Instance)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("Members = %v, %v, want %s", got, err, want)
		}
	}
	want("old young")
	if page, err := q.Members(t.Context(), "", 1); err != nil || len(page) != 1 || page[0].Instance != "old" {
		t.Errorf("the first member is %+v, %v: what is no member takes no place of one", page, err)
	}
	for range 2 {
		if err := q.Heartbeat(t.Context(), queue.Member{Instance: "me"}); err != nil {
			t.Fatal(err)
		}
	}
	want("me old young")
}

// Payloads may be 15 MiB, and hundreds of messages are cancelled at a time: reading their keys is enough.
func TestCancelDelayedReadsKeysOnly(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	w := &wire{only: "find"}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	m := message("orders", 1, []byte("chair"))
	m.Due = time.Now().Add(time.Hour)
	if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
		t.Fatal(err)
	}
	w.take()
	if n, err := q.CancelDelayed(t.Context(), []queue.ScheduleKey{queue.ScheduleKeyOf(&m)}); err != nil || n != 1 {
		t.Fatalf("%d cancelled, %v", n, err)
	}
	_, finds := w.take()
	for _, f := range finds {
		_, single := f.Lookup("singleBatch").BooleanOK() // of the plan
		if _, err := f.LookupErr("projection"); err != nil && !single {
			t.Errorf("it reads whole messages: %v", f)
		}
	}
}

// A server that accepts connections and says nothing: the URI determines when to try the next one.
func TestTheURIBoundsOneAttemptToConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, enough := context.WithCancelCause(t.Context())
	third := errors.New("the third attempt")
	go func() {
		for range 3 {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
		enough(third)
	}()
	_, err = mongoqueue.Open(ctx, "mongodb://"+listener.Addr().String()+"/db?connectTimeoutMS=50&serverSelectionTimeoutMS=60000", mongoqueue.Options{})
	if !errors.Is(err, third) {
		t.Errorf("Open ended before %v: %v", third, err)
	}
}
