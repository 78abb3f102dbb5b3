package sqlitequeue_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
)

// A queue in a file, for the programs of one machine. fencepost.Open opens it together with its locks.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	q, err := sqlitequeue.Open(ctx, filepath.Join(dir, "queue.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()

	p, err := queue.NewPublisher(ctx, q, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	if _, err := p.Publish(ctx, "orders", []byte("chair"), nil); err != nil {
		log.Fatal(err)
	}
	types, err := q.Types(ctx)
	fmt.Println(types, err)
	// Output: [orders] <nil>
}
