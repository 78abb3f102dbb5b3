package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// List returns the records of all locks, held and free, sorted by name. Their dates are the server's,
// and informational only.
//
// The errors of List, [Locker.Inspect], [Locker.RequestRelease] and [Locker.ForceRelease] wrap [ErrUnavailable] if the store does not
// answer for [Options.GiveUpAfter], [ErrPermanent] if it refuses, the context's error, or [ErrClosed]. List tries once, the others retry.
func (l *Locker) List(ctx context.Context) ([]Record, error) {
	if err := l.enter(); err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	defer l.wg.Done()
	list, err := call(l, ctx, l.opts.GiveUpAfter, l.store.List, nil)
	if err != nil && !errors.Is(err, ErrPermanent) && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	return list, nil
}

// Inspect returns the record of one lock: its holders, since when it is held, the waiters in its
// queue, the last forced release. The error is [ErrUnknown] for a name without a record. The record
// may be some milliseconds old.
func (l *Locker) Inspect(ctx context.Context, name string) (Record, error) {
	if err := checkName(name); err != nil {
		return Record{}, err
	}
	if err := l.enter(); err != nil {
		return Record{}, fmt.Errorf("inspect lock %q: %w", name, err)
	}
	defer l.wg.Done()
	got, err := l.look(ctx, name)
	switch {
	case err != nil:
		return Record{}, fmt.Errorf("inspect lock %q: %w", name, err)
	case !got.found:
		return Record{}, fmt.Errorf("inspect lock %q: %w", name, ErrUnknown)
	}
	return got.record, nil
}

// RequestRelease asks the holders of a lock to release it soon, and says why. They receive the request
// at their next renewal ([Lease.ReleaseRequested]), within a fifth of their leases; whether they comply
// is up to them. The error is [ErrNotHeld] if the lock is not held.
func (l *Locker) RequestRelease(ctx context.Context, name, why string) error {
	// rule: a request does not change the version: it does not show that the holder is alive.
	return l.administer(ctx, "request the release of", name, why, l.store.Ask)
}

// ForceRelease takes a lock away from its holders, and says why. Their leases are lost
// ([LostForced]) as soon as their next renewals find the lock gone, within a fifth of the lease. Until
// then they may still act, but every later grant has a token greater than theirs: a resource that
// compares tokens refuses them once it has seen the token of a later grant. The error is [ErrNotHeld]
// if the lock is not held.
//
// Use it when a holder hangs and did not react to RequestRelease. A dead holder loses the lock
// without it. A damaged record ([DamagedError]) is removed; as after every removal, the next token is
// still above all earlier ones.
func (l *Locker) ForceRelease(ctx context.Context, name, why string) error {
	err := l.administer(ctx, "force the release of", name, why,
		func(ctx context.Context, name string, h Hold, why string) (bool, error) {
			return l.store.Force(ctx, name, h, why, NewVersion())
		})
	store, ok := l.store.(Remover)
	if !ok || !errors.Is(err, ErrDamaged) {
		return err
	}
	if err := l.enter(); err != nil {
		return fmt.Errorf("force the release of lock %q: %w", name, err)
	}
	defer l.wg.Done()
	_, err = repeat(l, ctx, func(ctx context.Context) (bool, error) { return store.RemoveDamaged(ctx, name) })
	if err != nil {
		return fmt.Errorf("remove the damaged record of lock %q: %w", name, err)
	}
	return nil
}

// administer applies op to all holds of a record, for an operator. Errors name the operation as doing.
//
// rule: bound to the holds that were read: a hold acquired since is not affected.
func (l *Locker) administer(ctx context.Context, doing, name, why string,
	op func(context.Context, string, Hold, string) (bool, error)) error {
	if why == "" {
		why = "no reason given" // an empty reason would mean that there is no request
	}
	if err := cmp.Or(checkName(name), checkText("reason", why)); err != nil {
		return err
	}
	if err := l.enter(); err != nil {
		return fmt.Errorf("%s lock %q: %w", doing, name, err)
	}
	defer l.wg.Done()
	got, err := l.look(ctx, name)
	if err != nil {
		return fmt.Errorf("%s lock %q: %w", doing, name, err)
	}
	done := false
	for _, h := range got.record.Holds() {
		tries := 0
		ok, err := repeat(l, ctx, func(ctx context.Context) (bool, error) {
			tries++
			return op(ctx, name, h, why)
		})
		if err != nil {
			return fmt.Errorf("%s lock %q: %w", doing, name, err)
		}
		done = done || ok || tries > 1 // an earlier try without an answer may have succeeded
	}
	if !done {
		return fmt.Errorf("%s lock %q: %w", doing, name, ErrNotHeld)
	}
	return nil
}

// reading is the answer of the store to a Read.
type reading struct {
	record Record
	found  bool
}

// look reads a record, retrying until the store answers, and adds it to the observations. The caller
// is counted in l.wg.
func (l *Locker) look(ctx context.Context, name string) (reading, error) {
	return repeat(l, ctx, func(ctx context.Context) (reading, error) {
		r, found, err := l.store.Read(ctx, name)
		if err == nil {
			l.seen.saw(name, r, found, l.clock())
		}
		return reading{r, found}, err
	})
}

// repeat runs an idempotent operation until the store answers, for at most GiveUpAfter. Then the error wraps ErrUnavailable.
func repeat[T any](l *Locker, ctx context.Context, op func(context.Context) (T, error)) (T, error) {
	begin, retry, timeout := l.valid(), newJitter(maxPoll), opTimeout(l.opts.Lease)
	for {
		sent := l.valid()
		v, err := call(l, ctx, timeout, op, nil)
		begin += l.stopped(sent, timeout)
		switch ended := ctx.Err(); {
		case err == nil, errors.Is(err, ErrPermanent), ended != nil && errors.Is(err, ended):
			return v, err
		case ended == nil && l.valid()-begin < l.opts.GiveUpAfter && pause(ctx.Done(), retry.Next()):
			continue
		}
		if ended := endOf(ctx); ended != nil {
			err = fmt.Errorf("%w: %w", err, ended)
		}
		return v, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}
