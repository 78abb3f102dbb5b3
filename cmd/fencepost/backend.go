package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// withBackend opens the backend for one command. The first signal cancels ctx.
func withBackend(cmd *cobra.Command, url string, f func(context.Context, *fencepost.Backend) error) error {
	// A command must not create the embedded database.
	if path, ok := strings.CutPrefix(url, "sqlite://"); ok && path != "" && !redact.MistakenPath(path) {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("there is no database %s; publish something first, or name another one with --url", path)}
		}
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	defer cli.OnSignals(cancel, cancel)()
	b, err := cli.Open(ctx, url)
	if err != nil {
		return err
	}
	defer closeBackend(b)
	return f(ctx, b)
}

// closeBackend closes the backend at the end of a command.
func closeBackend(b *fencepost.Backend) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return b.Close(ctx)
}

// registryEntry returns the registry entry of a type, which must exist.
func registryEntry(ctx context.Context, b *fencepost.Backend, typ string) (storage.Entry, error) {
	entry, known, err := b.Queue.RegistryEntry(ctx, typ)
	if err == nil && !known {
		err = &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s has no registered file of type %s: a worker registers the one that it finds in its directory; "+
			"is it the right database?", b.Name, typ)}
	}
	return storageEntry(entry), err
}

func storageEntry(f queue.RegistryEntry) storage.Entry {
	return storage.Entry{FileID: f.FileID, Generation: f.Generation, Epoch: f.Epoch, DurableIndex: f.DurableIndex, Place: f.Place}
}

// mongoBackend is implemented by a queue in MongoDB.
type mongoBackend interface{ DB() *mongo.Database }

// withQueue is withBackend without a Locker, which would create its collection and index in a MongoDB database that is only to be examined.
func withQueue(cmd *cobra.Command, url string, f func(context.Context, *fencepost.Backend) error) error {
	if !strings.HasPrefix(url, "mongodb") {
		return withBackend(cmd, url, f)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	defer cli.OnSignals(cancel, cancel)()
	q, err := mongoqueue.Open(ctx, url, mongoqueue.Options{})
	if err != nil {
		return err
	}
	defer q.Close()
	return f(ctx, &fencepost.Backend{Queue: q, Name: fencepost.Redact(url)})
}
