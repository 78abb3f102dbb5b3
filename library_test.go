package fencepost_test

import (
	"context"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

// The code shown in the README and docs/handlers.md, in this order: TestGoInDocumentsCompiles
// compares them.
var _ = []any{library, handlers}

func library(ctx context.Context, url string, msgs []queue.Message, msg queue.Message, note func(queue.Result)) error {
	b, err := fencepost.Open(ctx, url) // "" is embedded, as above; mongodb://… for many machines
	if err != nil {
		return err
	}
	defer b.Close(ctx)

	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		return err
	}
	id, err := p.Publish(ctx, "orders", []byte("chair"), nil) // nil error: stored, majority-acknowledged
	note(queue.Result{ID: id, Err: err})
	results := p.PublishAll(ctx, msgs) // many, of any types; each has an outcome
	note(results[0])
	err = p.Send(ctx, msg, func(r queue.Result) { note(r) }) // a stream of millions, with back-pressure
	if err != nil {
		return err
	}

	pool, err := worker.New(worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: "data"}, Types: []string{"orders"}})
	if err != nil {
		return err
	}
	err = pool.Run(ctx)
	return err
}

func handlers(ctx context.Context, b *fencepost.Backend, ship func(context.Context, []byte) error) error {
	pool, err := worker.New(worker.Config{
		Queue: b.Queue, Locker: b.Locker, Types: []string{"orders"},
		To: worker.Handling{Timeout: time.Minute, Handler: worker.Each(func(ctx context.Context, lease worker.Lease, m queue.Message) error {
			return ship(ctx, m.Payload)
		})},
		OnError: worker.DeadLetter, MaxAttempts: 5,
	})
	if err != nil {
		return err
	}
	return pool.Run(ctx)
}
