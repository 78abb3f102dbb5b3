package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
)

// Purge removes the pending messages of a type that were published before a time by the server's clock; the zero time is no bound.
func Purge(ctx context.Context, b *fencepost.Backend, typ string, before time.Time, turn Turn) (p queue.Purged, err error) {
	err = turn.Take(ctx, b, typ, func(ctx context.Context) (err error) {
		p, err = queue.Purge(ctx, b.Queue, typ, before, false)
		return err
	})
	return p, err
}

// PurgeIDs removes pending messages that are named, or counts them (dryRun).
func PurgeIDs(ctx context.Context, b *fencepost.Backend, typ string, ids []queue.ID, dryRun bool) (o Outcome, err error) {
	var found []queue.ID
	for _, id := range ids {
		msgs, err := b.Queue.Fetch(ctx, typ, id.Prev(), queue.Limit{Messages: 1})
		switch {
		case err != nil:
			return o, err
		case len(msgs) == 1 && msgs[0].ID == id:
			found = append(found, id)
		default:
			o.Missing = append(o.Missing, id)
		}
	}
	if o.Chosen = len(found); o.Chosen == 0 || dryRun {
		return o, nil
	}
	if err := b.Queue.Ack(ctx, typ, found); err != nil {
		return o, fmt.Errorf("perhaps some are removed: %w", err)
	}
	o.Done = o.Chosen
	return o, nil
}

// ReleaseLock asks the holders of a lock to release it, or takes it away (force). said is what that means, as a sentence without a period.
func ReleaseLock(ctx context.Context, b *fencepost.Backend, name, why string, force bool) (said string, err error) {
	do, said := b.Locker.RequestRelease, fmt.Sprintf("the holder of %s is asked to release it; it sees that at its next renewal", name)
	if force {
		do, said = b.Locker.ForceRelease, name+" is free"
	}
	return said, do(ctx, name, why)
}
