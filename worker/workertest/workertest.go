// Package workertest helps to test programs that publish or handle messages, without a server and, inside a bubble of
// testing/synctest, without real waiting.
//
//	b := workertest.Backend(t)
//	PlaceOrder(ctx, b.Queue, "a chair")                          // your code publishes …
//	workertest.RequirePublished(t, b.Queue, "orders", "a chair") // … what it should
//
//	stats := workertest.Drain(t, b, worker.Config{To: worker.Handling{Handler: ship}}) // your handler gets all messages …
//	workertest.RequireDead(t, b.Queue, "orders")                  // … and could handle them
//
// [Backend] is in memory, [SQLite] on disk. [Publish], [Drain] and the Require functions work on every backend, including those
// that fencepost.Open returns. With a [Lease] you can call a handler directly.
package workertest

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/worker"
)

// Backend returns a queue and locks in memory. They are closed at the end of the test.
func Backend(t testing.TB) *fencepost.Backend {
	t.Helper()
	locks := locktest.NewMemory()
	began := time.Now()
	locker, err := lock.New(locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(began) }})
	if err != nil {
		t.Fatalf("workertest: %v", err)
	}
	b := &fencepost.Backend{Queue: queuetest.NewMemory(), Locker: locker, Name: "memory"}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Errorf("workertest: close the backend: %v", err)
		}
		locks.Stop()
	})
	return b
}

// SQLite returns the embedded backend on a temporary database of its own: the backend of a program without a server, with real
// files, transactions and timing. It does not work in a bubble of testing/synctest.
func SQLite(t testing.TB) *fencepost.Backend {
	t.Helper()
	b, err := fencepost.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "fencepost.db"))
	if err != nil {
		t.Fatalf("workertest: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Errorf("workertest: close the backend: %v", err)
		}
	})
	return b
}

// Publish publishes messages of a type, in order. The test fails if one cannot be published.
func Publish(t testing.TB, q queue.PublisherStore, typ string, payloads ...string) {
	t.Helper()
	p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
	if err != nil {
		t.Fatalf("workertest: %v", err)
	}
	defer p.Close(t.Context())
	var msgs []queue.Message
	for _, payload := range payloads {
		msgs = append(msgs, queue.Message{Type: typ, Payload: []byte(payload)})
	}
	for i, r := range p.PublishAll(t.Context(), msgs) {
		if r.Err != nil {
			t.Fatalf("workertest: publish message %d of type %s: %v", i, typ, r.Err)
		}
	}
}

// Drain runs a worker until the queue is empty, and returns its counters. It serves all types, unless cfg names some, and writes files in a
// temporary directory, unless cfg.To says otherwise. A message that fails is retried after milliseconds, and becomes a dead letter after
// cfg.MaxAttempts; to test retries themselves, set OnError and RetryMin.
func Drain(t testing.TB, b *fencepost.Backend, cfg worker.Config) worker.Stats {
	t.Helper()
	cfg.Queue, cfg.Locker, cfg.UntilEmpty = b.Queue, b.Locker, true
	cfg.AllTypes = len(cfg.Types) == 0
	if cfg.To == nil {
		cfg.To = worker.Files{}
	}
	if files, ok := cfg.To.(worker.Files); ok && files.Dir == "" {
		files.Dir, files.Storage.AllowOverlay = t.TempDir(), true
		cfg.To = files
	}
	if cfg.RetryMin == 0 && cfg.OnError == worker.Block {
		cfg.RetryMax = cmp.Or(cfg.RetryMax, 10*time.Millisecond)
		cfg.RetryMin, cfg.OnError = min(time.Millisecond, cfg.RetryMax), worker.DeadLetter
	}
	pool, err := worker.New(cfg)
	if err == nil {
		err = pool.Run(t.Context())
	}
	if err != nil {
		t.Fatalf("workertest: drain: %v", err)
	}
	return pool.Stats()
}

// RequirePublished fails the test unless exactly these messages of a type are in the queue, in this order. It leaves them there.
func RequirePublished(t testing.TB, q queue.Fetcher, typ string, payloads ...string) {
	t.Helper()
	msgs, err := q.Fetch(t.Context(), typ, queue.ID{}, queue.Limit{Messages: len(payloads) + 100})
	if err != nil {
		t.Fatalf("workertest: %v", err)
	}
	var got []string
	for _, m := range msgs {
		got = append(got, string(m.Payload))
	}
	require(t, "messages", typ, got, payloads)
}

// RequireDead fails the test unless exactly these messages of a type are dead letters, in this order.
func RequireDead(t testing.TB, q queue.DeadLetterReader, typ string, payloads ...string) {
	t.Helper()
	var got []string
	for l, err := range queue.DeadLetters(t.Context(), q, queue.DeadLetterFilter{Type: typ}) {
		if err != nil {
			t.Fatalf("workertest: %v", err)
		}
		got = append(got, string(l.Payload))
	}
	require(t, "dead letters", typ, got, payloads)
}

// require compares lists. For long ones it reports only the first difference.
func require(t testing.TB, what, typ string, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	const whole = 10 // longer lists are not shown
	if len(got) <= whole && len(want) <= whole {
		t.Fatalf("%s of type %s: %.100q, want %.100q", what, typ, got, want)
	}
	at := func(s []string, i int) string {
		if i < len(s) {
			return fmt.Sprintf("%.100q", s[i])
		}
		return "none"
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	t.Fatalf("%d %s of type %s, want %d; the first difference is at [%d]: %s, want %s", len(got), what, typ, len(want), i, at(got, i), at(want, i))
}

// Lease is a [worker.Lease] with fixed answers, to call a Handler directly.
type Lease struct {
	Type   string
	Number int64 // the fencing token
	Err    error // what Check returns: lock.ErrLost, for example
}

var _ worker.Lease = Lease{}

// Name returns l.Type.
func (l Lease) Name() string { return l.Type }

// Token returns l.Number.
func (l Lease) Token() int64 { return l.Number }

// Check returns l.Err.
func (l Lease) Check(time.Duration) error { return l.Err }
