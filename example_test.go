package fencepost_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// Publish two messages, drain them into their type's file, and read the file.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// The embedded backend; on MongoDB only the URL differs.
	b, err := fencepost.Open(ctx, "sqlite://"+filepath.Join(dir, "queue.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close(ctx)

	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, order := range []string{"two apples", "one pear"} {
		// A nil error means that the message is stored durably.
		if _, err := p.Publish(ctx, "orders", []byte(order), nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}

	pool, err := worker.New(worker.Config{
		Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, Storage: storage.Options{AllowOverlay: true}}, Types: []string{"orders"}, UntilEmpty: true,
		// a container's own layer is good enough for an example
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := pool.Run(ctx); err != nil {
		log.Fatal(err)
	}

	r, err := storage.OpenReader(filepath.Join(dir, storage.FileName("orders")), storage.ReaderOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", rec.Index, rec.Payload)
	}

	// Output:
	// 0: two apples
	// 1: one pear
}

// The URL selects the backend. Errors about the URL are returned immediately and never contain its
// password.
func ExampleOpen() {
	ctx := context.Background()
	_, err := fencepost.Open(ctx, "postgres://user:secret@db/shop")
	fmt.Println(errors.Is(err, fencepost.ErrURL), strings.Contains(err.Error(), "secret"))
	// Output: true false
}

// Redact strips user, password and options, for log lines.
func ExampleRedact() {
	fmt.Println(fencepost.Redact("mongodb://user:secret@db1,db2/shop?replicaSet=rs0"))
	// Output: mongodb://db1,db2/shop
}
