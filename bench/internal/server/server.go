// Package server provides every suite with a MongoDB: a connection, its name, and cleanup.
package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// NewDatabase names the database of a suite's run. The names of everything else that the run creates begin with it;
// those of all runs of the suite begin with prefix(suite).
func NewDatabase(suite string) string {
	return prefix(suite) + bson.NewObjectID().Hex()[8:] // without the time: a name has at most 63 bytes
}

// prefix is the beginning of the names of all databases that a suite's runs create.
func prefix(suite string) string { return "fencepost_bench_" + suite + "_" }

// Start returns the URI of a server: uri, or a new one if that is empty, which stop ends.
func Start(ctx context.Context, uri string, logf func(string, ...any)) (_ string, stop func() error, err error) {
	if uri != "" {
		return uri, func() error { return nil }, nil
	}
	logf("starting a server, as neither --mongodb nor %s names one", mongotest.EnvURI)
	s, err := mongotest.Start(ctx, mongotest.Options{})
	if err != nil {
		return "", nil, fmt.Errorf("no MongoDB is available; name one with --mongodb or %s: %w", mongotest.EnvURI, err)
	}
	return s.URI(), func() error {
		end, cancel := Undisturbed(ctx)
		defer cancel()
		return s.Terminate(end)
	}, nil
}

// Sent counts the commands of a client.
type Sent struct {
	atomic.Int64

	mu     sync.Mutex
	byKind map[string]int64
}

// ByKind returns the commands so far by name and collection.
func (s *Sent) ByKind() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byKind)
}

// Monitor returns a monitor that counts commands.
func (s *Sent) Monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "endSessions" {
			return
		}
		s.Add(1)
		collection, _ := e.Command.Lookup(e.CommandName).StringValueOK()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.byKind == nil {
			s.byKind = map[string]int64{}
		}
		s.byKind[strings.TrimSpace(e.CommandName+" "+collection)]++
	}}
}

// Dial returns a client like the one of mongolock.Open, for all contenders, and the commands that it has sent.
func Dial(uri string) (*mongo.Client, *Sent, error) {
	sent := new(Sent)
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetMaxPoolSize(5).SetRetryWrites(false).SetMonitor(sent.Monitor()))
	return client, sent, err
}

// Describe returns a server's own description.
func Describe(ctx context.Context, client *mongo.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var info struct {
		Version  string   `bson:"version"`
		FerretDB bson.Raw `bson:"ferretdb"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return "", err
	}
	var hello struct {
		Set string `bson:"setName"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return "", err
	}
	if info.FerretDB != nil {
		version, _ := info.FerretDB.Lookup("version").StringValueOK()
		return strings.TrimSpace("FerretDB " + version + ", which claims to be MongoDB " + info.Version), nil
	}
	if hello.Set != "" {
		return "MongoDB " + info.Version + ", replica set", nil
	}
	return "MongoDB " + info.Version + ", standalone", nil
}

// Drop drops databases until they stay away: requests of a killed worker, or of an operation whose context ended, may
// reach the server after a drop and create a database again.
func Drop(ctx context.Context, client *mongo.Client, names ...string) error {
	for len(names) > 0 {
		for _, name := range names {
			if err := client.Database(name).Drop(ctx); err != nil {
				return err
			}
		}
		if err := Sleep(ctx, time.Second); err != nil {
			return err
		}
		there, err := client.ListDatabaseNames(ctx, bson.D{})
		if err != nil {
			return err
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(there, name) })
	}
	return nil
}

// Databases returns the databases that a suite's runs have created.
func Databases(ctx context.Context, uri, suite string) (names []string, err error) {
	client, _, err := Dial(uri)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Disconnect(context.WithoutCancel(ctx))) }()
	names, err = client.ListDatabaseNames(ctx, bson.D{})
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix(suite)) }), err
}

// Undisturbed returns a context for cleaning up.
func Undisturbed(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
}

// Sleep waits for d, or until ctx ends, and then returns its error.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
