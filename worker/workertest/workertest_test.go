package workertest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/workertest"
)

// drainOn does what a user's test would do.
func drainOn(t *testing.T, b *fencepost.Backend) {
	workertest.Publish(t, b.Queue, "orders", "chair", "broken", "table")
	workertest.Publish(t, b.Queue, "audit", "entry")
	workertest.RequirePublished(t, b.Queue, "orders", "chair", "broken", "table")
	workertest.RequirePublished(t, b.Queue, "returns")
	var got []string
	stats := workertest.Drain(t, b, worker.Config{Types: []string{"orders"}, To: worker.Handling{Handler: worker.Each(func(_ context.Context, lease worker.Lease, m queue.Message) error {
		if lease.Name() != "orders" || lease.Token() == 0 {
			t.Errorf("lease of %s with token %d", lease.Name(), lease.Token())
		}
		if string(m.Payload) == "broken" {
			return errors.New("cannot be shipped")
		}
		got = append(got, string(m.Payload))
		return nil
	})}})
	if fmt.Sprint(got) != "[chair table]" || stats.Handled != 2 || stats.Dead != 1 {
		t.Errorf("handled %q, stats %+v", got, stats)
	}
	workertest.RequirePublished(t, b.Queue, "orders")
	workertest.RequireDead(t, b.Queue, "orders", "broken")
	if stats := workertest.Drain(t, b, worker.Config{}); stats.Appended != 1 {
		t.Errorf("stats %+v", stats)
	}
}

func TestDrain(t *testing.T) {
	t.Run("memory", func(t *testing.T) { drainOn(t, workertest.Backend(t)) })
	t.Run("virtual time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := workertest.Backend(t)
			began := time.Now()
			drainOn(t, b)
			if d := time.Since(began); d > time.Minute {
				t.Errorf("took %v", d)
			}
		})
	})
	onURL := func(t *testing.T, url string) {
		b, err := fencepost.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close(context.Background())
		drainOn(t, b)
	}
	t.Run("sqlite", func(t *testing.T) { drainOn(t, workertest.SQLite(t)) })
	t.Run("mongodb", func(t *testing.T) {
		uri, _ := mongotest.Fresh(t)
		onURL(t, uri)
	})
}

// Drain does not change retry bounds that a test sets.
func TestDrainWithLongRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := workertest.Backend(t)
		workertest.Publish(t, b.Queue, "orders", "broken")
		began := time.Now()
		workertest.Drain(t, b, worker.Config{RetryMax: time.Hour, MaxAttempts: 25, To: worker.Handling{
			Handler: worker.Each(func(context.Context, worker.Lease, queue.Message) error { return errors.New("broken") }),
		}})
		if d := time.Since(began); d < time.Minute { // a random part of 2 ms, 4 ms, …, an hour
			t.Errorf("25 attempts took %v", d)
		}
		workertest.RequireDead(t, b.Queue, "orders", "broken")
	})
}

// spy is a test that may fail.
type spy struct {
	testing.TB
	failed string
}

func (s *spy) Fatalf(format string, args ...any) {
	s.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestRequireFails(t *testing.T) {
	b := workertest.Backend(t)
	workertest.Publish(t, b.Queue, "orders", "chair")
	for words, check := range map[string]func(t testing.TB){
		`messages of type orders: ["chair"], want ["table"]`: func(t testing.TB) { workertest.RequirePublished(t, b.Queue, "orders", "table") },
		`want []`:                func(t testing.TB) { workertest.RequirePublished(t, b.Queue, "orders") },
		`want ["chair" "chair"]`: func(t testing.TB) { workertest.RequirePublished(t, b.Queue, "orders", "chair", "chair") },
		`1 messages of type orders, want 12; the first difference is at [1]: none, want "chair"`: func(t testing.TB) {
			workertest.RequirePublished(t, b.Queue, "orders", slices.Repeat([]string{"chair"}, 12)...)
		},
		`dead letters of type orders`: func(t testing.TB) { workertest.RequireDead(t, b.Queue, "orders", "chair") },
		`"T"`:                         func(t testing.TB) { workertest.Publish(t, b.Queue, "T", "x") },
		`worker configuration`:        func(t testing.TB) { workertest.Drain(t, b, worker.Config{Batch: -1}) },
	} {
		s := &spy{TB: t}
		done := make(chan struct{})
		go func() { defer close(done); check(s) }()
		<-done
		if !strings.Contains(s.failed, words) {
			t.Errorf("failed with %q, want %q", s.failed, words)
		}
	}
}
