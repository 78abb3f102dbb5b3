package lock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/sqlitelock"
)

// A whole program: processes of one machine share a file. For many machines, open the store with
// mongolock.Open(ctx, "mongodb://…", "database", mongolock.Options{}).
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "fencepost-example-") // in a program: a directory that all processes know
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := sqlitelock.Open(ctx, filepath.Join(dir, "locks.db"))
	if err != nil {
		log.Fatal(err)
	}
	locker, err := lock.New(store, lock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)

	err = locker.Do(ctx, "report/7", func(ctx context.Context) error {
		// ctx ends if the lock is lost. Pass the token to what you write to.
		fmt.Println("held, with a token:", lock.From(ctx)["report/7"] > 0)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: held, with a token: true
}
