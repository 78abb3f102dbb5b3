package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
)

// Purge removes the pending messages of a type that were published before a time by the server's clock; the zero time means no bound.
func Purge(ctx context.Context, b *fencepost.Backend, typ string, before time.Time, turn Turn) (p queue.Purged, err error) {
	err = turn.Take(ctx, b, typ, func(ctx context.Context) (err error) {
		p, err = queue.Purge(ctx, b.Queue, typ, before, false)
		return err
	})
	return p, err
}

// take runs do in a turn, or immediately if it changes nothing (dryRun).
func (t Turn) take(ctx context.Context, b *fencepost.Backend, typ string, dryRun bool, do func(context.Context) (Outcome, error)) (o Outcome, err error) {
	if dryRun {
		return do(ctx)
	}
	err = t.Take(ctx, b, typ, func(ctx context.Context) (err error) {
		o, err = do(ctx)
		return err
	})
	return o, err
}

// PurgeIDs removes the pending messages with the given IDs, or counts them (dryRun).
func PurgeIDs(ctx context.Context, b *fencepost.Backend, typ string, ids []queue.ID, dryRun bool, turn Turn) (Outcome, error) {
	return turn.take(ctx, b, typ, dryRun, func(ctx context.Context) (Outcome, error) { return purgeIDs(ctx, b, typ, ids, dryRun) })
}

func purgeIDs(ctx context.Context, b *fencepost.Backend, typ string, ids []queue.ID, dryRun bool) (o Outcome, err error) {
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
		return o, fmt.Errorf("some messages may have been removed: %w", err)
	}
	o.Done = o.Chosen
	return o, nil
}

// ForeignKeyReader lists the foreign keys of types.
type ForeignKeyReader interface {
	ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error)
}

// ForeignKeys lists the foreign keys of a type, at most the given number.
func ForeignKeys(ctx context.Context, q ForeignKeyReader, typ string, most int) (keys []string, err error) {
	for after := ""; len(keys) < most; after = keys[len(keys)-1] {
		page, err := q.ForeignKeys(ctx, typ, after, min(most-len(keys), 1000))
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		keys = append(keys, page...)
	}
	return keys, nil
}

// PurgeForeign removes the foreign keys of a type, at most a million, or counts them (dryRun).
func PurgeForeign(ctx context.Context, b *fencepost.Backend, typ string, dryRun bool, turn Turn) (Outcome, error) {
	return turn.take(ctx, b, typ, dryRun, func(ctx context.Context) (Outcome, error) { return purgeForeign(ctx, b, typ, dryRun) })
}

func purgeForeign(ctx context.Context, b *fencepost.Backend, typ string, dryRun bool) (o Outcome, err error) {
	keys, err := ForeignKeys(ctx, b.Queue, typ, 1_000_000)
	if o.Chosen = len(keys); err != nil || dryRun {
		return o, err
	}
	for some := range slices.Chunk(keys, 1000) {
		n, err := b.Queue.RemoveForeignKeys(ctx, typ, some)
		if o.Done += n; err != nil {
			return o, err
		}
	}
	return o, nil
}

// ReleaseLock asks the holders of a lock to release it, or takes it away (force). said describes the result, as a sentence without a period.
func ReleaseLock(ctx context.Context, b *fencepost.Backend, name, why string, force bool) (said string, err error) {
	do, said := b.Locker.RequestRelease, fmt.Sprintf("the holder of %s is asked to release it; it sees that at its next renewal", name)
	if force {
		do, said = b.Locker.ForceRelease, name+" is free"
	}
	return said, do(ctx, name, why)
}
