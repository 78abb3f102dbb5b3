package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// List the locks and their holders.
func ExampleLocker_List() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	lease, err := locker.Acquire(ctx, "report/7", lock.WithWhy("export"))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	records, err := locker.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range records {
		fmt.Println(r.Name, "held:", r.Held(), "for:", r.Hold.Why, "token as granted:", r.Token == lease.Token())
	}
	// Output: report/7 held: true for: export token as granted: true
}

// Ask a holder to release its lock soon.
func ExampleLocker_RequestRelease() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	lease, err := locker.Acquire(ctx, "report/7", lock.WithLease(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}

	if err := locker.RequestRelease(ctx, "report/7", "a deployment"); err != nil {
		log.Fatal(err)
	}
	<-lease.ReleaseRequested() // closed at the holder's next renewal, within a fifth of the lease
	fmt.Println("asked for", lease.RequestReason())
	fmt.Println(lease.Release(ctx))
	// Output:
	// asked for a deployment
	// <nil>
}

// Take a lock away from a holder that hangs. The holder sees the loss at its next renewal; a later holder has a greater token at once.
func ExampleLocker_ForceRelease() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	hangs, err := locker.Acquire(ctx, "report/7", lock.WithLease(lock.MinLease))
	if err != nil {
		log.Fatal(err)
	}

	if err := locker.ForceRelease(ctx, "report/7", "it hangs"); err != nil {
		log.Fatal(err)
	}
	next, err := locker.TryAcquire(ctx, "report/7")
	if err != nil {
		log.Fatal(err)
	}
	defer next.Release(ctx)
	<-hangs.Lost()
	fmt.Println(next.Token() > hangs.Token(), errors.Is(context.Cause(hangs.Context()), lock.ErrLost))
	// Output: true true
}

// Check a lock right before a write under it, and pass its token along: a store that remembers the greatest token refuses late writers.
func ExampleLease_Token() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	var greatest int64 // in the store
	write := func(lease *lock.Lease) error {
		if lease.Token() < greatest {
			return errors.New("refused: there is a later holder")
		}
		greatest = lease.Token()
		return nil
	}

	late, err := locker.Acquire(ctx, "report/7")
	if err != nil {
		log.Fatal(err)
	}
	_ = late.Release(ctx) // here it releases; a paused holder does not know that it has lost the lock
	current, err := locker.Acquire(ctx, "report/7")
	if err != nil {
		log.Fatal(err)
	}
	defer current.Release(ctx)
	fmt.Println(write(current), write(late))
	// Output: <nil> refused: there is a later holder
}

// Two objects without a common root are locked together.
func ExampleAll() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	from := lock.Node{Scope: "order", Key: "17"}
	to := lock.Node{Scope: "order", Key: "18"}

	move := func(context.Context) error { fmt.Println("the item moves"); return nil }
	g := lock.NewGraph(locker)
	roots, err := g.Roots(ctx, lock.All(from, to))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(roots, g.Do(ctx, lock.All(from, to), move))
	// Output:
	// the item moves
	// [order/17 order/18] <nil>
}

// A lock per key inside the process, if it is free.
func ExampleKeyed_TryLock() {
	var locks lock.Keyed[string]
	unlock, ok := locks.TryLock("payment/17")
	_, again := locks.TryLock("payment/17")
	unlock()
	fmt.Println(ok, again, locks.Len())
	// Output: true false 0
}
