package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// Wait is how long a change waits for its turn by default: longer than it takes to take over the lock of a program that was killed on another
// machine.
const Wait = 15 * time.Second

const lease = 10 * time.Second

// Turn says how a change waits until no other change works on its type.
type Turn struct {
	Why  string        // the purpose of the change, shown to waiters; at most lock.MaxWhy bytes
	Wait time.Duration // 0: do not wait
}

// BusyError says that another program is changing a type.
type BusyError struct {
	Type, Lock string
	Holder     *lock.HeldError
	Since      time.Time // by the server's clock; zero: unknown
}

func (e *BusyError) Error() string {
	since := ""
	if !e.Since.IsZero() {
		since = ", since " + e.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("type %s is being changed by %s, host %s, pid %d%s: try again when it has ended, or wait longer; if it hangs, end it, or release its lock %s by force",
		e.Type, cmp.Or(e.Holder.Why, "another program"), e.Holder.Owner.Host, e.Holder.Owner.PID, since, e.Lock)
}

// Unwrap says that the lock is held.
func (e *BusyError) Unwrap() error { return lock.ErrHeld }

// Take runs do under the administrative lock of a type. The context of do ends when the lock is lost.
func (t Turn) Take(ctx context.Context, b *fencepost.Backend, typ string, do func(context.Context) error) error {
	if queue.ValidateType(typ) != nil {
		return do(ctx) // messages of a foreign program, with a type name that a lock cannot have; they can only be removed
	}
	name := queue.AdminLock(typ)
	err := b.Locker.Do(ctx, name, do, lock.WithLease(lease), lock.WithWait(max(t.Wait, time.Nanosecond)), lock.WithWhy(t.Why))
	var held *lock.HeldError
	lost := errors.Is(err, lock.ErrLost)
	switch {
	// do may need another lock, and it is that one which may be held.
	case !(errors.As(err, &held) && held.Name == name) && !lost:
		return err
	case ctx.Err() != nil: // the caller has cancelled it
		return ctx.Err()
	case lost:
		return fmt.Errorf("%w; run it again for the rest", err)
	}
	busy := &BusyError{Type: typ, Lock: name, Holder: held}
	if r, err := b.Locker.Inspect(ctx, name); err == nil && r.Held() {
		busy.Since = r.Since
	}
	return busy
}
