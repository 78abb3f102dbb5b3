package slots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/storage"
)

// Requests. A Store makes one attempt per call. This file retries while the answer is unclear,
// for at most patience.

const (
	attempt  = 10 * time.Second // limit of one attempt
	patience = 30 * time.Second // limit of all attempts at the same request
	isSlow   = 3 * time.Second  // a request that takes longer is reported, see FS.Slow
	shortest = 20 * time.Millisecond
	longest  = 2 * time.Second // between two attempts

	// mostCreating is the maximum number of bytes that all files of an FS together create concurrently. Clients copy the bytes that they
	// send, some two or three times; without a bound there would be as many copies as types.
	mostCreating = 16 << 20
)

// errTaken means that another value has the name. It matches fs.ErrExist.
var errTaken = fmt.Errorf("another value has this name: %w", fs.ErrExist)

// retry calls try until its answer is clear, for at most patience. room is how many bytes it creates.
func (f *FS) retry(room int64, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	var last atomic.Pointer[error]
	last.Store(new(error))
	if f.slow != nil {
		defer wait.Note(isSlow, func() { f.slow(patience, *last.Load()) })()
	}
	pause := wait.Backoff{Min: shortest, Max: longest}
	for {
		err := f.once(ctx, room, try)
		if err == nil || isClear(err) {
			return err
		}
		last.Store(&err)
		if wait.For(ctx, pause.Next()) != nil {
			return err
		}
	}
}

// once makes one attempt as soon as there is memory for its bytes. The wait does not count against the time of the attempt.
func (f *FS) once(ctx context.Context, room int64, try func(context.Context) error) error {
	if room = min(room, mostCreating); room > 0 {
		if err := f.room.Acquire(ctx, room); err != nil {
			return fmt.Errorf("%s: waiting for memory while other values are created: %w", f.store, err)
		}
		defer f.room.Release(room)
	}
	ctx, stop := context.WithTimeout(ctx, attempt)
	defer stop()
	return try(ctx)
}

// isClear reports whether a retry would get the same answer.
func isClear(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) || errors.Is(err, ErrFull) || errors.Is(err, ErrUnordered) || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrIntegrity)
}

// create creates a value, or finds that an earlier attempt of its own created it. errTaken means that
// another value has the name. After any other error the value may appear at any later time.
func (f *FS) create(name string, data []byte) error {
	err := f.retry(int64(len(data)), func(ctx context.Context) error {
		err := f.store.Create(ctx, name, data)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		// rule: an existing value is ours only if it has our bytes. They contain the random number of this session, so
		// no other writer's bytes are the same.
		there, err := f.readIf(ctx, name, int64(len(data)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// A failover has rolled it back. The name is free again.
			return fmt.Errorf("%s: %s was there and is gone", f.store, name)
		case err != nil:
			return err
		case !bytes.Equal(there, data):
			return errTaken
		}
		return nil
	})
	if errors.Is(err, ErrFull) && !errors.Is(err, storage.ErrNoSpace) { // from a Store that does not use Full
		return &storage.NoSpaceError{Path: f.store.String(), InStore: true, Err: err}
	}
	return err
}

// readIf reads a value of size bytes. It does not read a value of another size, which may be huge, and returns nil for it.
func (f *FS) readIf(ctx context.Context, name string, size int64) ([]byte, error) {
	if n, err := f.store.Size(ctx, name); err != nil || n != size {
		return nil, err
	}
	return f.whole(ctx, name, size)
}

// whole reads a value that had size bytes when it was listed.
func (f *FS) whole(ctx context.Context, name string, size int64) ([]byte, error) {
	b, err := f.store.Read(ctx, name)
	if err == nil && int64(len(b)) != size {
		// rule: a part of a value is not the value. If the value was replaced by one of another size, the store reports that size.
		switch size, err := f.store.Size(ctx, name); {
		case err != nil:
			return nil, err
		case size != int64(len(b)):
			return nil, fmt.Errorf("%s: %s: %d of %d bytes arrived", f.store, name, len(b), size)
		}
	}
	return b, err
}

// ask makes a request until its answer is clear, see retry.
func ask[T any](f *FS, request func(context.Context) (T, error)) (answer T, err error) {
	err = f.retry(0, func(ctx context.Context) error {
		answer, err = request(ctx)
		return err
	})
	return answer, err
}

func (f *FS) read(name string) ([]byte, error) {
	return ask(f, func(ctx context.Context) ([]byte, error) { return f.store.Read(ctx, name) })
}

// readWhole is read for a value that had size bytes when it was listed.
func (f *FS) readWhole(name string, size int64) ([]byte, error) {
	return ask(f, func(ctx context.Context) ([]byte, error) { return f.whole(ctx, name, size) })
}

func (f *FS) size(name string) (int64, error) {
	return ask(f, func(ctx context.Context) (int64, error) { return f.store.Size(ctx, name) })
}

func (f *FS) list(folder string) ([]Entry, error) {
	return ask(f, func(ctx context.Context) ([]Entry, error) { return f.store.List(ctx, folder) })
}

func (f *FS) count(folder string) (int, error) {
	return ask(f, func(ctx context.Context) (int, error) { return OrderedOf(f.store).Count(ctx, folder) })
}

func (f *FS) last(folder string) (Entry, error) {
	return ask(f, func(ctx context.Context) (Entry, error) { return OrderedOf(f.store).Last(ctx, folder) })
}

func (f *FS) between(folder, from, to string, n int) ([]Entry, error) {
	return ask(f, func(ctx context.Context) ([]Entry, error) {
		return OrderedOf(f.store).Between(ctx, folder, from, to, n)
	})
}

func (f *FS) folders(folder string) ([]string, error) {
	return ask(f, func(ctx context.Context) ([]string, error) { return f.store.Folders(ctx, folder) })
}

func (f *FS) delete(name string) error {
	return f.retry(0, func(ctx context.Context) error { return f.store.Delete(ctx, name) })
}
