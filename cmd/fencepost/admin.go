package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

// One command at a time changes what is stored for a type. adminWait is longer than the lease of one that was killed on another machine
// keeps others waiting.
const (
	adminLease = 10 * time.Second
	adminWait  = 15 * time.Second
)

// adminHelp is for the help of the commands that hold the lock.
const adminHelp = `One such command works on a type at a time: dead requeue, dead rm, scheduled rm, types purge, keep, copy. A second one waits for --wait,
then exits with 5 and names the one that runs.`

// adminFlags are those of commands that change what is stored for a type.
type adminFlags struct {
	wait time.Duration
}

func (f *adminFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.wait, "wait", adminWait, "wait this long while another command changes what is stored for the type; 0 does not wait")
}

func (f *adminFlags) check() error {
	if f.wait < 0 {
		return cli.Usagef("--wait %v: it is negative", f.wait)
	}
	return nil
}

// alone runs do under the administrative lock of a type. Its context ends when the lock is lost.
func (f *adminFlags) alone(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, typ string, do func(context.Context) error) error {
	if queue.ValidateType(typ) != nil {
		return do(ctx) // a foreign program has put something there, under a name that a lock may not have; it can only be removed
	}
	name := queue.AdminLock(typ)
	err := b.Locker.Do(ctx, name, do, lock.WithLease(adminLease), lock.WithWait(max(f.wait, time.Nanosecond)), lock.WithWhy(cmd.CommandPath()))
	var held *lock.HeldError
	lost := errors.Is(err, lock.ErrLost)
	switch {
	case !errors.As(err, &held) && !lost:
		return err
	case ctx.Err() != nil: // somebody has stopped it
		return ctx.Err()
	case lost:
		return fmt.Errorf("%w; run it again for what is left", err)
	}
	since := ""
	if r, err := b.Locker.Inspect(ctx, name); err == nil && r.Held() {
		since = ", since " + r.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Errorf("type %s is being changed by %s, host %s, pid %d%s: try again when it has ended, or wait longer with --wait; "+
		"if it hangs, end it, or take the lock away: fencepost locks release --force --why TEXT %s (%w)",
		typ, cmp.Or(held.Why, "another program"), held.Owner.Host, held.Owner.PID, since, name, lock.ErrHeld)
}
