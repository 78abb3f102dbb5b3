package kit

import (
	"context"
	"database/sql"
	"errors"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	_ "modernc.org/sqlite"
)

// Database is an operator's access to a backend. No program may be running meanwhile.
type Database interface {
	// BackUp returns a function that restores the current state of the database.
	BackUp() (restore func() error, err error)
	// Empty makes it like a new database.
	Empty() error
	// Drop removes one part of it: locks, files, types, workers, marks or notifications.
	Drop(part string) error
}

// Embedded is the SQLite database in the file Path.
type Embedded struct{ Path string }

func (d Embedded) BackUp() (restore func() error, err error) {
	saved := map[string][]byte{}
	for _, suffix := range []string{"", "-wal"} { // a killed process leaves the second one
		data, err := os.ReadFile(d.Path + suffix)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		saved[suffix] = data
	}
	return func() error {
		err := d.Empty()
		for suffix, data := range saved {
			err = errors.Join(err, os.WriteFile(d.Path+suffix, data, 0o600))
		}
		return err
	}, nil
}

func (d Embedded) Empty() error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(d.Path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (d Embedded) Drop(part string) error {
	table := map[string]string{
		"locks": "locks", "files": "queue_files", "types": "queue_types", "workers": "queue_members", "marks": "queue_marks", "notifications": "queue_notifications",
	}[part]
	db, err := sql.Open("sqlite", d.Path)
	if err != nil {
		return err
	}
	defer db.Close()
	var there int
	if err := db.QueryRow("SELECT count(*) FROM sqlite_master WHERE name = ?", table).Scan(&there); err != nil || there == 0 {
		return err
	}
	_, err = db.Exec("DELETE FROM " + table)
	return err
}

// Server is a database on a MongoDB server.
type Server struct{ *mongo.Database }

func (d Server) BackUp() (restore func() error, err error) {
	ctx := context.Background()
	names, err := d.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	saved := map[string][]bson.Raw{}
	for _, name := range names {
		cursor, err := d.Collection(name).Find(ctx, bson.D{})
		if err != nil {
			return nil, err
		}
		var docs []bson.Raw
		if err := cursor.All(ctx, &docs); err != nil {
			return nil, err
		}
		saved[name] = docs
	}
	return func() error {
		if err := d.Empty(); err != nil {
			return err
		}
		for name, docs := range saved {
			if len(docs) == 0 {
				continue
			}
			if _, err := d.Collection(name).InsertMany(ctx, docs); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// Empty removes the documents of all collections, and keeps the indexes, as a restore would bring them back, too.
func (d Server) Empty() error {
	ctx := context.Background()
	names, err := d.ListCollectionNames(ctx, bson.D{})
	for _, name := range names {
		_, failed := d.Collection(name).DeleteMany(ctx, bson.D{})
		err = errors.Join(err, failed)
	}
	return err
}

func (d Server) Drop(part string) error { return d.Collection(part).Drop(context.Background()) }
