package mongoqueue_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// Notifications takes one command, with any number of types; so does Notify, once its document
// exists.
func TestNotificationsCostACommand(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	var types []string
	for i := range 1000 {
		types = append(types, "type-"+strconv.Itoa(i))
	}
	for range 100 { // all documents exist
		if err := q.Notify(t.Context(), types[:1]); err != nil {
			t.Fatal(err)
		}
	}
	w.take()
	if err := q.Notify(t.Context(), types); err != nil {
		t.Fatal(err)
	}
	n, err := q.Notifications(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Notifications(t.Context(), n.Next); err != nil {
		t.Fatal(err)
	}
	if _, err := q.PendingTypes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names, _ := w.take(); !slices.Equal(names, []string{"update", "find", "find", "find"}) {
		t.Errorf("the commands are %v", names)
	}
}

// After the database was restored, or the collection was dropped, readers start over.
func TestNotificationsOfADatabaseThatWasSetBack(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q, logs := open(t, uri, mongoqueue.Options{}), db.Collection("notifications")
	notify := func(types ...string) {
		t.Helper()
		if err := q.Notify(t.Context(), types); err != nil {
			t.Fatal(err)
		}
	}
	read := func(since queue.NotificationMark) queue.Notifications {
		t.Helper()
		n, err := q.Notifications(t.Context(), since)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 50 {
		notify("orders", "audit")
	}
	mark := read(nil).Next
	if _, err := logs.UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: -4}}}}); err != nil {
		t.Fatal(err)
	}
	n := read(mark)
	if slices.Sort(n.Types); !n.Missed || !slices.Equal(n.Types, []string{"audit", "orders"}) {
		t.Errorf("after a restore: %+v", n)
	}
	if n = read(n.Next); n.Missed || len(n.Types) != 0 {
		t.Errorf("then: %+v", n)
	}
	if err := logs.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if gone := read(n.Next); gone.Missed || len(gone.Types) != 0 {
		t.Errorf("dropped: %+v", gone)
	}
	notify("refunds")
	if n = read(n.Next); !slices.Equal(n.Types, []string{"refunds"}) {
		t.Errorf("created again: %+v", n)
	}
}

// Foreign documents among the notifications are harmless.
func TestForeignNotifications(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	q := open(t, uri, mongoqueue.Options{})
	docs := []any{
		bson.D{{Key: "_id", Value: "0"}, {Key: "n", Value: "many"}, {Key: "t", Value: bson.A{"orders"}}},
		bson.D{{Key: "_id", Value: "1"}, {Key: "n", Value: 5.0}, {Key: "t", Value: "orders"}},
		bson.D{{Key: "_id", Value: "2"}, {Key: "n", Value: int32(9)}, {Key: "t", Value: bson.A{1, nil, "../etc", "A", strings.Repeat("a", 100_000), bson.D{}, "audit"}}},
		bson.D{{Key: "_id", Value: "3"}},
		bson.D{{Key: "_id", Value: "8"}, {Key: "n", Value: int64(1)}, {Key: "t", Value: bson.A{"refunds"}}},
		bson.D{{Key: "_id", Value: 4}, {Key: "n", Value: int64(1)}, {Key: "t", Value: bson.A{"refunds"}}},
	}
	if _, err := db.Collection("notifications").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	n, err := q.Notifications(t.Context(), nil)
	if err != nil || !slices.Equal(n.Types, []string{"audit"}) {
		t.Errorf("%+v, %v", n, err)
	}
	took := 0
	for range 40 { // some choose a document that accepts no update: that is an error, and nothing else
		if q.Notify(t.Context(), []string{"orders"}) == nil {
			took++
		}
	}
	if n, err = q.Notifications(t.Context(), n.Next); took == 0 || err != nil || !slices.Contains(n.Types, "orders") {
		t.Errorf("%d of 40 were taken, %+v, %v", took, n, err)
	}
}
