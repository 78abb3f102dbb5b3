package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/workertest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// The store refuses the write of a suspended holder that has a successor.
func TestLateWriteIsRefused(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"the first one resumes: refused by the store: fenced by a later holder", "200 sales, each counted once"} {
			if !strings.Contains(out, want) {
				t.Errorf("the output does not say %q", want)
			}
		}
	})
}

// If a store that accepts the late write still had the right totals, the test above would prove nothing.
func TestLateWriteDoesDamageWithoutTheFence(t *testing.T) {
	out, err := exampletest.Output(t, run, "--no-fence")
	if err == nil || !strings.Contains(out, "resumes, and writes") || !strings.Contains(err.Error(), "the totals are wrong") {
		t.Errorf("got %v", err)
	}
}

func newSink(t *testing.T, path string) *sink {
	t.Helper()
	st, err := openStore(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.db.Close() })
	return &sink{store: st, held: map[string]claimed{}}
}

// sale is message n of a producer.
func sale(producer, n uint64, payload string) queue.Message {
	return queue.Message{Type: typ, ID: queue.NewID(time.UnixMilli(1_700_000_000_000), producer, n), Payload: []byte(payload)}
}

// A claim alone shuts out the previous holder, even before anything has been written under it.
func TestClaimShutsTheHolderBeforeOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "totals.db")
	first, second := newSink(t, path), newSink(t, path)
	before, after := workertest.Lease{Type: typ, Number: 1}, workertest.Lease{Type: typ, Number: 2}
	handle := func(s *sink, l worker.Lease, n uint64) error {
		return s.Handle(t.Context(), l, []queue.Message{sale(7, n, "chair 100")})
	}
	if err := handle(first, before, 1); err != nil {
		t.Fatal(err)
	}
	second.beforeSave = func() { // the successor has claimed, and not written
		if err := handle(first, before, 2); !errors.Is(err, worker.ErrFenced) {
			t.Errorf("the first holder's write: %v", err)
		}
		if err := handle(first, before, 2); !errors.Is(err, worker.ErrFenced) {
			t.Errorf("the first holder's next claim: %v", err)
		}
	}
	if err := handle(second, after, 2); err != nil {
		t.Fatal(err)
	}
	got, err := second.store.load(t.Context(), typ)
	if err != nil || got.Cents["chair"] != 200 || got.Sales != 2 {
		t.Errorf("totals %+v (%v)", got, err)
	}
}

// Every message counts once: within a batch, in the next one, for the next process, and when it comes late.
func TestCopiesCountOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "totals.db")
	s := newSink(t, path)
	lease := workertest.Lease{Type: typ, Number: 1}
	deliver := func(s *sink, ns ...uint64) {
		t.Helper()
		var msgs []queue.Message
		for _, n := range ns {
			msgs = append(msgs, sale(7, n, fmt.Sprintf("chair %d", n)))
		}
		if err := s.Handle(t.Context(), lease, msgs); err != nil {
			t.Fatal(err)
		}
	}
	deliver(s, 1, 2, 2, 3)
	deliver(s, 2, 3, 6) // 4 and 5 are missing
	s = newSink(t, path)
	lease.Number = 2
	deliver(s, 1, 2, 3, 5, 5, 6, 7)
	got, err := s.store.load(t.Context(), typ)
	if err != nil || got.Cents["chair"] != 1+2+3+5+6+7 || got.Sales != 6 {
		t.Errorf("totals %+v (%v)", got, err)
	}
	if p := got.Producers[7]; p.Last != 7 || len(p.Missing) != 1 || p.Missing[0] != 4 {
		t.Errorf("producer %+v", p)
	}
}

// A message that is no sale becomes a dead letter, and the sales around it count.
func TestMalformedSalesAreDeadLetters(t *testing.T) {
	b := workertest.Backend(t)
	s := newSink(t, filepath.Join(t.TempDir(), "totals.db"))
	workertest.Publish(t, b.Queue, typ, "chair 100", "chair", "lamp 20", "lamp x", "chair 3")
	workertest.Drain(t, b, worker.Config{To: worker.Handling{Handler: s}})
	workertest.RequireDead(t, b.Queue, typ, "chair", "lamp x")
	got, err := s.store.load(t.Context(), typ)
	if err != nil || !maps.Equal(got.Cents, map[string]int64{"chair": 103, "lamp": 20}) || got.Sales != 3 {
		t.Errorf("totals %+v (%v)", got, err)
	}
}

func TestSilentProducersAreForgotten(t *testing.T) {
	totals := newTotals()
	early := time.UnixMilli(1_700_000_000_000)
	totals.first(queue.NewID(early, 1, 1))
	totals.first(queue.NewID(early.Add(remember), 2, 1))
	if len(totals.Producers) != 2 {
		t.Fatalf("%d producers are remembered", len(totals.Producers))
	}
	totals.first(queue.NewID(early.Add(remember+time.Second), 2, 2))
	if totals.Producers[1] != nil || totals.Producers[2] == nil {
		t.Errorf("remembered: %v", totals.Producers)
	}
}
