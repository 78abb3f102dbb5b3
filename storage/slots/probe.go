package slots

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
)

const (
	racers      = 32
	probeFolder = ".probe" // no type has this name
)

// Probe tests whether a store meets the contract of [Store]: of 32 simultaneous creates of the same
// fresh name exactly one must succeed, a later create must fail, and the first value must
// exist. Probe leaves nothing behind. If the store has a method Check(context.Context) error, Probe
// calls it first.
//
// The error is a *RefusedError if the store violates the contract or refuses a request; otherwise
// it is the error of a request.
func Probe(ctx context.Context, s Store) error { return New(ctx, s).Probe() }

// Probe checks the store of the files, see [Probe].
func (f *FS) Probe() error {
	ctx, s := f.ctx, f.store
	if err := f.retry(0, func(ctx context.Context) error { return check(ctx, s) }); err != nil {
		return err
	}
	name := probeFolder + "/" + strings.ToLower(rand.Text())
	broken := func(format string, args ...any) error {
		return &RefusedError{Store: s.String(), Reason: fmt.Sprintf(format, args...),
			Remedy: "files in it could be damaged, so it is not used: choose another store, or remove the proxy or gateway between it and the clients"}
	}
	if _, err := f.read(name); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return err
		}
		return broken("it returned a value that was never created")
	}
	won, err := race(ctx, s, name)
	if err != nil {
		return err
	}
	switch _, err := f.read(name); {
	case errors.Is(err, fs.ErrNotExist):
		return broken("it did not return a value that was created a moment ago")
	case err != nil:
		return err
	}
	// rule: a later create is retried until its answer is clear. A store may reject all racers but one because they are too many, and
	// still replace an existing value.
	if err := f.create(name, []byte("a latecomer")); err != nil && !errors.Is(err, errTaken) {
		return err
	}
	there, err := f.read(name)
	if err != nil {
		return err
	}
	n, err := f.size(name)
	if err != nil {
		return err
	}
	if err := f.delete(name); err != nil {
		return err
	}
	switch {
	case len(won) != 1:
		return broken("of %d concurrent creates of the same value %d succeeded, and exactly one must", racers, len(won))
	case !bytes.Equal(there, won[0]):
		return broken("it replaced a value that was created before")
	case n != int64(len(there)):
		return broken("it says that a value of %d bytes has %d", len(there), n)
	}
	return nil
}

// check calls the store's own Check, if it has one.
func check(ctx context.Context, s Store) error {
	if c, ok := s.(interface{ Check(context.Context) error }); ok {
		return c.Check(ctx)
	}
	return nil
}

// race starts concurrent creates of the same name, and returns the values of those that succeeded.
func race(ctx context.Context, s Store, name string) (won [][]byte, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range racers {
		all.Go(func() {
			<-start
			ctx, cancel := context.WithTimeout(ctx, attempt)
			defer cancel()
			value := fmt.Appendf(nil, "racer %d", i)
			e := s.Create(ctx, name, value)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e == nil:
				won = append(won, value)
			case !errors.Is(e, fs.ErrExist):
				err = e
			}
		})
	}
	close(start)
	all.Wait()
	if err != nil && len(won) == 0 {
		return nil, err
	}
	return won, nil
}
