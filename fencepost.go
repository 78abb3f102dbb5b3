// Package fencepost opens, by URL, a queue of typed messages and a distributed lock with fencing tokens. Everything else builds on these
// two.
//
//	b, err := fencepost.Open(ctx, "mongodb://db1,db2,db3/fencepost?replicaSet=rs0")
//	…
//	defer b.Close(ctx)
//	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})      // publish
//	pool, err := worker.New(worker.Config{Queue: b.Queue, Locker: b.Locker, …}) // drain
//
// With no URL, or sqlite://path, everything runs embedded: one SQLite database shared by any number of worker and
// producer processes of one machine, no server. To scale beyond one machine, set the URL of a MongoDB, and keep the files in a
// store (package storage/slots), or give each machine its own types and directory.
package fencepost

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/fencepost/fencepost/lock/sqlitelock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
)

// DefaultURL is used for an empty URL: the embedded backend.
const DefaultURL = "sqlite://data/fencepost.db"

// ErrURL is wrapped by Open's errors about a URL that no backend accepts. It is queue.ErrInvalidURL.
var ErrURL = queue.ErrInvalidURL

// Backend is a queue and a lock service opened from one URL. Both are safe for concurrent use.
type Backend struct {
	Queue  queue.Queue
	Locker *lock.Locker // a worker's locks have the names of types: use others for your own, such as "job:nightly"
	Name   string       // name for logs and messages: the URL without credentials
}

// Open opens the backend that rawURL names and checks that it answers. mongodb:// and mongodb+srv:// mean MongoDB, with the database name
// as path (default "fencepost"); sqlite://path means the embedded database at that path, relative to the working directory unless it starts
// with a slash, and it takes no options and no percent-encoding; "" means DefaultURL. Errors wrap ErrURL, queue.ErrUnreachable or queue.ErrPermission where they apply, and never contain a
// password.
//
// Open searches for a usable server for 5 s, or for the URL's serverSelectionTimeoutMS. Once the queue is open, opening the locks may take
// 10 s more. For mongodb+srv:// each of the two also looks up the hosts in DNS, twice for up to 15 s if DNS does not answer. ctx bounds all of
// that. An election takes longer: a program that may start during one retries while the error is queue.ErrUnreachable. So is the error
// if DNS does not answer, also at the end of ctx.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	if rawURL == "" {
		rawURL = DefaultURL
	}
	scheme, rest, ok := strings.Cut(rawURL, "://")
	switch {
	case ok && scheme == "sqlite":
		return openSQLite(ctx, rest)
	case ok && (scheme == "mongodb" || scheme == "mongodb+srv"):
		return openMongo(ctx, rawURL)
	}
	return nil, fmt.Errorf("%w %q: use mongodb://host/database, mongodb+srv://host/database or sqlite://path", ErrURL, Redact(rawURL))
}

func openSQLite(ctx context.Context, path string) (*Backend, error) {
	if path == "" {
		return nil, fmt.Errorf("%w %q: name the database file, as in %s", ErrURL, "sqlite://", DefaultURL)
	}
	if redact.MistakenPath(path) {
		return nil, fmt.Errorf("%w sqlite://***: sqlite:// takes a path, without user, password and host; use mongodb:// for a server, or write sqlite://./ before the file's name", ErrURL)
	}
	if file, _, ok := strings.Cut(path, "?"); ok {
		return nil, fmt.Errorf("%w sqlite://%s?…: sqlite:// takes no options, and no path with ? in it; leave out ? and what follows, "+
			"or rename the file or directory if that is its name", ErrURL, file)
	}
	q, err := sqlitequeue.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	store, err := sqlitelock.OpenIn(ctx, q.Database())
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return newBackend(q, store, "sqlite://"+path)
}

func openMongo(ctx context.Context, uri string) (*Backend, error) {
	q, err := mongoqueue.Open(ctx, uri, mongoqueue.Options{})
	if err != nil {
		return nil, err
	}
	// The lock store has its own client: its renewals must never wait for a connection behind the queue's bulk work.
	store, err := mongolock.Open(ctx, uri, q.Database(), mongolock.Options{})
	if reason, _ := mongoerr.Passing(err); reason != "" && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", queue.ErrUnreachable, err)
	}
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return newBackend(q, store, Redact(uri))
}

func newBackend(q queue.Queue, store lock.Store, name string) (*Backend, error) {
	locker, err := lock.New(store, lock.Options{})
	if err != nil {
		return nil, errors.Join(err, store.Close(), q.Close())
	}
	return &Backend{Queue: q, Locker: locker, Name: name}, nil
}

// Close releases the locks still held, and disconnects. Stop the pools and close the publishers first. ctx bounds the release of the locks,
// and the wait for a server that does not answer.
func (b *Backend) Close(ctx context.Context) error {
	err := b.Locker.Close(ctx)
	if q, ok := b.Queue.(interface{ CloseWithin(context.Context) error }); ok { // of a server
		return errors.Join(err, q.CloseWithin(ctx))
	}
	return errors.Join(err, b.Queue.Close())
}

// Redact returns rawURL without user, password and options, for logs and messages.
func Redact(rawURL string) string { return redact.URL(rawURL) }
