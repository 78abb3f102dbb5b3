package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Handler handles messages of a type, in the place of the file. What holds:
//
//   - One pool at a time handles a type, as long as its lease holds. A holder that is paused beyond its lease does not know
//     that it has a successor: Lease.Token tells them apart wherever the effects go.
//   - Every message is handled at least once: it is acknowledged after Handle has returned nil for it, or put aside
//     (OnError). After a crash, a lost lease, a lost acknowledgement, or an error of a batch, messages are handled again. What must not
//     happen twice the handler has to recognise by the message's ID: within a producer number, N counts
//     1, 2, 3 … (Each, Keyed: the order holds per producer and, with Keyed, per key). Messages with the same idempotency key are
//     all handled.
//   - Messages of a producer are handled in order, and a session handles none of them twice; what it has handled is not
//     known to the next session, as there is no file to keep it.
//   - Without a file nobody knows what an earlier session had handled. So a message whose predecessor is missing waits until
//     another look at the whole backlog has shown that it is not there, and is handled then: one that was lost, by
//     a server or an operator, is not noticed as it would be with a file. Config.GapTimeout does not apply.
//   - A stop finishes the batch that is being handled, and does not wait for one that fails.
type Handler interface {
	// Handle handles msgs, which are of one type and in order, and returns nil when all of them are
	// handled: then they are acknowledged. After an error they are handed over again, all of them
	// or in smaller batches, unless the error is a *BatchError, which tells what became of each.
	// ctx ends when the lease is lost, with that as cause, and with Handling.Timeout. A panic counts
	// as an error.
	//
	// The messages are the handler's; the slice is not, beyond the call.
	Handle(ctx context.Context, lease Lease, msgs []queue.Message) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, lease Lease, msgs []queue.Message) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, lease Lease, msgs []queue.Message) error {
	return f(ctx, lease, msgs)
}

// Lease is the type's lock as a handler sees it; *lock.Lease is one.
//
// Token is the fencing token: a number that is greater than those of all earlier holders of the
// type. A handler that writes somewhere keeps the greatest token there, refuses what comes with a
// smaller one, and returns ErrFenced: then a holder that was paused for longer than its lease does
// no harm. examples/custom-sink does that.
type Lease interface {
	Name() string                   // the type
	Token() int64                   // the fencing token
	Check(need time.Duration) error // nil if the lease lasts at least need longer
}

var _ Lease = (*lock.Lease)(nil)

// Middleware wraps a Handler, see Handling.Use. One that undoes what was done when Handle fails, by
// rolling a transaction back for example, must not return a *BatchError as it got it, which would
// say that some messages are handled: it wraps it, as in fmt.Errorf("rolled back: %w", err). The
// batch is then divided, and every part is a transaction of its own.
type Middleware func(Handler) Handler

// Each makes a Handler of a function for one message at a time. When f fails, the messages before
// are acknowledged, and only the one that failed counts as failed.
func Each(f func(ctx context.Context, lease Lease, msg queue.Message) error) Handler {
	one := HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error { return f(ctx, lease, msgs[0]) })
	return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
		for i := range msgs {
			err := ErrNotTried
			if ctx.Err() == nil {
				err = call(ctx, one, lease, msgs[i:i+1])
			}
			if err != nil {
				return batchError(len(msgs), i, err)
			}
		}
		return nil
	})
}

// Keyed makes a Handler that handles messages with different keys at the same time, concurrency of
// them at most, and messages with the same key in order: h gets batches of one key each. It is
// finished with a batch of the type before it begins the next one, so a slow key holds the others
// back by one batch at most. A message that fails holds back those of its key only, as long as the
// batch lasts.
func Keyed(key func(queue.Message) string, concurrency int, h Handler) Handler {
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

// ErrNotTried stands in a BatchError for a message that was not handled because of another one.
var ErrNotTried = errors.New("not tried")

// ErrFenced is what a handler returns, wrapped, when the destination refuses its token because it
// has seen a greater one: another holder is at work. The session ends as one that has lost its
// lock. No message is blamed or put aside: it is the successor's.
var ErrFenced error = fencedError{}

// FencedAbove is ErrFenced for a destination that tells the greatest token it has seen. Usually
// that is a later holder's, and all is as with ErrFenced. But when the lock's record was restored
// from a backup, or lost, tokens have gone back: then the lock is still held, its token is raised
// above seen, and the same messages are handed over again with that. Without it only a person can
// end this, see docs/operations.md.
func FencedAbove(seen int64) error { return &fencedAbove{seen} }

type fencedAbove struct{ seen int64 }

func (e *fencedAbove) Error() string { return fmt.Sprintf("fenced: token %d was seen before", e.seen) }
func (e *fencedAbove) Is(target error) bool {
	return target == ErrFenced || target == storage.ErrFenced
}

type fencedError struct{}

func (fencedError) Error() string        { return "fenced by a later holder" }
func (fencedError) Is(target error) bool { return target == storage.ErrFenced }

// BatchError tells what became of each message of a batch, if Handle returns it as it is: inside
// another error it is an error like others. Without it a batch that fails is divided until the
// message is found that fails.
type BatchError struct {
	Errs []error // per message: nil = handled, ErrNotTried, or why it failed
}

func (e *BatchError) Error() string {
	failed, first := 0, error(nil)
	for _, err := range e.Errs {
		if err != nil && !errors.Is(err, ErrNotTried) {
			if failed++; first == nil {
				first = err
			}
		}
	}
	return fmt.Sprintf("%d of %d messages failed, the first: %v", failed, len(e.Errs), first)
}

// Unwrap returns the errors of the messages.
func (e *BatchError) Unwrap() []error { return e.Errs }

// batchError says that of n messages those before i are handled, i failed with err, and the others
// were not tried.
func batchError(n, i int, err error) *BatchError {
	errs := make([]error, n)
	errs[i] = err
	for j := i + 1; j < n; j++ {
		errs[j] = ErrNotTried
	}
	return &BatchError{errs}
}

// Permanent marks err as one that trying again cannot cure: with OnError DeadLetter the message is
// put aside at once.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// call calls h; a panic is an error.
func call(ctx context.Context, h Handler, lease Lease, msgs []queue.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return h.Handle(ctx, lease, msgs)
}

// narrow hands msgs to h and returns what became of each, as in a BatchError. If they fail as a
// whole it hands over the first half and, when that is handled, the second one, and so on, so that
// at most one message is blamed.
func narrow(ctx context.Context, h Handler, lease Lease, msgs []queue.Message) []error {
	if ctx.Err() != nil {
		return batchError(len(msgs), 0, ErrNotTried).Errs
	}
	err := call(ctx, h, lease, msgs)
	// rule: a BatchError that somebody has wrapped is no promise any more that anything was handled.
	batch, ok := err.(*BatchError)
	switch {
	case err == nil:
		return make([]error, len(msgs))
	case !ok && errors.Is(err, storage.ErrFenced):
		return batchError(len(msgs), 0, err).Errs // no smaller batch would be let in
	case ok && len(batch.Errs) == len(msgs):
		return batch.Errs
	case len(msgs) == 1:
		return []error{err}
	}
	mid := len(msgs) / 2
	errs := narrow(ctx, h, lease, msgs[:mid])
	for _, err := range errs {
		if err != nil {
			// rule: nothing behind a message that failed, or the order would be lost.
			return append(errs, batchError(len(msgs)-mid, 0, ErrNotTried).Errs...)
		}
	}
	return append(errs, narrow(ctx, h, lease, msgs[mid:])...)
}

// withTimeout bounds every call of h.
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
		if !ok {
			return explain(err)
		}
		for i, err := range batch.Errs {
			batch.Errs[i] = explain(err)
		}
		return batch
	})
}
