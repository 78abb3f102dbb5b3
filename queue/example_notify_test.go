package queue_test

import (
	"context"
	"fmt"
	"log"
)

// A publisher notifies readers of the types for which it has stored messages.
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
	if err := p.Close(ctx); err != nil { // or wait for a few milliseconds
		log.Fatal(err)
	}
	news, err := b.Queue.Notifications(ctx, before.Next)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("new messages:", news.Types)
	// A check of all types finds messages that were not announced.
	pending, err := b.Queue.PendingTypes(ctx)
	fmt.Println("pending:", pending, err)
	// Output:
	// new messages: [orders]
	// pending: [orders] <nil>
}
