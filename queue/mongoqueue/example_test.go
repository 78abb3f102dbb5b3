package mongoqueue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// A queue in MongoDB. What publishers and workers do with it is the same as with any other.
func ExampleOpen() {
	ctx := context.Background()
	q, err := mongoqueue.Open(ctx, "mongodb://db1,db2,db3/shop?replicaSet=rs0", mongoqueue.Options{AppName: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	p, err := queue.NewPublisher(ctx, q, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	id, err := p.Publish(ctx, "orders", []byte("chair"), nil) // nil error: a majority has it
	fmt.Println(id, err)
}

// A program that starts before its server waits for it. What a person has to correct, such as a wrong URL, fails at once.
func ExampleOpen_unreachable() {
	_, err := mongoqueue.Open(context.Background(), "mongodb://127.0.0.1:1/shop", mongoqueue.Options{ConnectTimeout: 100 * time.Millisecond})
	fmt.Println("try again:", errors.Is(err, queue.ErrUnreachable))
	_, err = mongoqueue.Open(context.Background(), "postgres://127.0.0.1/shop", mongoqueue.Options{})
	fmt.Println("correct it:", errors.Is(err, queue.ErrInvalidURL))
	// Output:
	// try again: true
	// correct it: true
}
