package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// A mutex per type: all users of the name take turns, on however many machines.
func ExampleLocker_Acquire() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	lease, err := locker.Acquire(ctx, "type/orders", lock.WithWhy("nightly export"))
	if err != nil {
		log.Fatal(err)
	}
	// Work under lease.Context(): it ends if the lock is lost. Pass lease.Token() to the resource you write to.
	fmt.Println(lease.Name(), "is held:", lease.Context().Err() == nil, "with a token:", lease.Token() > 0)
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: type/orders is held: true with a token: true
}

// Await a lock and do other work meanwhile: a goroutine waits, and no thread is blocked.
func ExampleLocker_Acquire_await() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	holder, err := locker.Acquire(ctx, "type/orders")
	if err != nil {
		log.Fatal(err)
	}

	acquired := make(chan *lock.Lease)
	go func() {
		lease, _ := locker.Acquire(ctx, "type/orders") // nil after an error, which a program must check
		acquired <- lease
	}()
	other := 0
	for {
		select {
		case lease := <-acquired:
			fmt.Println("acquired, and other work was done:", other > 0)
			_ = lease.Release(ctx)
			return
		case <-time.After(time.Millisecond):
			if other++; other == 3 {
				_ = holder.Release(ctx)
			}
		}
	}
	// Output: acquired, and other work was done: true
}

// Take a lock only if it is free; otherwise find out its holder.
func ExampleLocker_TryAcquire() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	holder, err := locker.Acquire(ctx, "approval/100", lock.WithWhy("approval by ann"))
	if err != nil {
		log.Fatal(err)
	}
	defer holder.Release(ctx)

	_, err = locker.TryAcquire(ctx, "approval/100")
	var held *lock.HeldError
	if errors.As(err, &held) {
		fmt.Println(held.Name, "is held for:", held.Why)
	}
	// Output: approval/100 is held for: approval by ann
}

// Wait for a lock, but not indefinitely.
func ExampleWithWait() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	holder, err := locker.Acquire(ctx, "approval/100")
	if err != nil {
		log.Fatal(err)
	}
	defer holder.Release(ctx)

	_, err = locker.Acquire(ctx, "approval/100", lock.WithWait(20*time.Millisecond))
	fmt.Println(errors.Is(err, lock.ErrHeld))
	// Output: true
}

// A lock with a maximum duration. A holder that hangs loses it after that, and the next one to acquire it takes it over: no cleanup job
// is needed.
func ExampleWithMaxHold() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()
	hangs, err := locker.Acquire(ctx, "approval/100", lock.WithLease(lock.MinLease), lock.WithMaxHold(100*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}

	lease, err := locker.Acquire(ctx, "approval/100")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	fmt.Println("the token is greater:", lease.Token() > hangs.Token())
	fmt.Println("the first one has lost it:", errors.Is(hangs.Check(0), lock.ErrLost))
	// Output:
	// the token is greater: true
	// the first one has lost it: true
}

// A lease is how long a lock outlives a dead holder. A live holder renews it.
func ExampleWithLease() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	lease, err := locker.Acquire(ctx, "report/7", lock.WithLease(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	fmt.Println(lease.Remaining() <= time.Minute, lease.Check(time.Second))
	// Output: true <nil>
}

// Waiters of all processes get the lock in turn, so that none of them waits indefinitely.
func ExampleWithFair() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	var served int
	var g sync.WaitGroup
	for range 3 { // three concurrent notifications of one payment
		g.Go(func() {
			err := locker.Do(ctx, "payment/17", func(context.Context) error {
				served++
				return nil
			}, lock.WithFair(), lock.WithWait(time.Minute))
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	g.Wait()
	fmt.Println(served, "are served")
	// Output: 3 are served
}

// Many readers, or one writer.
func ExampleWithShared() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	for range 2 {
		reader, err := locker.Acquire(ctx, "catalogue", lock.WithShared())
		if err != nil {
			log.Fatal(err)
		}
		defer reader.Release(ctx)
	}
	_, err := locker.TryAcquire(ctx, "catalogue")
	fmt.Println("a writer has to wait:", errors.Is(err, lock.ErrHeld))
	// Output: a writer has to wait: true
}

// A semaphore: at most two at a time.
func ExampleWithPermits() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	for i := range 3 {
		lease, err := locker.TryAcquire(ctx, "provider", lock.WithPermits(2))
		if errors.Is(err, lock.ErrHeld) {
			fmt.Println("call", i, "has to wait")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Release(ctx)
		fmt.Println("call", i)
	}
	// Output:
	// call 0
	// call 1
	// call 2 has to wait
}

// Several locks at once. Callers with overlapping names cannot deadlock.
func ExampleLocker_AcquireAll() {
	ctx := context.Background()
	locker, closeAll := openExample(ctx)
	defer closeAll()

	set, err := locker.AcquireAll(ctx, []string{"account/2", "account/1"}, lock.WithWait(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer set.Release(ctx)
	fmt.Println(len(set.Tokens()), "locks are held:", set.Check(0) == nil)
	// Output: 2 locks are held: true
}
