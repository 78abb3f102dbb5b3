package mongoslots_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
)

// Slots in a database of their own.
func ExampleOpen() {
	ctx := context.Background()
	s, err := mongoslots.Open(ctx, "mongodb://db1,db2,db3/shop?replicaSet=rs0", mongoslots.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	switch err := s.Create(ctx, "orders/1", []byte("chair")); {
	case err == nil:
		fmt.Println("a majority has it, on disk")
	case errors.Is(err, fs.ErrExist):
		fmt.Println("a majority has another one")
	default:
		fmt.Println("perhaps:", err)
	}
}

// Slots over an existing client of the application. The collection is checked before its first
// use.
func ExampleNew() {
	ctx := context.Background()
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://db1,db2,db3/?replicaSet=rs0"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Disconnect(ctx)
	s, err := mongoslots.New(client.Database("shop"), mongoslots.Options{Collection: "log"})
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Check(ctx); err != nil {
		log.Fatal(err)
	}
	list, err := s.List(ctx, "orders")
	fmt.Println(list, err)
}

// A mistake that an operator has to correct causes a [*slots.RefusedError] with the remedy. It
// contains no secret.
func ExampleOpen_refused() {
	_, err := mongoslots.Open(context.Background(), "mongodb://bob:s3cret@db1/local", mongoslots.Options{})
	fmt.Println(err)
	var refused *slots.RefusedError
	fmt.Println(errors.As(err, &refused))
	// Output:
	// mongodb://db1/local.slots: the database local is the server's own; name another one
	// true
}
