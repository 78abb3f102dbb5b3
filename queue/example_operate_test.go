package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
)

// openWith is open, with some pending orders.
func openWith(ctx context.Context, orders ...string) (*fencepost.Backend, *queue.Publisher, func()) {
	b, remove := open(ctx)
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{BacklogWait: -1})
	if err != nil {
		log.Fatal(err)
	}
	for _, order := range orders {
		if _, err := p.Publish(ctx, "orders", []byte(order), nil); err != nil {
			log.Fatal(err)
		}
	}
	return b, p, func() {
		_ = p.Close(ctx)
		remove()
	}
}

// Pause publishing of a type: publishers refuse its messages within two seconds, and say why.
func ExampleSettings_pause() {
	ctx := context.Background()
	b, p, remove := openWith(ctx)
	defer remove()

	paused := true
	set, err := b.Queue.PatchSettings(ctx, "orders", queue.SettingsPatch{PublishPaused: &paused, Why: "stocktaking"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("paused:", set.PublishPaused, "because of", set.Why)
	_, err = p.Publish(ctx, "orders", []byte("chair"), nil)
	fmt.Println(errors.Is(err, queue.ErrPaused))
	// Output:
	// paused: true because of stocktaking
	// true
}

// Bound the backlog of a type: publishers wait for room, here not at all (BacklogWait: -1).
func ExampleSettings_backlog() {
	ctx := context.Background()
	b, p, remove := openWith(ctx)
	defer remove()

	most := 1
	if _, err := b.Queue.PatchSettings(ctx, "orders", queue.SettingsPatch{MaxBacklog: &most}); err != nil {
		log.Fatal(err)
	}
	_, err := p.Publish(ctx, "orders", []byte("chair"), nil)
	fmt.Println(err)
	_, err = p.Publish(ctx, "orders", []byte("table"), nil)
	fmt.Println(errors.Is(err, queue.ErrBacklogFull))
	// Output:
	// <nil>
	// true
}

// The settings of all types in one read.
func ExampleSettingsStore() {
	ctx := context.Background()
	b, _, remove := openWith(ctx)
	defer remove()

	yes, most := true, 1000
	for typ, change := range map[string]queue.SettingsPatch{"orders": {MaxBacklog: &most}, "audit": {DrainPaused: &yes}} {
		if _, err := b.Queue.PatchSettings(ctx, typ, change); err != nil {
			log.Fatal(err)
		}
	}
	all, err := b.Queue.AllSettings(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(all), "types, at most", all["orders"].MaxBacklog, "orders, audit is drained:", !all["audit"].DrainPaused)
	// Output: 2 types, at most 1000 orders, audit is drained: false
}

// How much is pending of each type, without counting millions.
func ExampleDepth() {
	ctx := context.Background()
	b, _, remove := openWith(ctx, "chair", "table", "lamp")
	defer remove()

	types, err := b.Queue.Types(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, typ := range types {
		d, err := b.Queue.Depth(ctx, typ, 2)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(typ, d.Pending, "and more:", d.Capped, "the oldest is new:", time.Since(d.Oldest.Time()) < time.Hour)
	}
	// Output: orders 2 and more: true the oldest is new: true
}

// Read pending messages, and remove them, as workers do. Fetch hides nothing, Ack removes.
func ExampleQueue() {
	ctx := context.Background()
	b, _, remove := openWith(ctx, "chair", "table", "lamp")
	defer remove()

	var after queue.ID // the zero ID: from the start
	for {
		msgs, err := b.Queue.Fetch(ctx, "orders", after, queue.Limit{Messages: 2})
		if err != nil {
			log.Fatal(err)
		}
		if len(msgs) == 0 {
			break
		}
		for _, m := range msgs {
			fmt.Println(m.ID.N(), string(m.Payload))
			after = m.ID
		}
		if err := b.Queue.Ack(ctx, "orders", []queue.ID{after}); err != nil {
			log.Fatal(err)
		}
	}
	d, err := b.Queue.Depth(ctx, "orders", 10)
	fmt.Println(d.Pending, "left", err)
	// Output:
	// 1 chair
	// 2 table
	// 3 lamp
	// 1 left <nil>
}

// bury makes dead letters of all pending orders, as a worker does with messages that its handler cannot handle.
func bury(ctx context.Context, q queue.Queue, reason string) {
	msgs, err := q.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 100})
	if err != nil {
		log.Fatal(err)
	}
	var letters []queue.DeadLetter
	for _, m := range msgs {
		letters = append(letters, queue.DeadLetter{Message: m, Reason: reason, Attempts: 5, Worker: "w1"})
	}
	if err := q.MoveToDeadLetters(ctx, "orders", letters); err != nil {
		log.Fatal(err)
	}
}

// List dead letters: of a type, of a time, or with a reason.
func ExampleDeadLetters() {
	ctx := context.Background()
	b, _, remove := openWith(ctx, "chair", "table")
	defer remove()
	bury(ctx, b.Queue, "no such customer")

	filter := queue.DeadLetterFilter{Type: "orders", Reason: "customer", Since: time.Now().Add(-time.Hour)}
	for l, err := range queue.DeadLetters(ctx, b.Queue, filter) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s, after %d attempts\n", l.Payload, l.Reason, l.Attempts)
	}
	// Output:
	// chair: no such customer, after 5 attempts
	// table: no such customer, after 5 attempts
}

// Publish dead letters again, once the fault is repaired. They go to the end of their type's messages, under new IDs.
func ExampleRequeue() {
	ctx := context.Background()
	b, p, remove := openWith(ctx, "chair", "table")
	defer remove()
	bury(ctx, b.Queue, "no such customer")

	var letters []queue.DeadLetter
	for l, err := range queue.DeadLetters(ctx, b.Queue, queue.DeadLetterFilter{Type: "orders"}) {
		if err != nil {
			log.Fatal(err)
		}
		letters = append(letters, l)
	}
	n, err := queue.Requeue(ctx, b.Queue, p, letters)
	if err != nil {
		log.Fatal(err)
	}
	d, err := b.Queue.Depth(ctx, "orders", 10)
	fmt.Println(n, "requeued,", d.Pending, "pending", err)
	// Output: 2 requeued, 2 pending <nil>
}

// Remove dead letters that are no longer needed.
func ExampleDeadLetterStore() {
	ctx := context.Background()
	b, _, remove := openWith(ctx, "chair", "table")
	defer remove()
	bury(ctx, b.Queue, "no such customer")

	dead, err := b.Queue.DeadLetters(ctx, "orders", queue.ID{}, queue.Limit{Messages: 10})
	if err != nil {
		log.Fatal(err)
	}
	if err := b.Queue.RemoveDeadLetters(ctx, "orders", []queue.ID{dead[0].ID}); err != nil {
		log.Fatal(err)
	}
	dead, err = b.Queue.DeadLetters(ctx, "orders", queue.ID{}, queue.Limit{Messages: 10})
	fmt.Println(len(dead), "left:", string(dead[0].Payload), err)
	// Output: 1 left: table <nil>
}

// Empty a type by hand. A dry run reports what it would remove.
func ExamplePurge() {
	ctx := context.Background()
	b, _, remove := openWith(ctx, "chair", "table")
	defer remove()

	for _, dryRun := range []bool{true, false} {
		p, err := queue.Purge(ctx, b.Queue, "orders", time.Now().Add(time.Minute), dryRun)
		if err != nil {
			log.Fatal(err)
		}
		d, err := b.Queue.Depth(ctx, "orders", 10)
		fmt.Println(p.Messages, "messages,", p.Bytes, "bytes,", d.Pending, "left", err)
	}
	// Output:
	// 2 messages, 10 bytes, 2 left <nil>
	// 2 messages, 10 bytes, 0 left <nil>
}

// An ID says when a message was published, by which publisher, and its number there.
func ExampleParseID() {
	at := time.Date(2026, time.May, 4, 3, 2, 1, 0, time.UTC)
	text := queue.NewID(at, 7, 12).String()
	id, err := queue.ParseID(text)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(text), id.Time().UTC().Format(time.DateTime), id.Producer(), id.N())
	// Output: 32 2026-05-04 03:02:01 7 12
}
