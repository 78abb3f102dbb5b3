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

// options are good enough for an example: a container's own file system is accepted. The zero value is for production.
var options = storage.Options{AllowOverlay: true}

// payloads returns what is in the file of orders.
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

// Drain types into a file each until nothing is pending, as a batch job does.
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

// Serve types until a signal or, here, a message comes. Stop finishes what was fetched and gives the types back.
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
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(ctx) }()
	publish(ctx, b, "chair")
	<-committed
	pool.Stop()
	fmt.Println("ended:", <-ended)
	// Output: ended: <nil>
}

// Hear what happens to the types. The pool never waits for this channel.
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

// Keep what must not get into the file out of it. A skip entry with the reason stands in its place, and the message is a dead letter.
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

// Messages that are published twice, by a client that repeats its request, have the same idempotency key: the file gets one of them,
// and a skip entry in the place of the other.
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

// Compact a type while workers serve it: they stand by, and go on in the new file.
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
