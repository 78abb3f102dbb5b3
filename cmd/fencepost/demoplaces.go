package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/storage"
	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Where the demo keeps its messages and files. It never touches the queue of other programs or the
// files that their database registers. It creates its own part everywhere, and removes only that part.

const cleanupTimeout = 30 * time.Second

// ownName returns a unique name for something that a command creates.
func ownName(command, sep string) string {
	var r [4]byte
	rand.Read(r[:])
	return strings.Join([]string{"fencepost", command, hex.EncodeToString(r[:])}, sep)
}

// ownURL gives the demo its own database, and returns a function that removes it.
func (d *demo) ownURL() (drop func() error, err error) {
	if d.url != "" {
		d.url, drop, err = ownDatabase("demo", "--url", d.url)
		return drop, err
	}
	dir, err := filepath.Abs(d.dir)
	d.url = "sqlite://" + filepath.Join(dir, "fencepost.db")
	return func() error { return nil }, err
}

// ownDatabase puts a fresh database name into a MongoDB URL, the value of a command's flag, and
// returns a function that drops the database.
func ownDatabase(command, flag, rawURL string) (string, func() error, error) {
	u, err := url.Parse(rawURL)
	if err != nil || !store.IsMongo(rawURL) {
		return rawURL, func() error { return nil }, nil // opening it reports the error
	}
	if u.Path != "" && u.Path != "/" {
		return "", nil, cli.Usagef("%s %s: %s creates its own database; leave out the database name", flag, fencepost.Redact(rawURL), command)
	}
	name := ownName(command, "_")
	u.Path = "/" + name
	if q := u.Query(); u.User != nil && !q.Has("authSource") {
		// Without a database in the URL, users are authenticated against admin. That must not change.
		q.Set("authSource", "admin")
		u.RawQuery = q.Encode()
	}
	return u.String(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		client, err := mongo.Connect(options.Client().ApplyURI(u.String()).SetServerSelectionTimeout(5 * time.Second))
		if err != nil {
			return err
		}
		defer client.Disconnect(ctx)
		if err := client.Database(name).Drop(ctx); err != nil {
			return fmt.Errorf("drop the database %s: %w", name, err)
		}
		return nil
	}, nil
}

// ownStore gives the demo its own part of the store, and returns a function that removes it.
func (d *demo) ownStore() (drop func() error, err error) {
	address := *d.files.address
	nothing := func() error { return nil }
	if address == "" {
		return nothing, nil
	}
	if address == "mongodb:" && !store.IsMongo(d.url) {
		return nil, cli.Usagef("--store mongodb: means the database of --url, and without --url the demo uses an embedded one; add --url mongodb://host/, or use --store mongodb://host/")
	}
	if err := store.Check(address, d.url); err != nil {
		return nil, err
	}
	dir, isShared := strings.CutPrefix(address, cli.SharedScheme)
	switch {
	case address == "mongodb:":
		return nothing, nil // it is dropped with the database
	case isShared:
		own := filepath.Join(dir, ownName("demo", "-"))
		if err := os.Mkdir(own, 0o700); err != nil {
			return nil, cli.Usagef("--store %s: %w", cli.StoreName(address), err)
		}
		*d.files.address = cli.SharedScheme + own
		return func() error { return os.RemoveAll(own) }, nil
	case store.IsMongo(address):
		*d.files.address, drop, err = ownDatabase("demo", "--store", address)
		return drop, err
	}
	bucket, settings, some := strings.Cut(address, "?")
	*d.files.address = strings.TrimRight(bucket, "/") + "/" + ownName("demo", "-")
	if some {
		*d.files.address += "?" + settings
	}
	return d.clearStore, nil
}

// openStore opens the store of --store, and sends it a request, so that a missing bucket is reported before anything is
// published. The workers probe whether it keeps its guarantees.
func (d *demo) openStore(ctx context.Context) error {
	if err := d.files.open(ctx); err != nil || d.files.place == nil {
		return err
	}
	err := d.files.place.Ask(ctx)
	d.used = err == nil
	return err
}

// clearStore removes everything from the demo's part of the store.
func (d *demo) clearStore() error {
	if !d.used {
		return nil // it is empty
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := d.files.place.Clear(ctx); err != nil {
		return fmt.Errorf("remove the demo's files from %s: %w", d.files.place.Name, err)
	}
	return nil
}

// path returns the path of a type's file.
func (d *demo) path(typ string) string {
	dir := d.dir
	if d.files.place != nil {
		dir = d.files.place.Dir
	}
	return filepath.Join(dir, storage.FileName(typ))
}

// openPages serves pages about the demo, and prints their address.
func (d *demo) openPages(b *fencepost.Backend) (*pages, error) {
	p, err := openPages("127.0.0.1:0", nil, ui.Options{Backend: b, Files: store.FilesOf(d.files.place, d.dir), Refresh: 500 * time.Millisecond, CountUpTo: len(d.originals), Log: zerolog.Nop()})
	if err == nil {
		d.say("pages     %s", p.address)
	}
	return p, err
}
