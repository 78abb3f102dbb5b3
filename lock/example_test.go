package lock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/sqlitelock"
)

// openExample returns a Locker on the embedded store. On MongoDB only the store differs.
func openExample(ctx context.Context) (l *lock.Locker, closeAll func()) {
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqlitelock.Open(ctx, filepath.Join(dir, "locks.db"))
	if err != nil {
		log.Fatal(err)
	}
	l, err = lock.New(store, lock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return l, func() {
		if err := l.Close(ctx); err != nil {
			log.Fatal(err)
		}
		_ = os.RemoveAll(dir)
	}
}

// Run a function under a lock. Functions that it calls can lock the same name again.
func ExampleLocker_Do() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	save := func(ctx context.Context) error {
		return locker.Do(ctx, "report", func(ctx context.Context) error {
			fmt.Println("saving with a token:", lock.From(ctx)["report"] > 0)
			return nil
		})
	}
	err := locker.Do(ctx, "report", func(ctx context.Context) error {
		fmt.Println("changing")
		return save(ctx) // does not block: ctx holds the lock
	})
	if err != nil {
		log.Fatal(err)
	}

	// Output:
	// changing
	// saving with a token: true
}

// An order and its items exclude each other, because the lock of an item is that of its order.
func ExampleGraph() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	// Here they are plain nodes. An application's types implement lock.Lockable, and look up their parents.
	order := lock.Node{Scope: "order", Key: "17"}
	item := lock.Node{Scope: "order-item", Key: "4", Parents: []lock.Lockable{order}}

	g := lock.NewGraph(locker)
	err := g.Do(ctx, item, func(ctx context.Context) error {
		held, err := g.Held(ctx, "order")
		if err != nil {
			return err
		}
		for _, r := range held {
			fmt.Println(r.Name, "is held", r.Hold.Why)
		}
		return g.Do(ctx, order, func(context.Context) error {
			fmt.Println("and again, by the same user")
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}

	// Output:
	// order/17 is held for order-item/4
	// and again, by the same user
}

// A lock per id, inside one process. Ids that are not in use cost nothing.
func ExampleKeyed() {
	var (
		locks  lock.Keyed[int]
		counts [3]int
		g      sync.WaitGroup
	)
	for i := range 30 {
		g.Go(func() {
			_ = locks.Do(context.Background(), i%3, func() error {
				counts[i%3]++
				return nil
			})
		})
	}
	g.Wait()
	fmt.Println(counts, locks.Len())

	// Output:
	// [10 10 10] 0
}
