package worker

import (
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Target is where the messages of a pool go: [Files] or [Handling], not a pointer to one of them. All pools
// that serve a type need the same target: each message goes only to the pool that then holds the type.
type Target interface{ validate() error }

// Files is the Target that appends each type's messages to a file of its own, exactly once. Dir is
// required; the zero value of everything else means its default.
type Files struct {
	// Dir is the directory of the files, created if missing. It must be the same storage for every
	// replica. For a store (Storage.FS) Dir is its address.
	Dir string

	// Filter, if set, is called for every message before it goes to the file. If it returns an
	// error, the message becomes a dead letter, and the file gets a skip entry with the reason in its
	// place. It is for messages that must never get into the file. It must be deterministic: the
	// same message may be checked again. A panic, or runtime.Goexit, counts as an error, and
	// with OnError Block blocks the type.
	Filter func(queue.Message) error

	// Trace, if set, is called for every batch that goes to a file, to make tracing spans: see
	// package otelfencepost. A panic in it ends the process.
	Trace Trace

	// MaxBytes is the size at which a file is sealed, after the batch that reached it, and its type
	// continues in a new one, "orders@0002.fpl" and so on. Defaults to no bound; at least 1 MiB,
	// because every file begins with the state of the producers.
	MaxBytes int64

	// DedupeWindow is how long the file remembers the idempotency keys of its messages
	// (queue.KeyHeader): of messages with the same key that are published within this time of each
	// other, one is appended. Defaults to one hour. At most a million keys of a type are remembered.
	DedupeWindow time.Duration

	// Storage has further options of the files, such as the permission to use an overlay file
	// system. The pool sets Registry, Holder, Empty, Restore, Replay and Rehearse itself. For Salvage,
	// AcceptLoss and Adopt see Rewrite.
	Storage storage.Options
}

// Handling is the Target that passes the messages to your code; see [Handler] for the guarantees. The
// field Handler is required.
type Handling struct {
	Handler Handler
	// Use wraps the Handler, for logging, tracing, metrics, transactions. The first Middleware is the
	// outermost. All run for every attempt.
	Use []Middleware
	// Timeout bounds one call of the Handler, by the end of its context; at least 1 ms. Defaults to no
	// bound. A handler that ignores its context blocks its type until it returns.
	Timeout time.Duration
}

func (f Files) validate() error {
	o := f.Storage
	switch {
	case f.Dir == "":
		return bad("Files.Dir is empty; name the directory that holds the files")
	case strings.ContainsRune(f.Dir, 0):
		return bad("Files.Dir %q contains a NUL character; name a directory without one", f.Dir)
	case f.MaxBytes != 0 && f.MaxBytes < 1<<20:
		return bad("Files.MaxBytes is %d; use at least 1 MiB, or 0 for no bound", f.MaxBytes)
	case f.DedupeWindow <= 0:
		return bad("Files.DedupeWindow is %v; use a positive duration", f.DedupeWindow)
	case len(o.Schema) > storage.MaxSchema:
		return bad("Files.Storage.Schema has %d bytes; use at most %d", len(o.Schema), storage.MaxSchema)
	case o.CheckpointBytes < 0 || o.CheckpointBatches < 0:
		return bad("Files.Storage.CheckpointBytes is %d and CheckpointBatches is %d; use positive numbers, or 0 for the defaults", o.CheckpointBytes, o.CheckpointBatches)
	case o.Salvage || o.AcceptLoss:
		return bad("Files.Storage.Salvage and AcceptLoss open a file only to repair it; call Rewrite with RewriteOptions.Repair")
	case o.Adopt: // a pool would accept the files of a wrong directory at every start
		return bad("Files.Storage.Adopt is for one decision of an operator; call Rewrite with RewriteOptions.Adopt")
	}
	return nil
}

func (h Handling) validate() error {
	switch {
	case missing(h.Handler):
		return bad("Handling.Handler is missing; use Each with your function")
	case h.Timeout != 0 && h.Timeout < time.Millisecond: // a smaller number lacks its unit, and every message would fail
		return bad("Handling.Timeout is %v; use at least 1ms, or 0 for no bound", h.Timeout)
	}
	return nil
}

// handler returns the Handler with its timeout and all middleware.
func (h Handling) handler() (Handler, error) {
	wrapped := withTimeout(h.Handler, h.Timeout)
	for i, use := range slices.Backward(h.Use) {
		if use == nil {
			return nil, bad("Handling.Use[%d] is nil; leave it out", i)
		}
		if wrapped = use(wrapped); missing(wrapped) {
			return nil, bad("the Middleware Handling.Use[%d] returned no Handler; it must return the one that it is given, or one that calls it", i)
		}
	}
	return wrapped, nil
}

// missing reports whether h is nil, or a HandlerFunc of a nil function.
func missing(h Handler) bool {
	f, ok := h.(HandlerFunc)
	return h == nil || ok && f == nil
}
