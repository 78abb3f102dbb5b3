package queues

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/bench/internal/suite/suitetest"
	"github.com/fencepost/fencepost/internal/mongotest"
)

func databases(t *testing.T, uri string) []string {
	names, err := server.Databases(t.Context(), uri, "queue")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// noneLeft fails if a run on the server has left a database behind. before are the databases that existed before, because
// other programs may be using the server.
func noneLeft(t *testing.T, uri string, before []string) {
	for _, name := range databases(t, uri) {
		if !slices.Contains(before, name) {
			t.Errorf("database %s was left behind", name)
		}
	}
}

// TestQuick runs the whole suite on tiny sizes. The suite itself checks what it measures: every message, once, in order.
func TestQuick(t *testing.T) {
	uri := mongotest.URI(t)
	before := databases(t, uri)
	dir, err := os.MkdirTemp("", "fencepost-bench-test-") // not t.TempDir, which only its owner can enter: PostgreSQL does not run as root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := suite.Options{Dir: dir, Rounds: 1, Quick: true, Logf: t.Logf, MongoDB: uri}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	suitetest.Check(t, o, res, []string{"≥ 0.9", "≥ 20", nameAgain, nameSend, nameOrdered, nameUnordered, "control: the same of the bare loop",
		"### Embedded", "15 k, embedded", "over HTTP / in Go, embedded", "over HTTP / in Go, server", namePeerSQLite, "River, 1 worker", "River, 100 workers", "Asynq, 1 worker", "everysec", "the holder is stopped", "asked to give it back"}, []string{"| n/a", "(n/a", "Inf"})
	for _, plot := range []string{plotBacklog, plotPeers} {
		if !strings.HasPrefix(res.Plots[plot], "<svg") || strings.Contains(res.Plots[plot], "NaN") {
			t.Errorf("plot %s: %.100q", plot, res.Plots[plot])
		}
	}
	noneLeft(t, uri, before)
}

func TestCancelledRunEnds(t *testing.T) {
	uri := mongotest.URI(t)
	before := databases(t, uri)
	for _, at := range []string{"drain", "backlog", "hand-over"} {
		b := &bench{o: suite.Options{Dir: t.TempDir(), Rounds: 1, Quick: true, Logf: t.Logf, MongoDB: uri}}
		ctx, cancel := context.WithCancel(t.Context())
		err := b.with(ctx, []part{{at, func() error {
			time.AfterFunc(20*time.Millisecond, cancel)
			return map[string]func(context.Context) error{
				"drain":     func(ctx context.Context) error { _, err := b.measureDrain(ctx); return err },
				"backlog":   func(ctx context.Context) error { _, err := b.measureBacklog(ctx); return err },
				"hand-over": func(ctx context.Context) error { _, err := b.measureHandOver(ctx); return err },
			}[at](ctx)
		}}})
		if err == nil || ctx.Err() == nil {
			t.Errorf("%s: got %v", at, err)
		}
		cancel()
	}
	noneLeft(t, uri, before)
}

func TestNoServer(t *testing.T) {
	o := suite.Options{Dir: t.TempDir(), Rounds: 1, Quick: true, Logf: t.Logf, MongoDB: "mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=200"}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--mongodb: no server answers") {
		t.Errorf("got %v", err)
	}
	o.MongoDB = "http://nowhere"
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--mongodb") {
		t.Errorf("got %v", err)
	}
}

// TestPeerThatCannotBeHad: a row says why, and the run continues.
func TestPeerThatCannotBeHad(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := startRedis(t.Context(), t.TempDir(), nil)
	if !errors.Is(err, errNone) || !strings.Contains(err.Error(), "not measured: Redis is not installed") {
		t.Errorf("got %v", err)
	}
	script := filepath.Join(os.Getenv("PATH"), "redis-server")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho it has a cold\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = startRedis(t.Context(), t.TempDir(), func(context.Context, string) error { return errors.New("nobody there") })
	if !errors.Is(err, errNone) || !strings.Contains(err.Error(), "it has a cold") {
		t.Errorf("got %v", err)
	}
	b := &bench{peers: peers{list: []*peer{{name: "River", why: err}}}}
	if row := b.peersTable(); !strings.Contains(row, "| River | not measured: redis-server ended: it has a cold |") {
		t.Errorf("got %s", row)
	}
}

func TestGroupFile(t *testing.T) {
	j, err := messages.OpenJournal(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer j.F.Close()
	g := newGroupFile(j)
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			if err := g.append(messages.Payload(i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := checkUnordered(j)(500); err != nil {
		t.Error(err)
	}
	j.F.Close()
	if err := g.append(messages.Payload(500)); err == nil {
		t.Error("no error reports that the file cannot be written")
	}
}

func TestClocked(t *testing.T) {
	for _, batches := range [][]int{{5}, {1, 4}, {1, 1, 1, 9, 1}} {
		c := newClocked(5)
		for _, n := range batches {
			time.Sleep(time.Millisecond)
			c.note(n)
		}
		select {
		case <-c.full:
		default:
			t.Errorf("%v: not full", batches)
		}
		if !(c.rate > 0 && c.rate < 20_000) {
			t.Errorf("%v: rate %v", batches, c.rate)
		}
	}
}
