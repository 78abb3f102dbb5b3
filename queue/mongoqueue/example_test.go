package mongoqueue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// A queue in MongoDB. Publishers and workers use it like any other.
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

// An order and its event, both or neither. The program may have a client of its own for the same server.
func ExampleQueue_PublishInTransaction() {
	ctx := context.Background()
	const url = "mongodb://db1,db2,db3/shop?replicaSet=rs0"
	q, err := mongoqueue.Open(ctx, url, mongoqueue.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	client, err := mongo.Connect(options.Client().ApplyURI(url))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Disconnect(ctx)
	session, err := client.StartSession()
	if err != nil {
		log.Fatal(err)
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) { // may run more than once
		if _, err := client.Database("shop").Collection("orders").InsertOne(ctx, bson.D{{Key: "item", Value: "chair"}}); err != nil {
			return nil, err
		}
		return q.PublishInTransaction(ctx, queue.Message{Type: "orders", Payload: []byte("chair")})
	})
	fmt.Println(err) // nil: a majority has both
}

// A program that starts before its server waits for it. A permanent error, such as a wrong URL, is reported at once.
func ExampleOpen_unreachable() {
	_, err := mongoqueue.Open(context.Background(), "mongodb://127.0.0.1:1/shop", mongoqueue.Options{ConnectTimeout: 100 * time.Millisecond})
	fmt.Println("try again:", errors.Is(err, queue.ErrUnreachable))
	_, err = mongoqueue.Open(context.Background(), "postgres://127.0.0.1/shop", mongoqueue.Options{})
	fmt.Println("correct it:", errors.Is(err, queue.ErrInvalidURL))
	// Output:
	// try again: true
	// correct it: true
}
