package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/workertest"
)

// open opens a database in a temporary directory that remove deletes.
func open(ctx context.Context) (b *fencepost.Backend, dir string, remove func()) {
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	b, err = fencepost.Open(ctx, "sqlite://"+filepath.Join(dir, "fencepost.db"))
	if err != nil {
		log.Fatal(err)
	}
	return b, dir, func() {
		_ = b.Close(ctx)
		_ = os.RemoveAll(dir)
	}
}

// publish publishes orders.
func publish(ctx context.Context, b *fencepost.Backend, payloads ...string) {
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	for _, payload := range payloads {
		if _, err := p.Publish(ctx, "orders", []byte(payload), nil); err != nil {
			log.Fatal(err)
		}
	}
}

// drain publishes some orders and runs a worker until they are settled.
func drain(cfg worker.Config, payloads ...string) error {
	ctx := context.Background()
	b, _, remove := open(ctx)
	defer remove()
	publish(ctx, b, payloads...)
	cfg.Queue, cfg.Locker, cfg.Types, cfg.UntilEmpty = b.Queue, b.Locker, []string{"orders"}, true
	pool, err := worker.New(cfg)
	if err != nil {
		return err
	}
	if err := pool.Run(ctx); err != nil {
		return err
	}
	for l, err := range queue.DeadLetters(ctx, b.Queue, queue.DeadLetterFilter{Type: "orders"}) {
		if err != nil {
			return err
		}
		fmt.Printf("dead: %s: %s\n", l.Payload, l.Reason)
	}
	return nil
}

// Handle one message at a time.
func ExampleEach() {
	ship := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		fmt.Println("ship", string(m.Payload))
		return nil
	})
	if err := drain(worker.Config{To: worker.Handling{Handler: ship}}, "chair", "table"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ship chair
	// ship table
}

// Handle a batch at a time. The store refuses fencing tokens smaller than the greatest it has seen.
func ExampleHandlerFunc() {
	var highest int64
	store := map[queue.ID]string{}
	save := worker.HandlerFunc(func(_ context.Context, lease worker.Lease, msgs []queue.Message) error {
		if lease.Token() < highest {
			return errors.New("another worker has taken over")
		}
		highest = lease.Token()
		for _, m := range msgs {
			store[m.ID] = string(m.Payload) // by ID: a second delivery changes nothing
		}
		return nil
	})
	if err := drain(worker.Config{To: worker.Handling{Handler: save}}, "chair", "table", "lamp"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(len(store), "orders")
	// Output: 3 orders
}

// Handle customers concurrently, the orders of each customer in order.
func ExampleKeyed() {
	var mu sync.Mutex
	orders := map[string][]string{}
	customer := func(m queue.Message) string { c, _, _ := strings.Cut(string(m.Payload), ":"); return c }
	note := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		mu.Lock()
		defer mu.Unlock()
		orders[customer(m)] = append(orders[customer(m)], string(m.Payload))
		return nil
	})
	if err := drain(worker.Config{To: worker.Handling{Handler: worker.Keyed(customer, 8, note)}}, "ann:chair", "bob:lamp", "ann:table"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(orders["ann"], orders["bob"])
	// Output: [ann:chair ann:table] [bob:lamp]
}

// A message that cannot be handled becomes a dead letter, and the messages after it continue.
func ExamplePermanent() {
	ship := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		if len(m.Payload) == 0 {
			return worker.Permanent(errors.New("an order for nothing"))
		}
		fmt.Println("ship", string(m.Payload))
		return nil
	})
	if err := drain(worker.Config{To: worker.Handling{Handler: ship}, OnError: worker.DeadLetter}, "chair", "", "table"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ship chair
	// ship table
	// dead: : an order for nothing
}

func ExampleMiddleware() {
	counted := func(h worker.Handler) worker.Handler {
		return worker.HandlerFunc(func(ctx context.Context, lease worker.Lease, msgs []queue.Message) error {
			err := h.Handle(ctx, lease, msgs)
			fmt.Println(len(msgs), "messages of type", lease.Name(), "handled, error:", err)
			return err
		})
	}
	ship := worker.Each(func(context.Context, worker.Lease, queue.Message) error { return nil })
	if err := drain(worker.Config{To: worker.Handling{Handler: ship, Use: []worker.Middleware{counted}}}, "chair", "table"); err != nil {
		fmt.Println(err)
	}
	// Output: 2 messages of type orders handled, error: <nil>
}

// A message that fails is retried with growing pauses, and the messages after it wait. After MaxAttempts it becomes a dead letter.
func ExampleOnError() {
	attempts := map[string]int{}
	ship := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		order := string(m.Payload)
		if attempts[order]++; order == "lamp" || order == "table" && attempts[order] == 1 {
			return errors.New("the shop does not answer")
		}
		fmt.Println("ship", order, "at attempt", attempts[order])
		return nil
	})
	err := drain(worker.Config{
		To: worker.Handling{Handler: ship}, OnError: worker.DeadLetter, MaxAttempts: 3, // worker.Block would retry indefinitely
		RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, // default to a second and a minute
	}, "chair", "table", "lamp")
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// ship chair at attempt 1
	// ship table at attempt 2
	// dead: lamp: the shop does not answer
}

// A handler of batches reports which messages failed. Otherwise a failed batch is divided until the failing message is found.
func ExampleBatchError() {
	insert := worker.HandlerFunc(func(_ context.Context, _ worker.Lease, msgs []queue.Message) error {
		errs := make([]error, len(msgs))
		failed := false
		for i, m := range msgs {
			if len(m.Payload) == 0 {
				errs[i], failed = worker.Permanent(errors.New("an order for nothing")), true
				continue
			}
			fmt.Println("insert", string(m.Payload))
		}
		if failed {
			return &worker.BatchError{Errs: errs}
		}
		return nil
	})
	if err := drain(worker.Config{To: worker.Handling{Handler: insert}, OnError: worker.DeadLetter}, "chair", "", "table"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// insert chair
	// insert table
	// dead: : an order for nothing
}

// A destination that keeps the greatest token refuses a holder that was paused for too long. The handler reports that as ErrFenced: no
// message is blamed for it.
func ExampleFencedAbove() {
	var greatest int64 // in the destination
	save := worker.Each(func(_ context.Context, lease worker.Lease, m queue.Message) error {
		if lease.Token() < greatest {
			return worker.FencedAbove(greatest)
		}
		greatest = lease.Token()
		return nil
	})
	for _, token := range []int64{1, 2, 1} { // the first holder resumes late
		err := save.Handle(context.Background(), workertest.Lease{Type: "orders", Number: token}, make([]queue.Message, 1))
		fmt.Println("token", token, "is fenced:", errors.Is(err, worker.ErrFenced))
	}
	// Output:
	// token 1 is fenced: false
	// token 2 is fenced: false
	// token 1 is fenced: true
}
