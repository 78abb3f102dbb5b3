package slots

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// Store keeps values under names. A value never changes: it is created whole or not at all, and at
// most once under its name. Create is the only call that decides anything, so it alone has to be
// atomic among all clients of the store, on any machine:
//
//	Create(a, x)   nil         x is there, durable, and was not before
//	               ErrExist    another value is there already, durable; nothing was changed
//	               *RefusedError, ErrFull: nothing was changed, and nothing will be
//	               other       unclear: it may be there, or appear at any later time
//
// A name is 1 to 500 bytes of a-z, 0-9, '.', '_', '-' and '/': parts between slashes, none of them
// empty, "." or "..". Part of the names are types, see package storage.
//
// All methods are safe for concurrent use. Their errors name the store and carry no secrets. They
// make one attempt: who calls decides about another one. They return soon after ctx has ended.
type Store interface {
	// Create stores data under name if there is nothing yet. It keeps nothing of data. It is
	// durable when Create has returned nil or an error that matches fs.ErrExist.
	Create(ctx context.Context, name string, data []byte) error
	// Read returns the value under name. An error that matches fs.ErrNotExist says that there was
	// none at a moment during the call: no Create had returned before it (not "not here yet").
	Read(ctx context.Context, name string) ([]byte, error)
	// Size returns the length of the value under name, bytes; fs.ErrNotExist as for Read.
	Size(ctx context.Context, name string) (int64, error)
	// List returns the values whose names begin with folder and a slash and have no slash behind
	// that, by name. It is a hint: it may be as old as it likes. A folder that does not exist is
	// empty.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Folders returns the first parts behind folder and a slash of all names that go on with
	// another slash, sorted, each once; "" is the root. It is a hint, as List.
	Folders(ctx context.Context, folder string) ([]string, error)
	// Delete removes the value under name. It is no error if there is none.
	Delete(ctx context.Context, name string) error
	// MaxValue returns how many bytes a value may have.
	MaxValue() int
	// String returns the store's address, without secrets, for messages.
	String() string
}

// Costly is what a Store also is if a Create costs more than the bytes in it: money, or a round trip
// that a message after the other would pay.
type Costly interface {
	// Linger is how long what is to be stored had better wait for more, to share a Create with it. It is
	// for callers who have what waits safe elsewhere; no method of this package waits.
	Linger() time.Duration
}

// LingerOf returns the Linger of a store; 0 if it is not Costly.
func LingerOf(s Store) time.Duration {
	if c, ok := s.(Costly); ok {
		return c.Linger()
	}
	return 0
}

// Entry is a value in a listing.
type Entry struct {
	Name string // whole, with its folder
	Size int64  // bytes
}

// ErrFull says that the store has no room. Nothing was changed.
var ErrFull = errors.New("the store is full")

// RefusedError says that a store does not do what it is asked for, and will not until somebody
// changes something: credentials, a permission, a setting. Nothing was changed.
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
