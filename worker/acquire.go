package worker

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// depth returns whether a type has messages.
func (p *Pool) depth(ctx context.Context, typ string) (queue.Depth, error) {
	if err := p.looks.Acquire(ctx, 1); err != nil {
		return queue.Depth{}, err
	}
	defer p.looks.Release(1)
	p.book.noteAsking(typ)
	d, err := p.cfg.Queue.Depth(ctx, typ, 1)
	p.book.noteAnswer(typ, err)
	return d, err
}

// acquire acquires the type's lock, in the way that the turn requires.
func (p *Pool) acquire(ctx context.Context, typ string, t share.Turn, wait time.Duration) (*lock.Lease, error) {
	opts := []lock.Option{lock.WithLease(p.cfg.Lease), lock.WithWhy(lockReason(p.instance))}
	switch t {
	case share.TurnAsk:
		return p.takeShare(ctx, typ)
	case share.TurnStandBy:
		return p.cfg.Locker.TryAcquire(ctx, typ, opts...)
	}
	// A free lock is taken at once: a wait that ends while many other types are being opened would have been for nothing, again
	// and again.
	lease, err := p.tryAcquire(ctx, typ, opts)
	if errors.Is(err, lock.ErrHeld) {
		lease, err = p.cfg.Locker.Acquire(ctx, typ, append(opts, lock.WithWait(wait))...)
	}
	return lease, err
}

func (p *Pool) tryAcquire(ctx context.Context, typ string, opts []lock.Option) (*lock.Lease, error) {
	if err := p.opening.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer p.opening.Release(1)
	return p.cfg.Locker.TryAcquire(ctx, typ, opts...)
}
