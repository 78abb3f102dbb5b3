package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Handler handles the messages of a type, in place of a file. The guarantees:
//
//   - One pool at a time handles a type, as long as its lease holds. A holder that is paused beyond its lease does not know
//     that it has a successor. Where that matters, the destination must compare Lease.Token.
//   - Every message is handled at least once: it is acknowledged after Handle has returned nil for it, or becomes a dead letter
//     (OnError). After a crash, a lost lease, a lost acknowledgement, or an error of a batch, messages are handled again. If an
//     effect must not happen twice, the handler must recognize the message by its ID: within a producer number, N counts
//     1, 2, 3 … Messages with the same idempotency key are all handled.
//   - Messages of a producer are handled in order (with Keyed: those with the same key). A session handles none of them twice,
//     but the next session does not know which messages this one has handled, because no file records them.
//   - For the same reason, messages lost by a server or an operator go unnoticed. A message whose predecessor is missing
//     waits until another sweep over the whole backlog has shown that the predecessor is not there; then it is handled.
//     Config.GapTimeout does not apply.
//   - A stop waits for the batch that is being handled, but does not retry it if it fails.
type Handler interface {
	// Handle handles msgs, which are of one type and in order. If it returns nil, all of them are
	// acknowledged. If it returns an error, they are passed to Handle again, together or in smaller
	// batches; a *BatchError instead has the outcome of each message. A panic counts as an error, and
	// so does runtime.Goexit, which t.FailNow calls: each call has a goroutine of its own. ctx ends when
	// the lease is lost, with the loss as its cause, and after Handling.Timeout.
	//
	// Handle may keep the messages, but not the slice.
	Handle(ctx context.Context, lease Lease, msgs []queue.Message) error
}

// HandlerFunc adapts a function to a Handler.
type HandlerFunc func(ctx context.Context, lease Lease, msgs []queue.Message) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, lease Lease, msgs []queue.Message) error {
	return f(ctx, lease, msgs)
}

// Lease is the type's lock as a handler sees it; *lock.Lease is one.
//
// Token is the fencing token: a number greater than those of all earlier holders of the type. To guard
// against a holder that was paused for longer than its lease, store the greatest token at the
// destination, refuse writes with a smaller one, and return ErrFenced for them.
// examples/custom-sink does that.
type Lease interface {
	Name() string                   // the type
	Token() int64                   // the fencing token
	Check(need time.Duration) error // nil if the lease lasts at least need longer
}

var _ Lease = (*lock.Lease)(nil)

// Middleware wraps a Handler, see Handling.Use. If a middleware undoes the work of a failed Handle,
// for example by rolling back a transaction, it must not return a *BatchError unchanged, because that
// says that some messages are handled. It must wrap the error, as in fmt.Errorf("rolled back: %w", err).
// Then the batch is divided, and every part is a transaction of its own.
type Middleware func(Handler) Handler

// Each makes a Handler from a function for one message. When f fails, the messages before the failing
// one are acknowledged, only that one counts as failed, and the messages after it are not tried. It panics
// if f is nil.
func Each(f func(ctx context.Context, lease Lease, msg queue.Message) error) Handler {
	if f == nil {
		panic("worker: the function of Each is nil")
	}
	return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
		i := 0
		err := guard(func() error {
			for ; i < len(msgs); i++ {
				if ctx.Err() != nil {
					return ErrNotTried
				}
				if err := f(ctx, lease, msgs[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return batchError(len(msgs), i, err)
		}
		return nil
	})
}

// Keyed makes a Handler that handles messages with different keys concurrently, at most concurrency
// keys at a time, and messages with the same key in order: h gets batches of one key each. key is
// called for every message, and h from several goroutines. A batch of the type is finished before the
// next one begins, so a slow key delays the others by at most one batch. Within a batch, a message
// that fails blocks only those with the same key. A concurrency below 1 counts as 1. It panics if key or
// h is nil.
func Keyed(key func(queue.Message) string, concurrency int, h Handler) Handler {
	if key == nil || missing(h) {
		panic("worker: the key function or the Handler of Keyed is nil")
	}
	return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
		groups := map[string][]int{}
		var keys []string // in order of first appearance
		for i := range msgs {
			k := key(msgs[i])
			if groups[k] == nil {
				keys = append(keys, k)
			}
			groups[k] = append(groups[k], i)
		}
		errs := make([]error, len(msgs))
		slots := make(chan struct{}, max(concurrency, 1))
		var wg sync.WaitGroup
		for _, k := range keys {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				// rule: one goroutine per key, so that its messages are handled in order.
				group := make([]queue.Message, 0, len(groups[k]))
				for _, i := range groups[k] {
					group = append(group, msgs[i])
				}
				for j, err := range narrow(ctx, h, lease, group) {
					errs[groups[k][j]] = err
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return &BatchError{errs}
			}
		}
		return nil
	})
}

// ErrNotTried is the entry in a BatchError of a message that was not tried because an earlier one
// failed. It does not count as an attempt.
var ErrNotTried = errors.New("not tried")

// ErrFenced is the error, wrapped or not, for a handler whose destination refuses the token because
// it has seen a greater one: another holder is at work. The session ends as after a lost lock. No
// message counts as failed: the successor handles them.
var ErrFenced error = fencedError{}

// FencedAbove is ErrFenced for a destination that can report the greatest token it has seen. Usually
// that is the token of a later holder, and the error works like ErrFenced. But tokens roll back if the
// lock's record is lost or restored from a backup. If the pool still holds the lock, it then raises
// its token above seen, and passes the same messages to the Handler again. Without FencedAbove an
// operator must resolve that, see docs/operations.md.
func FencedAbove(seen int64) error { return &fencedAbove{seen} }

type fencedAbove struct{ seen int64 }

func (e *fencedAbove) Error() string { return fmt.Sprintf("fenced: token %d was seen before", e.seen) }
func (e *fencedAbove) Is(target error) bool {
	return target == ErrFenced || target == storage.ErrFenced
}

type fencedError struct{}

func (fencedError) Error() string        { return "fenced by a later holder" }
func (fencedError) Is(target error) bool { return target == storage.ErrFenced }

// BatchError has the outcome of each message of a batch. Handle must return it unwrapped: inside
// another error it counts as an ordinary error. After an ordinary error the batch is divided until
// the failing message is found.
type BatchError struct {
	Errs []error // one per message: nil = handled, ErrNotTried, or why it failed
}

func (e *BatchError) Error() string {
	if e == nil { // a nil pointer in an error is not nil, and does not say which messages are handled
		return "the handler returned a nil *BatchError as its error; return nil itself if all messages are handled"
	}
	failed, first := 0, error(nil)
	for _, err := range e.Errs {
		if err != nil && !errors.Is(err, ErrNotTried) {
			if failed++; first == nil {
				first = err
			}
		}
	}
	if failed == 0 {
		return fmt.Sprintf("none of %d messages failed", len(e.Errs))
	}
	return fmt.Sprintf("%d of %d messages failed, the first: %v", failed, len(e.Errs), first)
}

// Unwrap returns the errors of the messages.
func (e *BatchError) Unwrap() []error {
	if e == nil {
		return nil
	}
	return e.Errs
}

// batchError is the outcome of n messages of which those before i are handled, i failed with err, and
// the others were not tried.
func batchError(n, i int, err error) *BatchError {
	errs := make([]error, n)
	errs[i] = err
	for j := i + 1; j < n; j++ {
		errs[j] = ErrNotTried
	}
	return &BatchError{errs}
}

// Permanent marks err as permanent: with OnError DeadLetter the message becomes a dead letter without
// further attempts. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// PanicError is the error of a Handler, or a Files.Filter, that panicked or ended its goroutine.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Value == errGoexit {
		return errGoexit.Error()
	}
	return fmt.Sprintf("panic: %v", e.Value)
}

// errGoexit is the Value of a PanicError after runtime.Goexit.
var errGoexit = errors.New("the call ended its goroutine with runtime.Goexit, as t.FailNow and testify's require do; return an error instead")

// guard calls f, and turns a panic or runtime.Goexit into a PanicError. f gets a goroutine of its own, because Goexit cannot be
// stopped: it would end the goroutine of the session.
func guard(f func() error) (err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		returned := false
		defer func() {
			if returned {
				return
			}
			v := recover()
			if v == nil {
				v = errGoexit
			}
			err = &PanicError{v, debug.Stack()}
		}()
		err = f()
		returned = true
	}()
	<-ended
	return err
}

// narrow passes msgs to h and returns the outcome of each, as in a BatchError. If they fail as a
// whole, it passes the first half and, if that succeeds, the second half, and so on recursively.
// So at most one message counts as failed. If the session is to end, it passes no part.
func narrow(ctx context.Context, h Handler, lease Lease, msgs []queue.Message) []error {
	if ctx.Err() != nil {
		return batchError(len(msgs), 0, ErrNotTried).Errs
	}
	err := guard(func() error { return h.Handle(ctx, lease, msgs) })
	// rule: a wrapped BatchError does not promise that anything was handled.
	batch, ok := err.(*BatchError)
	switch {
	case err == nil:
		return make([]error, len(msgs))
	case !ok && errors.Is(err, storage.ErrFenced):
		return batchError(len(msgs), 0, err).Errs // smaller batches would be refused as well
	case ok && batch != nil && len(batch.Errs) == len(msgs):
		return batch.Errs
	case len(msgs) == 1 && ok && batch != nil:
		return []error{fmt.Errorf("the handler returned a BatchError with %d entries for 1 message; it needs one per message: %w", len(batch.Errs), err)}
	case len(msgs) == 1:
		return []error{err}
	case ends(ctx): // a stop does not wait for the parts of a failed batch
		return batchError(len(msgs), 0, ErrNotTried).Errs
	}
	mid := len(msgs) / 2
	errs := narrow(ctx, h, lease, msgs[:mid])
	if ends(ctx) || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		// rule: no message after a failed one is handled, or the order would be lost.
		return append(errs, batchError(len(msgs)-mid, 0, ErrNotTried).Errs...)
	}
	return append(errs, narrow(ctx, h, lease, msgs[mid:])...)
}

// endsKey is the key of a func() bool in a context: narrow may be called by Keyed, which only a context can reach.
type endsKey struct{}

// withEnds returns a context for narrow, which calls ending to learn whether the session is to end.
func withEnds(ctx context.Context, ending func() bool) context.Context {
	return context.WithValue(ctx, endsKey{}, ending)
}

// ends reports whether the session that called a handler with ctx is to end.
func ends(ctx context.Context) bool {
	ending, ok := ctx.Value(endsKey{}).(func() bool)
	return ok && ending()
}

// withTimeout bounds every call of h by d; 0 means no bound. The error of a call that timed out says so.
func withTimeout(h Handler, d time.Duration) Handler {
	if d == 0 {
		return h
	}
	return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
		ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("the handler took longer than the Timeout of %v", d))
		defer cancel()
		err := h.Handle(ctx, lease, msgs)
		if ctx.Err() == nil {
			return err
		}
		explain := func(err error) error {
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			return err
		}
		batch, ok := err.(*BatchError)
		if !ok || batch == nil {
			return explain(err)
		}
		for i, err := range batch.Errs {
			batch.Errs[i] = explain(err)
		}
		return batch
	})
}
