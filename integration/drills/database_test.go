package drills

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	_ "modernc.org/sqlite"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// embedded is the SQLite file at a path.
type embedded struct{ path string }

func (d embedded) backUp(t testing.TB) (restore func(t testing.TB)) {
	t.Helper()
	saved := map[string][]byte{}
	for _, suffix := range []string{"", "-wal"} { // who was killed leaves the second
		data, err := os.ReadFile(d.path + suffix)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		saved[suffix] = data
	}
	return func(t testing.TB) {
		t.Helper()
		d.empty(t)
		for suffix, data := range saved {
			if err := os.WriteFile(d.path+suffix, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (d embedded) empty(t testing.TB) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(d.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// drop empties the table of that part.
func (d embedded) drop(t testing.TB, what string) {
	t.Helper()
	table := map[string]string{
		"locks": "locks", "files": "queue_files", "types": "queue_types", "workers": "queue_members", "marks": "queue_marks",
	}[what]
	db, err := sql.Open("sqlite", d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var there int
	if err := db.QueryRow("SELECT count(*) FROM sqlite_master WHERE name = ?", table).Scan(&there); err != nil {
		t.Fatal(err)
	}
	if there == 0 {
		return
	}
	if _, err := db.Exec("DELETE FROM " + table); err != nil {
		t.Fatal(err)
	}
}

// server is a database on a MongoDB server.
type server struct{ *mongo.Database }

func (d server) backUp(t testing.TB) (restore func(t testing.TB)) {
	t.Helper()
	ctx := context.Background()
	names, err := d.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	saved := map[string][]bson.Raw{}
	for _, name := range names {
		cursor, err := d.Collection(name).Find(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var docs []bson.Raw
		if err := cursor.All(ctx, &docs); err != nil {
			t.Fatal(err)
		}
		saved[name] = docs
	}
	return func(t testing.TB) {
		t.Helper()
		d.empty(t)
		for name, docs := range saved {
			if len(docs) == 0 {
				continue
			}
			if _, err := d.Collection(name).InsertMany(ctx, docs); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// empty removes what is in the collections, and leaves their indexes: a restore brings them, too.
func (d server) empty(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	names, err := d.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := d.Collection(name).DeleteMany(ctx, bson.D{}); err != nil {
			t.Fatal(err)
		}
	}
}

func (d server) drop(t testing.TB, what string) {
	t.Helper()
	if err := d.Collection(what).Drop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// onEachBackend runs f with an estate on the embedded backend and with one on a MongoDB server.
func onEachBackend(t *testing.T, seed uint64, f func(t *testing.T, e *estate)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "fencepost.db")
		f(t, newEstate(t, seed, "sqlite://"+path, embedded{path}))
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		uri, db := mongotest.Fresh(t)
		f(t, newEstate(t, seed, uri, server{db}))
	})
}
