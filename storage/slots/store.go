package slots

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// Store keeps values under names. A value never changes: it is created whole or not at all, and at
// most once under its name. Create is the only call that decides between writers, so only Create must
// be atomic among all clients of the store, on any machine:
//
//	Create(a, x)   nil         x exists, is durable, and did not exist before
//	               ErrExist    another value exists already and is durable; nothing was changed
//	               *RefusedError, ErrFull: nothing was changed, and nothing will be
//	               other       unclear: x may exist, or appear at any later time
//
// A name is 1 to 500 bytes of a-z, 0-9, '.', '_', '-' and '/': parts between slashes, none of them
// empty, "." or "..". Names contain types, see package storage. Create, Read, Size and Delete refuse
// every other name with a *RefusedError: it could lead out of the store.
//
// All methods are safe for concurrent use. Their errors name the store and contain no secrets. They
// make one attempt: the caller decides whether to retry. They return soon after ctx has ended.
type Store interface {
	// Create stores data under name if the name has no value. It keeps no reference to data. The
	// value is durable when Create has returned nil or an error that matches fs.ErrExist.
	Create(ctx context.Context, name string, data []byte) error
	// Read returns the value under name. An error that matches fs.ErrNotExist proves that no value
	// existed at some moment during the call: no Create had returned before that moment. "Not visible
	// yet" is not enough.
	Read(ctx context.Context, name string) ([]byte, error)
	// Size returns the length of the value under name, in bytes; fs.ErrNotExist means the same as for Read.
	Size(ctx context.Context, name string) (int64, error)
	// List returns the values whose names begin with folder and a slash and have no further slash,
	// sorted by name. It is a hint and may be arbitrarily stale. A folder that does not exist is empty.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Folders returns, for all names that begin with folder and a slash and have a further slash,
	// the part between these slashes, sorted, each once; "" is the root. It is a hint, like List.
	Folders(ctx context.Context, folder string) ([]string, error)
	// Delete removes the value under name. It is not an error if there is none.
	Delete(ctx context.Context, name string) error
	// MaxValue returns the maximum length of a value, in bytes.
	MaxValue() int
	// String returns the store's address, without secrets, for messages.
	String() string
}

// Costly is implemented by a Store whose Create has a fixed cost: money, or a round trip that
// every single message would pay.
type Costly interface {
	// Linger is how long data should wait for more data to share a Create with. It is for callers whose
	// waiting data is safe elsewhere; no method of this package lingers.
	Linger() time.Duration
}

// Ordered is implemented by a Store that looks up names by their order, and can therefore list the end of a folder without reading
// the rest. The answers are hints, like those of List.
type Ordered interface {
	// Count returns about how many values List would return, without reading the values.
	Count(ctx context.Context, folder string) (int, error)
	// Last returns the last of the values that List would return, or an Entry without a name if there is none.
	Last(ctx context.Context, folder string) (Entry, error)
	// Between returns the values of List with from <= name < to; an empty to is after all names. If n is not 0, it returns only the
	// first n of them.
	Between(ctx context.Context, folder, from, to string, n int) ([]Entry, error)
}

// ErrUnordered is returned by an Ordered that wraps a Store without Ordered: use List instead.
var ErrUnordered = errors.New("the store does not look up names by their order")

// OrderedOf returns the store as an Ordered. If the store does not implement it, every method returns ErrUnordered without a request.
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

// ErrFull means that the store has no space. Nothing was changed. A Store returns it through Full.
var ErrFull = errors.New("the store is full")

// Full returns the error of a store that has no space. where begins with the store's address; answer is
// the store's own error. The result matches ErrFull, and is a *storage.NoSpaceError, the error of a full disk.
func Full(where string, answer error) error {
	return &storage.NoSpaceError{Path: where, InStore: true, Err: fmt.Errorf("%w: %w", ErrFull, answer)}
}

// RefusedError means that a store refuses a request permanently, until an operator changes something:
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

// Is makes the error match storage.ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == storage.ErrRefused }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// UnreachedError means that a request got no answer from the store, or one that is not a store's. It may have been carried out.
type UnreachedError struct {
	Store  string // its address, without secrets
	Reason string
	Check  string // what a person should check
	Err    error
}

func (e *UnreachedError) Error() string { return e.Store + ": " + e.Reason + "; " + e.Check }

// Unwrap returns the cause.
func (e *UnreachedError) Unwrap() error { return e.Err }
