package mongoslots_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func newStore(t *testing.T, db *mongo.Database) *mongoslots.Store {
	t.Helper()
	s, err := mongoslots.New(db, mongoslots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t *testing.T, s slots.Store, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := s.Create(t.Context(), name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStore(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	n := 0
	slotstest.Run(t, func(t *testing.T) slots.Store {
		if n++; n%2 == 0 {
			return newStore(t, db)
		}
		s, err := mongoslots.Open(t.Context(), uri, mongoslots.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
}

// TestConforms: files in a collection.
func TestConforms(t *testing.T) {
	s := newStore(t, mongotest.Database(t))
	b := slotstest.Backend(func(*testing.T) slots.Store { return s })
	b.Most = 1
	storagetest.Run(t, b)
}

// Details that the conformance tests do not cover: the documents, and the ways to open a store.
func TestOpen(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	s, err := mongoslots.Open(t.Context(), uri+"&w=1&journal=false", mongoslots.Options{Collection: "log"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if want := "/" + db.Name() + ".log"; !strings.HasPrefix(s.String(), "mongodb://") || !strings.HasSuffix(s.String(), want) {
		t.Errorf("it is called %s, want mongodb://…%s", s, want)
	}
	create(t, s, "orders/1")
	var d struct {
		Name string `bson:"_id"`
		N    int64  `bson:"n"`
		B    []byte `bson:"b"`
	}
	if err := db.Collection("log").FindOne(t.Context(), bson.D{}).Decode(&d); err != nil || d.Name != "orders/1" || d.N != 8 || string(d.B) != "orders/1" {
		t.Errorf("the document is %+v, %v", d, err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("the collection of the first Create is refused: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Create(t.Context(), "orders/2", nil); err == nil {
		t.Error("it creates after Close")
	}
}

func TestValues(t *testing.T) {
	s := newStore(t, mongotest.Database(t))
	large := bytes.Repeat([]byte{7}, mongoslots.MaxValue)
	long := strings.Repeat("a", 499) + "z"
	for name, data := range map[string][]byte{"empty": {}, "nil": nil, "a/b/c": {0, 1, 255}, "large": large, long: {1}} {
		if _, err := s.Read(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%.9s is read before it exists: %v", name, err)
		}
		if err := s.Create(t.Context(), name, data); err != nil {
			t.Errorf("%.9s: %v", name, err)
		}
		if err := s.Create(t.Context(), name, []byte("other")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%.9s exists: %v", name, err)
		}
		if got, err := s.Read(t.Context(), name); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%.9s has %d bytes, %v", name, len(got), err)
		}
		if n, err := s.Size(t.Context(), name); err != nil || n != int64(len(data)) {
			t.Errorf("%.9s has the size %d, %v", name, n, err)
		}
		for range 2 {
			if err := s.Delete(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
		if _, err := s.Size(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%.9s has a size after it is gone: %v", name, err)
		}
	}
	for _, name := range []string{"", "/", "a/", "/a", "a//b", ".", "a/..", "A", "a b", "ä", "a\x00", long + "a", "a\n"} {
		for doing, err := range map[string]error{
			"create": s.Create(t.Context(), name, nil), "delete": s.Delete(t.Context(), name),
			"read": second(s.Read(t.Context(), name)), "size": second(s.Size(t.Context(), name)),
		} {
			if _, ok := errors.AsType[*slots.RefusedError](err); !ok {
				t.Errorf("%s %.9q: %v", doing, name, err)
			}
		}
	}
	if _, ok := errors.AsType[*slots.RefusedError](s.Create(t.Context(), "large", append(large, 1))); !ok {
		t.Error("it accepts more than MaxValue")
	}
}

func second[T any](_ T, err error) error { return err }

func TestListing(t *testing.T) {
	db := mongotest.Database(t)
	s := newStore(t, db)
	create(t, s, "a", "a/1", "a/2", "a/x-1", "a/x.1", "a/x/1", "a/x/y/1", "a/x0", "a/x0/1", "a/xy", "a.b/1", "a-/1", "a0/1", "b/c/1", "-/1", "z", "zz/1")
	// Foreign documents.
	if _, err := db.Collection("slots").InsertMany(t.Context(), []any{
		bson.D{}, bson.D{{Key: "_id", Value: int64(7)}}, bson.D{{Key: "_id", Value: "a/foreign"}},
		bson.D{{Key: "_id", Value: "a//1"}, {Key: "n", Value: int64(1)}}, bson.D{{Key: "_id", Value: "A/1"}, {Key: "n", Value: int64(1)}},
	}); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]string{
		"": "a z", "a": "a/1 a/2 a/x-1 a/x.1 a/x0 a/xy", "a/x": "a/x/1", "a/x/y": "a/x/y/1", "b": "", "none": "", "a/1": "",
	} {
		list, err := s.List(t.Context(), folder)
		var got []string
		for _, e := range list {
			got = append(got, e.Name)
			if e.Size != int64(len(e.Name)) {
				t.Errorf("%s has the size %d", e.Name, e.Size)
			}
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("in %q are %q, %v; want %q", folder, got, err, want)
		}
		for n := range len(list) + 2 {
			if folder == "" || n == 0 {
				continue
			}
			if got, err := s.Last(t.Context(), folder); err != nil || got != append([]slots.Entry{{}}, list...)[len(list)] {
				t.Errorf("the last one in %q: %v, %v", folder, got, err)
			}
			if got, err := s.Between(t.Context(), folder, "", "", n); err != nil || !slices.Equal(got, list[:min(n, len(list))]) {
				t.Errorf("the first %d in %q: %v, %v", n, folder, got, err)
			}
		}
	}
	for folder, want := range map[string]string{"": "- a a- a.b a0 b zz", "a": "x x0", "a/x": "y", "a/x/y": "", "none": "", "b": "c"} {
		got, err := s.Folders(t.Context(), folder)
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("in %q are the folders %q, %v; want %q", folder, got, err, want)
		}
	}
	for _, folder := range []string{"/", "a/", "A"} {
		if _, err := s.List(t.Context(), folder); err == nil {
			t.Errorf("it lists %q", folder)
		}
		if _, err := s.Folders(t.Context(), folder); err == nil {
			t.Errorf("it lists the folders of %q", folder)
		}
		for doing, err := range map[string]error{"count": second(s.Count(t.Context(), folder)), "last": second(s.Last(t.Context(), folder)),
			"between": second(s.Between(t.Context(), folder, "", "", 0))} {
			if err == nil {
				t.Errorf("%s of %q", doing, folder)
			}
		}
	}
}

// A deeper folder costs the same, however many values it has, and its values are not read.
func TestListingJumps(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	var docs []any
	for i := range 3000 {
		docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprintf("a/deep/%05d", i)}, {Key: "n", Value: int64(0)}, {Key: "b", Value: []byte{}}})
	}
	if _, err := db.Collection("slots").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	commands, bytes := 0, 0
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetMonitor(&event.CommandMonitor{
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
			mu.Lock()
			defer mu.Unlock()
			commands, bytes = commands+1, bytes+len(e.Reply)
		}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.WithoutCancel(t.Context()))
	s := newStore(t, client.Database(db.Name()))
	create(t, s, "a/1", "a/z")
	for doing, list := range map[string]func() (int, error){
		"List":       func() (int, error) { l, err := s.List(t.Context(), "a"); return len(l) - 1, err },
		"Folders":    func() (int, error) { l, err := s.Folders(t.Context(), "a"); return len(l), err },
		"Last":       func() (int, error) { e, err := s.Last(t.Context(), "a"); return len(e.Name) - 2, err },
		"Between":    func() (int, error) { l, err := s.Between(t.Context(), "a", "", "", 9); return len(l) - 1, err },
		"of nothing": func() (int, error) { l, err := s.Folders(t.Context(), ""); return len(l), err },
	} {
		mu.Lock()
		commands, bytes = 0, 0
		mu.Unlock()
		n, err := list()
		mu.Lock()
		if n != 1 || err != nil || commands > 4 || bytes > 2000 {
			t.Errorf("%s: %d, %v, with %d commands and %d bytes", doing, n, err, commands, bytes)
		}
		mu.Unlock()
	}
}

// A foreign or changed document is not taken for a value.
func TestForeignValues(t *testing.T) {
	db := mongotest.Database(t)
	s := newStore(t, db)
	for i, d := range []bson.D{
		{}, {{Key: "n", Value: int64(1)}}, {{Key: "n", Value: "1"}, {Key: "b", Value: []byte("x")}},
		{{Key: "n", Value: int64(2)}, {Key: "b", Value: []byte("x")}}, {{Key: "n", Value: int64(1)}, {Key: "b", Value: "x"}},
	} {
		name := fmt.Sprintf("orders/%d", i)
		if _, err := db.Collection("slots").InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: name}}, d...)); err != nil {
			t.Fatal(err)
		}
		if data, err := s.Read(t.Context(), name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %q, %v", d, data, err)
		}
		if err := s.Create(t.Context(), name, nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v: %v", d, err)
		}
	}
	if _, err := s.Size(t.Context(), "orders/0"); err == nil {
		t.Error("a document without a size has one")
	}
}

// All methods return after the caller has given up, with an error that says so.
func TestEndedContext(t *testing.T) {
	s := newStore(t, mongotest.Database(t))
	create(t, s, "a/1")
	why := errors.New("the caller has given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for doing, err := range map[string]error{
		"create": s.Create(ctx, "a/2", nil), "delete": s.Delete(ctx, "a/1"), "read": second(s.Read(ctx, "a/1")),
		"size": second(s.Size(ctx, "a/1")), "list": second(s.List(ctx, "a")), "folders": second(s.Folders(ctx, "a")), "check": s.Check(ctx),
		"count": second(s.Count(ctx, "a")), "last": second(s.Last(ctx, "a")), "between": second(s.Between(ctx, "a", "", "", 0)),
	} {
		if !errors.Is(err, why) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", doing, err)
		}
	}
}

func TestOpenFails(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://bob:s3cret@h/db":             "mongodb://",
		"mongodb://bob:s3cret@h/a b":             "database name",
		"mongodb://bob:s3c/ret@h/db":             "",
		"mongodb://bob:s3cret@127.0.0.1:1/local": "the server's own",
	} {
		_, err := mongoslots.Open(t.Context(), url, mongoslots.Options{})
		if _, ok := errors.AsType[*slots.RefusedError](err); !ok || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3c") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := mongoslots.Open(t.Context(), "mongodb://127.0.0.1:1/db", mongoslots.Options{Collection: "system.users"}); err == nil {
		t.Error("it accepts system.users")
	}
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := mongoslots.Open(within, "mongodb://bob:s3cret@127.0.0.1:1/db?serverSelectionTimeoutMS=100", mongoslots.Options{})
	if _, refused := errors.AsType[*slots.RefusedError](err); err == nil || refused || strings.Contains(err.Error(), "s3cret") ||
		!strings.Contains(err.Error(), "mongodb://127.0.0.1:1/db.slots: ") {
		t.Errorf("without a server: %v", err)
	}
}
