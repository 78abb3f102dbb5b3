package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
)

// open opens, by URL, a database that is removed at the end of the example.
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

// Publish reports the outcome of the message: stored, not stored, or, after ten minutes without an answer from the
// server, unknown.
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

// A stream of messages that is larger than the memory: Send waits only when the buffer is full.
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

// Every message says where it comes from, and messages without a payload are refused.
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

// Headers are text that accompanies the payload. They are stored with it, and stay in the type's file.
func ExamplePublisher_Publish_headers() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	headers := map[string]string{"content-type": "application/json", "customer": "ann"}
	if _, err := p.Publish(ctx, "orders", []byte(`{"item":"chair"}`), headers); err != nil {
		log.Fatal(err)
	}
	msgs, err := b.Queue.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(msgs[0].Headers["customer"], string(msgs[0].Payload))
	// Output: ann {"item":"chair"}
}

// A delayed message waits outside its type's messages until it is due. Then a worker moves it to their end.
func ExamplePublisher_PublishAfter() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	if _, err := p.PublishAfter(ctx, time.Hour, "reminders", []byte("pay the chair"), nil); err != nil {
		log.Fatal(err)
	}
	depth, err := b.Queue.Depth(ctx, "reminders", 10)
	if err != nil {
		log.Fatal(err)
	}
	due, ok, err := b.Queue.NextDue(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("pending:", depth.Pending, "delayed:", ok, "due within the hour:", time.Until(due) <= time.Hour)
	// Output: pending: 0 delayed: true due within the hour: true
}

// A delayed message can be cancelled until it is due.
func ExamplePublisher_PublishAt() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	newYear := time.Date(2100, time.January, 1, 0, 0, 0, 0, time.UTC)
	id, err := p.PublishAt(ctx, newYear, "greetings", []byte("happy new year"), nil)
	if err != nil {
		log.Fatal(err)
	}
	delayed, err := b.Queue.Delayed(ctx, queue.ScheduleKey{}, queue.Limit{Messages: 10})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(delayed[0].Due.UTC().Format(time.DateOnly), string(delayed[0].Payload))
	n, err := b.Queue.CancelDelayed(ctx, []queue.ScheduleKey{{Due: newYear, Type: "greetings", ID: id}})
	fmt.Println(n, "cancelled", err)
	// Output:
	// 2100-01-01 happy new year
	// 1 cancelled <nil>
}

// An import that dies is continued by its next run. It saves a checkpoint before each batch, and the next run begins with the messages
// that the dead one may have stored: they get the same IDs, so none is stored twice.
func ExampleResume() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	input := []string{"chair", "table", "lamp", "desk"}

	var saved struct { // a program writes it to a file, and syncs that
		checkpoint queue.Checkpoint
		lines      int // that are stored: the checkpoint's N is not a position in the input
	}
	publish := func(lines []string) {
		stored := saved.lines
		resume := &queue.Resume{Type: "orders", From: saved.checkpoint, Save: func(c queue.Checkpoint) error {
			saved.checkpoint, saved.lines = c, stored
			return nil
		}}
		p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{Resume: resume})
		if err != nil {
			log.Fatal(err)
		}
		for _, line := range lines[stored:] {
			if _, err := p.Publish(ctx, "orders", []byte(line), nil); err != nil {
				log.Fatal(err)
			}
			stored++
		}
		_ = p.Close(ctx)
	}
	publish(input[:3]) // dies after the third message, without knowing that it is stored
	publish(input)

	depth, err := b.Queue.Depth(ctx, "orders", 10)
	fmt.Println(depth.Pending, "messages", err)
	// Output: 4 messages <nil>
}

// What a publisher has done so far, for a log line or metrics.
func ExamplePublisher_Stats() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	p.PublishAll(ctx, []queue.Message{{Type: "orders", Payload: []byte("chair")}, {Type: "orders", Payload: []byte("table")}})
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}
	s := p.Stats()
	fmt.Println(s.Stored, "stored,", s.Unknown, "unknown,", s.Rejected, "rejected,", s.Buffered, "on their way")
	// Output: 2 stored, 0 unknown, 0 rejected, 0 on their way
}

// A handler can distinguish messages of transactions from those of publishers: they have no number, and so no place in an order.
func ExampleMessage_Loose() {
	m := queue.Message{Type: "orders", ID: queue.NewLooseID(time.Now()), Headers: map[string]string{queue.LooseHeader: queue.LooseValue}}
	fmt.Println(m.Loose(), m.ID.N())
	m.ID = queue.NewID(time.Now(), 7, 1) // it became a dead letter, and was requeued
	fmt.Println(m.Loose(), m.ID.N())
	// Output:
	// true 0
	// false 1
}
