package queuetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/queue"
)

// testConcurrent: publishers on several handles insert while one consumer fetches and acknowledges. Every message arrives, once per
// insert, and each producer's messages in order.
func testConcurrent(t *testing.T, open func(t *testing.T) queue.Queue) {
	const publishers, batches, size = 4, 20, 25
	var wg sync.WaitGroup
	for p := range publishers {
		q := open(t)
		wg.Go(func() {
			for b := range batches {
				var msgs []queue.Message
				for n := b*size + 1; n <= (b+1)*size; n++ {
					msgs = append(msgs, queue.Message{ID: id(b, uint64(p+1), uint64(n)), Payload: fmt.Appendf(nil, "%d/%d", p+1, n)})
				}
				if err := q.Insert(t.Context(), "orders", msgs); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	q := open(t)
	got := map[string]bool{}
	for finished := false; ; {
		select {
		case <-done:
			finished = true
		default:
		}
		msgs := mustFetch(t, q, "orders", queue.ID{}, queue.Limit{Messages: 64})
		if len(msgs) == 0 && finished {
			break
		}
		for i, m := range msgs {
			if i > 0 && m.ID.Compare(msgs[i-1].ID) <= 0 {
				t.Fatalf("%v after %v", m.ID, msgs[i-1].ID)
			}
			if want := fmt.Sprintf("%d/%d", m.ID.Producer(), m.ID.N()); string(m.Payload) != want || got[want] {
				t.Fatalf("payload %q of %s, seen before: %v", m.Payload, want, got[want])
			}
			got[string(m.Payload)] = true
		}
		mustAck(t, q, "orders", ids(msgs))
	}
	if len(got) != publishers*batches*size {
		t.Errorf("got %d messages, want %d", len(got), publishers*batches*size)
	}
}

// testVisibleInOrder: while a batch is inserted, and while a retry of it is, a reader never sees a message without those before it.
// Otherwise a consumer would declare a gap for a message that is on its way.
func testVisibleInOrder(t *testing.T, open func(t *testing.T) queue.Queue) {
	const rounds, size = 8, 200
	writer, rival, reader := open(t), open(t), open(t)
	ctx := t.Context()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			highest := map[uint64]uint64{}
			msgs, err := reader.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 100_000})
			if err != nil {
				t.Error(err)
				return
			}
			// rule: one read in ID order. Of each producer it returns a prefix.
			for _, m := range msgs {
				p := m.ID.Producer()
				if m.ID.N() != highest[p]+1 {
					t.Errorf("producer %d: n=%d is visible, %d is not", p, m.ID.N(), highest[p]+1)
					return
				}
				highest[p] = m.ID.N()
			}
		}
	})
	for round := range rounds {
		var msgs []queue.Message
		for n := 1; n <= size; n++ {
			msgs = append(msgs, queue.Message{ID: id(round, uint64(round+1), uint64(n)), Payload: []byte("x")})
		}
		var both sync.WaitGroup
		for i, q := range []queue.Queue{writer, rival} { // a late attempt and its retry
			both.Go(func() {
				if err := q.Insert(ctx, "orders", msgs[:size/(2-i)]); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
	close(stop)
	wg.Wait()
	if got := fetchAll(t, reader, "orders"); len(got) != rounds*size {
		t.Errorf("%d messages, want %d", len(got), rounds*size)
	}
}

// testPublisher: a Publisher on this backend keeps its guarantees when answers are lost.
func testPublisher(t *testing.T, open func(t *testing.T) queue.Queue) {
	q := open(t)
	rng := rand.New(rand.NewPCG(5, 6))
	var mu sync.Mutex
	faulty := &Faulty{Queue: q, Next: func(op Op, _ string, n int) Fault {
		mu.Lock()
		defer mu.Unlock()
		if op != OpInsert || rng.IntN(3) > 0 {
			return Fault{}
		}
		return Fault{Kind: []Kind{LostAnswer, Lost, Partial}[rng.IntN(3)], Keep: rng.IntN(n + 1)}
	}}
	p, err := queue.NewPublisher(t.Context(), faulty, queue.PublisherOptions{BatchMessages: 50})
	if err != nil {
		t.Fatal(err)
	}
	const total = 400
	var oracle Oracle
	for i := range total {
		payload := fmt.Appendf(nil, "payload %d", i)
		if err := p.Send(t.Context(), queue.Message{Type: "orders", Payload: payload}, func(r queue.Result) {
			oracle.Report("test", "orders", payload, r)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := fetchAll(t, q, "orders")
	for i, m := range got {
		oracle.Observe(m)
		if want := fmt.Sprintf("payload %d", i); string(m.Payload) != want {
			t.Fatalf("at %d: %s", i, m.Payload)
		}
	}
	if err := oracle.Check(); err != nil || len(got) != total {
		t.Errorf("%d messages, %v", len(got), err)
	}
	if types, err := q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"orders"}) {
		t.Errorf("Types = %v, %v", types, err)
	}
}
