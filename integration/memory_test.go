package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// maxBusyWorker is the most memory that a worker with default flags may take, whatever the messages: docs/limits.md.
const maxBusyWorker = 300 << 20

// TestMessagesTakeNoWorkerBeyondItsMemory runs the real worker, with default flags, on many types that are concurrently busy with the messages that take the
// most memory. It is not parallel: alongside other tests a server takes ten times as long for messages of this size, and is slow for all of them.
func TestMessagesTakeNoWorkerBeyondItsMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	large := make([]byte, queue.MaxPayload)
	rand.Read(large)
	headers := map[string]string{}
	for i := range queue.MaxHeaderCount {
		headers[fmt.Sprintf("%02x", i)] = ""
	}
	payload := func(time.Time) queue.Message { return queue.Message{Payload: large} }
	part := func(time.Time) queue.Message { return queue.Message{Payload: large[:256<<10]} }
	onEachBackend(t, func(t *testing.T, b backend) {
		_, server := b.db.(kit.Server)
		for _, tc := range []struct {
			name     string
			types, n int // n messages of each type
			make     func(due time.Time) queue.Message
			slow     int64  // fetched messages cannot be removed from the queue until each file has this many bytes
			store    string // the files are in a store of this kind: data sent to it takes memory, too
			skip     bool
		}{
			{name: "payloads", types: 8, n: 5, make: payload, slow: 2 * queue.MaxPayload, skip: server}, // on the server, the case "delayed" produces such messages
			{name: "headers", types: 20, n: 300, make: func(time.Time) queue.Message { return queue.Message{Headers: headers} }},
			{name: "shared", types: 20, n: 40, store: "shared", skip: server, make: part},
			{name: "s3", types: 20, n: 40, store: "s3", skip: server, make: part},
			{name: "slots", types: 20, n: 40, store: "mongodb", skip: server, make: part}, // they would overload the server
			{name: "delayed", types: 8, n: 1, make: func(due time.Time) queue.Message { return queue.Message{Payload: large, Due: due} }},
		} {
			if tc.skip {
				continue
			}
			t.Run(tc.name, func(t *testing.T) {
				began := time.Now()
				bytes := publishToEach(t, b, tc.name, tc.types, tc.n, tc.make)
				published := time.Since(began)
				if tc.slow > 0 {
					defer slowDown(t, b, tc.name, tc.types, tc.slow)()
				}
				args := []string{"--dir", b.dir, "--allow-overlay"}
				if tc.store != "" {
					args = []string{"--store", newStore(t, tc.store)}
				}
				code, peak, stderr := peakOf(t, "worker", append(args, "--url", b.url, "--type", tc.name+"-*", "--until-empty")...)
				t.Logf("%d MiB, published within %v, drained within %v: the worker took %d MiB", bytes>>20, published.Round(time.Millisecond),
					(time.Since(began) - published).Round(time.Millisecond), peak>>20)
				t.Logf("measured: %d MiB (%s)", peak>>20, tc.name)
				if code != 0 {
					t.Fatalf("exit code %d: %s", code, stderr)
				}
				if peak > maxBusyWorker {
					t.Errorf("the worker took %d MiB, want %d at most", peak>>20, maxBusyWorker>>20)
				}
				for typ, p := range pending(t, b) {
					if p > 0 {
						t.Errorf("%d messages of %s are left", p, typ)
					}
				}
			})
		}
	})
}

// newStore returns the address of a new store for files, of kind shared, s3 or mongodb.
func newStore(t *testing.T, kind string) string {
	t.Helper()
	switch kind {
	case "mongodb":
		uri, _ := mongotest.Fresh(t)
		return uri
	case "s3":
		o, err := kit.StartObjects(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Close)
		return o.Address(o.Targets[0])
	}
	return "shared:" + t.TempDir()
}

// publishToEach publishes n messages to each of some types, and returns their payload bytes. Delayed ones are due when it returns.
func publishToEach(t *testing.T, b backend, name string, types, n int, message func(due time.Time) queue.Message) (size int64) {
	t.Helper()
	ctx := context.Background()
	opened, closeIt := open(t, b)
	defer closeIt()
	pub, err := queue.NewPublisher(ctx, opened.Queue, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close(ctx)
	var due time.Time
	for i := range types {
		for left := n; left > 0; {
			var msgs []queue.Message
			for ; left > 0 && len(msgs) < 100; left-- {
				due = time.Now().Add(time.Second)
				m := message(due)
				m.Type = fmt.Sprintf("%s-%d", name, i)
				m.Payload = bytes.Clone(m.Payload)
				size += int64(len(m.Payload))
				msgs = append(msgs, m)
			}
			for _, r := range pub.PublishAll(ctx, msgs) {
				if r.Status != queue.Stored {
					t.Fatalf("%v: %v", r.Status, r.Err)
				}
			}
		}
	}
	if !message(due).Due.IsZero() {
		time.Sleep(time.Until(due) + 100*time.Millisecond) // a worker does not wait for messages that are not due
	}
	return size
}

// slowDown keeps a worker on an embedded database from removing messages, while it continues to fetch them. It starts when the worker has all its files, and ends
// when each has grown to size bytes and later messages have been fetched, or after six seconds.
func slowDown(t *testing.T, b backend, name string, files int, size int64) (wait func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	until := func(within time.Duration, size int64) {
		for end := time.Now().Add(within); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			names, _ := filepath.Glob(filepath.Join(b.dir, name+"-*.fpl"))
			n := 0
			for _, name := range names {
				if info, err := os.Stat(name); err == nil && info.Size() >= size {
					n++
				}
			}
			if n == files {
				return
			}
		}
	}
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			until(time.Minute, 1)
			db, err := sqlitedb.Open(ctx, b.db.(kit.Embedded).Path, sqlitedb.Options{})
			if err != nil {
				return err
			}
			defer db.Close()
			return db.Write(ctx, func(*sqlitedb.Tx) error {
				until(5*time.Second, size)
				time.Sleep(time.Second)
				return nil
			})
		}()
	}()
	return func() {
		defer cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
