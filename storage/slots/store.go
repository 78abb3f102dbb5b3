package slots

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// Store keeps values under names. A value never changes: it is created whole or not at all, and at
// most once under its name. Create is the only deciding call, so only Create must be atomic among
// all clients of the store, on any machine:
//
//	Create(a, x)   nil         x is there, durable, and was not before
//	               ErrExist    another value is there already, durable; nothing was changed
//	               *RefusedError, ErrFull: nothing was changed, and nothing will be
//	               other       unclear: it may be there, or appear at any later time
//
// A name is 1 to 500 bytes of a-z, 0-9, '.', '_', '-' and '/': parts between slashes, none of them
// empty, "." or "..". Names contain types, see package storage.
//
// All methods are safe for concurrent use. Their errors name the store and contain no secrets. They
// make one attempt: the caller decides whether to retry. They return soon after ctx has ended.
type Store interface {
	// Create stores data under name if the name has no value. It keeps no reference to data. The
	// value is durable when Create has returned nil or an error that matches fs.ErrExist.
	Create(ctx context.Context, name string, data []byte) error
	// Read returns the value under name. An error that matches fs.ErrNotExist says that no value
	// existed at a moment during the call: no Create had returned before it (not "not visible
	// yet").
	Read(ctx context.Context, name string) ([]byte, error)
	// Size returns the length of the value under name, bytes; fs.ErrNotExist as for Read.
	Size(ctx context.Context, name string) (int64, error)
	// List returns the values whose names begin with folder and a slash and have no further slash,
	// by name. It is a hint and may be arbitrarily stale. A folder that does not exist is empty.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Folders returns, for all names that begin with folder and a slash and have a further slash,
	// the part between these slashes, sorted, each once; "" is the root. It is a hint, like List.
	Folders(ctx context.Context, folder string) ([]string, error)
	// Delete removes the value under name. It is not an error if there is none.
	Delete(ctx context.Context, name string) error
	// MaxValue returns the maximum length of a value, bytes.
	MaxValue() int
	// String returns the store's address, without secrets, for messages.
	String() string
}

// Costly is implemented by a Store whose Create has a cost of its own: money, or a round trip that
// every single message would pay.
type Costly interface {
	// Linger is how long data should wait for more data to share a Create with. It is for callers whose
	// waiting data is safe elsewhere; no method of this package waits.
	Linger() time.Duration
}

// Ordered is implemented by a Store that finds names by their order, so that the end of a folder is listed without a look at
// the rest. The answers are hints, as those of List.
type Ordered interface {
	// Count returns about how many values List would return, without a look at the values.
	Count(ctx context.Context, folder string) (int, error)
	// Last returns the last of the values that List would return; one without a name if there is none.
	Last(ctx context.Context, folder string) (Entry, error)
	// Between returns those of the values that List would return whose names are not before from, and before to; an empty to is
	// behind all names. If n is not 0, it returns only the first n of them.
	Between(ctx context.Context, folder, from, to string, n int) ([]Entry, error)
}

// ErrUnordered is the answer of an Ordered around a Store that is not: use List instead.
var ErrUnordered = errors.New("the store does not find names by their order")

// OrderedOf returns the store as an Ordered. If it is none, no request is made, and every answer is ErrUnordered.
func OrderedOf(s Store) Ordered {
	if o, ok := s.(Ordered); ok {
		return o
	}
	return unordered{}
}

type unordered struct{}

func (unordered) Count(context.Context, string) (int, error) { return 0, ErrUnordered }

func (unordered) Last(context.Context, string) (Entry, error) { return Entry{}, ErrUnordered }

func (unordered) Between(context.Context, string, string, string, int) ([]Entry, error) {
	return nil, ErrUnordered
}

// lingerOf returns the Linger of a store; 0 if it is not Costly.
func lingerOf(s Store) time.Duration {
	if c, ok := s.(Costly); ok {
		return c.Linger()
	}
	return 0
}

// Entry is a value in a listing.
type Entry struct {
	Name string // full name, with its folder
	Size int64  // bytes
}

// ErrFull says that the store has no space. Nothing was changed. A Store returns Full.
var ErrFull = errors.New("the store is full")

// Full returns the error of a store that has no space. where begins with the store's address; answer is
// what the store said. It matches ErrFull, and is the *storage.NoSpaceError that a full disk causes, too.
func Full(where string, answer error) error {
	return &storage.NoSpaceError{Path: where, InStore: true, Err: fmt.Errorf("%w: %w", ErrFull, answer)}
}

// RefusedError says that a store permanently refuses a request, until a person changes something:
// credentials, a permission, a setting. Nothing was changed.
type RefusedError struct {
	Store  string // its address, without secrets
	Reason string
	Remedy string
	Err    error // may be nil
}

func (e *RefusedError) Error() string {
	s := e.Store + ": " + e.Reason
	if e.Err != nil {
		s += fmt.Sprintf(": %v", e.Err)
	}
	return s + "; " + e.Remedy
}

// Is makes the error storage.ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == storage.ErrRefused }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }
