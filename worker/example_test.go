package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

// drain publishes some orders in a temporary database and runs a worker until they are settled.
func drain(cfg worker.Config, payloads ...string) error {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, err := fencepost.Open(ctx, "sqlite://"+filepath.Join(dir, "fencepost.db"))
	if err != nil {
		return err
	}
	defer b.Close(ctx)
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		return err
	}
	defer p.Close(ctx)
	for _, payload := range payloads {
		if _, err := p.Publish(ctx, "orders", []byte(payload), nil); err != nil {
			return err
		}
	}
	cfg.Queue, cfg.Locker, cfg.Types, cfg.UntilEmpty = b.Queue, b.Locker, []string{"orders"}, true
	pool, err := worker.New(cfg)
	if err != nil {
		return err
	}
	if err := pool.Run(ctx); err != nil {
		return err
	}
	for l, err := range queue.Letters(ctx, b.Queue, queue.DeadFilter{Type: "orders"}) {
		if err != nil {
			return err
		}
		fmt.Printf("dead: %s: %s\n", l.Payload, l.Reason)
	}
	return nil
}

// One message at a time.
func ExampleEach() {
	ship := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		fmt.Println("ship", string(m.Payload))
		return nil
	})
	if err := drain(worker.Config{Handler: ship}, "chair", "table"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ship chair
	// ship table
}

// A batch at a time, with the fencing token for a store that refuses smaller ones.
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
	if err := drain(worker.Config{Handler: save}, "chair", "table", "lamp"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(len(store), "orders")
	// Output: 3 orders
}

// Customers at the same time, the orders of each in order.
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
	if err := drain(worker.Config{Handler: worker.Keyed(customer, 8, note)}, "ann:chair", "bob:lamp", "ann:table"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(orders["ann"], orders["bob"])
	// Output: [ann:chair ann:table] [bob:lamp]
}

// What cannot be handled is put aside, and those behind it go on.
func ExamplePermanent() {
	ship := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		if len(m.Payload) == 0 {
			return worker.Permanent(errors.New("an order for nothing"))
		}
		fmt.Println("ship", string(m.Payload))
		return nil
	})
	if err := drain(worker.Config{Handler: ship, OnError: worker.DeadLetter}, "chair", "", "table"); err != nil {
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
	if err := drain(worker.Config{Handler: ship, Use: []worker.Middleware{counted}}, "chair", "table"); err != nil {
		fmt.Println(err)
	}
	// Output: 2 messages of type orders handled, error: <nil>
}
