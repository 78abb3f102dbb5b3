package queue_test

import (
	"context"
	"fmt"
	"log"
)

// A publisher notifies whoever listens of the types into which it has stored something.
func ExampleNotificationStore() {
	ctx := context.Background()
	b, p, remove := openWith(ctx)
	defer remove()

	before, err := b.Queue.Notifications(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := p.Publish(ctx, "orders", []byte("chair"), nil); err != nil {
		log.Fatal(err)
	}
	if err := p.Close(ctx); err != nil { // or wait for some milliseconds
		log.Fatal(err)
	}
	news, err := b.Queue.Notifications(ctx, before.Next)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("new messages:", news.Types)
	// A look at all types finds what was not announced.
	pending, err := b.Queue.PendingTypes(ctx)
	fmt.Println("pending:", pending, err)
	// Output:
	// new messages: [orders]
	// pending: [orders] <nil>
}
