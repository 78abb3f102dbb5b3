package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
)

// open opens a database that is gone at the end of the example, by URL as everything does.
func open(ctx context.Context) (b *fencepost.Backend, remove func()) {
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	b, err = fencepost.Open(ctx, "sqlite://"+filepath.Join(dir, "queue.db"))
	if err != nil {
		log.Fatal(err)
	}
	return b, func() {
		_ = b.Close(ctx)
		_ = os.RemoveAll(dir)
	}
}

// What Publish says is what became of the message: stored, not stored, or, after ten minutes without an answer of the server,
// unknown.
func ExamplePublisher_Publish() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	id, err := p.Publish(ctx, "orders", []byte("chair"), map[string]string{"customer": "ann"})
	switch {
	case err == nil:
		fmt.Println("stored, number", id.N(), "of this publisher")
	case errors.Is(err, queue.ErrUnknown):
		fmt.Println("may be stored, as", id)
	default:
		fmt.Println("not stored:", err)
	}
	_, err = p.Publish(ctx, "Orders", nil, nil)
	fmt.Println(errors.Is(err, queue.ErrInvalidType))
	// Output:
	// stored, number 1 of this publisher
	// true
}

// Many messages share batches. Each has an outcome of its own.
func ExamplePublisher_PublishAll() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	results := p.PublishAll(ctx, []queue.Message{
		{Type: "orders", Payload: []byte("chair")},
		{Type: "orders", Payload: make([]byte, queue.MaxPayload+1)},
		{Type: "audit", Payload: []byte("ann ordered a chair")},
	})
	for i, r := range results {
		fmt.Println(i, r.Status, errors.Is(r.Err, queue.ErrTooLarge))
	}
	// Output:
	// 0 stored false
	// 1 rejected true
	// 2 stored false
}

// A stream of messages that is longer than the memory: Send waits only when the buffer is full.
func ExamplePublisher_Send() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{BufferBytes: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	var stored, failed atomic.Int64
	for i := range 5000 {
		err := p.Send(ctx, queue.Message{Type: "orders", Payload: fmt.Appendf(nil, "order %d", i)}, func(r queue.Result) {
			if r.Status == queue.Stored {
				stored.Add(1)
			} else {
				failed.Add(1)
			}
		})
		if err != nil {
			log.Fatal(err) // this one was not accepted
		}
	}
	if err := p.Close(ctx); err != nil { // waits for all outcomes
		log.Fatal(err)
	}
	fmt.Println(stored.Load(), "stored,", failed.Load(), "failed")
	// Output: 5000 stored, 0 failed
}

// Every message says where it comes from, and none without a payload leaves the house.
func ExampleMiddleware() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	stamp := func(_ context.Context, out *queue.Outgoing) {
		for i := range out.Len() {
			out.SetHeader(i, "source", "shop-1")
			if len(out.Message(i).Payload) == 0 {
				out.Refuse(i, errors.New("an order for nothing"))
			}
		}
		out.Settled(func(results []queue.Result) { fmt.Println("outcome:", results[0].Status) })
	}
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{Use: []queue.Middleware{stamp}})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	if _, err := p.Publish(ctx, "orders", []byte("chair"), nil); err != nil {
		log.Fatal(err)
	}
	_, err = p.Publish(ctx, "orders", nil, nil)
	fmt.Println(err)
	msgs, err := b.Queue.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 10})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range msgs {
		fmt.Println(string(m.Payload), m.Headers)
	}
	// Output:
	// outcome: stored
	// outcome: rejected
	// publish: not sent: an order for nothing
	// chair map[source:shop-1]
}
