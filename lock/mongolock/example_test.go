package mongolock_test

import (
	"context"
	"fmt"
	"log"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
)

// Locks over a connection of their own, for all machines that use the database.
func ExampleOpen() {
	ctx := context.Background()
	store, err := mongolock.Open(ctx, "mongodb://db1,db2,db3/?replicaSet=rs0", "shop", mongolock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	locker, err := lock.New(store, lock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	err = locker.Do(ctx, "report/7", func(ctx context.Context) error {
		fmt.Println("token", lock.From(ctx)["report/7"])
		return nil
	})
	fmt.Println(err)
}

// Locks over a client that the application already has.
func ExampleNew() {
	ctx := context.Background()
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://db1,db2,db3/?replicaSet=rs0"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Disconnect(ctx)
	store, err := mongolock.New(ctx, client.Database("shop"), mongolock.Options{Collection: "locks"})
	if err != nil {
		log.Fatal(err)
	}
	locker, err := lock.New(store, lock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	lease, err := locker.Acquire(ctx, "report/7")
	fmt.Println(lease, err)
}
