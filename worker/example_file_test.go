package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// options suit an example: they accept a container's own file system. In production use the zero value.
var options = storage.Options{AllowOverlay: true}

// payloads returns the records in the file of orders.
func payloads(dir string) (all []string) {
	path := filepath.Join(dir, storage.FileName("orders"))
	_, err := storage.Verify(context.Background(), path, storage.VerifyOptions{Visit: func(r storage.Record) error {
		all = append(all, fmt.Sprintf("%s: %s", r.Kind, r.Payload))
		return nil
	}})
	if err != nil {
		log.Fatal(err)
	}
	return all
}

// run runs a pool until nothing is pending.
func run(ctx context.Context, cfg worker.Config) *worker.Pool {
	files := cfg.To.(worker.Files)
	files.Storage = options
	cfg.UntilEmpty, cfg.To = true, files
	pool, err := worker.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	if err := pool.Run(ctx); err != nil {
		log.Fatal(err)
	}
	return pool
}

// Drain each type into its own file until nothing is pending, as a batch job does.
func ExampleNew() {
	ctx := context.Background()
	b, dir, remove := open(ctx)
	defer remove()
	publish(ctx, b, "chair", "table")

	pool, err := worker.New(worker.Config{
		Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, Storage: options}, Types: []string{"orders", "audit-*"}, UntilEmpty: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := pool.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(pool.Stats().Appended, "appended:", payloads(dir))
	// Output: 2 appended: [message: chair message: table]
}

// Serve types until a signal or, here, a message arrives. Stop finishes the fetched messages and releases the types.
func ExamplePool_Stop() {
	ctx := context.Background()
	b, dir, remove := open(ctx)
	defer remove()

	pool, err := worker.New(worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, Storage: options}, Types: []string{"orders"}})
	if err != nil {
		log.Fatal(err)
	}
	committed, cancel := pool.Subscribe(1, worker.Committed)
	defer cancel()
	runCtx, abort := context.WithCancel(ctx)
	defer abort()
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(runCtx) }()
	publish(ctx, b, "chair")
	<-committed
	pool.Stop()
	grace := time.AfterFunc(20*time.Second, abort) // in case a Handler takes too long; nothing is lost, but it handles messages again
	defer grace.Stop()
	fmt.Println("ended:", <-ended)
	// Output: ended: <nil>
}

// Receive the events of the types. The pool never waits for this channel.
func ExamplePool_Subscribe() {
	ctx := context.Background()
	b, dir, remove := open(ctx)
	defer remove()
	publish(ctx, b, "chair", "table")

	pool, err := worker.New(worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, Storage: options}, Types: []string{"orders"}, UntilEmpty: true})
	if err != nil {
		log.Fatal(err)
	}
	events, cancel := pool.Subscribe(100, worker.Acquired, worker.Committed, worker.Released)
	defer cancel()
	go func() { _ = pool.Run(ctx) }()
	for e := range events { // closed when Run returns
		fmt.Println(e.Type, e.Kind, e.Messages)
	}
	// Output:
	// orders acquired 0
	// orders committed 2
	// orders released 0
}

// Show what a pool is doing with each type, for a status page.
func ExamplePool_Status() {
	ctx := context.Background()
	b, dir, remove := open(ctx)
	defer remove()
	publish(ctx, b, "chair", "table")

	pool := run(ctx, worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir}, Types: []string{"orders"}})
	for _, t := range pool.Status().Types {
		fmt.Println(t.Type, t.State, t.Index, filepath.Base(t.Path), "last error:", t.LastError == "")
	}
	// Output: orders waiting 2 orders.fpl last error: true
}

// Keep unwanted messages out of the file. A skip entry with the reason takes the message's place, and the message becomes a dead letter.
func ExampleConfig_filter() {
	ctx := context.Background()
	b, dir, remove := open(ctx)
	defer remove()
	publish(ctx, b, "chair", "<script>", "table")

	filter := func(m queue.Message) error {
		if strings.ContainsAny(string(m.Payload), "<>") {
			return errors.New("markup")
		}
		return nil
	}
	pool := run(ctx, worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, Filter: filter}, Types: []string{"orders"}})
	fmt.Println(strings.Join(payloads(dir), ", "), "dead:", pool.Stats().Dead)
	// Output: message: chair, skipped: markup, message: table dead: 1
}

// A message that is published twice, by a client that repeats its request, has the same idempotency key both times: the file gets the
// message once, and a skip entry in place of the copy.
func ExampleConfig_idempotencyKey() {
	ctx := context.Background()
	b, dir, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	for range 2 {
		if _, err := p.Publish(ctx, "orders", []byte("chair"), map[string]string{queue.KeyHeader: "request-17"}); err != nil {
			log.Fatal(err)
		}
	}

	pool := run(ctx, worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, DedupeWindow: time.Hour}, Types: []string{"orders"}})
	fmt.Println(pool.Stats().Repeated, "repeated")
	fmt.Println(strings.Join(payloads(dir), "\n"))
	// Output:
	// 1 repeated
	// message: chair
	// skipped: duplicate: a message with the idempotency key "request-17" was published before
}

// Compact a type while workers serve it: they stand by, then continue in the new file.
func ExampleRewrite() {
	ctx := context.Background()
	b, dir, remove := open(ctx)
	defer remove()
	cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, Storage: options}, Types: []string{"orders"}}
	for _, order := range []string{"chair", "table", "lamp"} {
		publish(ctx, b, order)
		run(ctx, cfg)
	}

	report, err := worker.Rewrite(ctx, cfg, "orders", worker.RewriteOptions{Wait: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Records, "records,", report.Batches, "batches become", report.NewBatches, "in", filepath.Base(report.Path))
	// Output: 3 records, 3 batches become 1 in orders@0002.fpl
}
