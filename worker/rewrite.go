package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
)

// RewriteOptions of Rewrite.
type RewriteOptions struct {
	Repair     bool          // the file is damaged: save what can be read
	AcceptLoss bool          // with Repair: give up what the registry knows to have been there
	Wait       time.Duration // for the type's lock; 0 = do not wait
	Compact    storage.CompactOptions
}

// Rewrite writes the newest file of a type anew, as a compaction or a repair, under the type's lock: workers of the type
// stand by meanwhile and go on in the new file. The old file is sealed and stays. Of cfg, Queue, Locker, Dir, Lease,
// Storage and Logger are used.
func Rewrite(ctx context.Context, cfg Config, typ string, o RewriteOptions) (_ *storage.CompactReport, err error) {
	cfg.Types, cfg.AllTypes = []string{typ}, false
	cfg.Storage.Salvage, cfg.Storage.AcceptLoss = o.Repair, o.Repair && o.AcceptLoss
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	why := "compact"
	if o.Repair {
		why = "repair"
	}
	var lease *lock.Lease
	if o.Wait > 0 {
		lease, err = p.cfg.Locker.Acquire(ctx, typ, lock.WithLease(p.cfg.Lease), lock.WithWait(o.Wait), lock.WithWhy(why))
	} else {
		lease, err = p.cfg.Locker.TryAcquire(ctx, typ, lock.WithLease(p.cfg.Lease), lock.WithWhy(why))
	}
	if err != nil {
		return nil, fmt.Errorf("lock type %q: %w", typ, err)
	}
	defer func() {
		releaseCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Lease)
		defer cancel()
		if rerr := lease.Release(releaseCtx); rerr != nil {
			err = errors.Join(err, fmt.Errorf("release the lock of type %q: %w", typ, rerr))
		}
	}()
	ctx, cancel := mergeContext(lease.Context(), ctx)
	defer cancel()
	s := &session{pool: p, typ: typ, lease: lease, log: p.log}
	if err := s.open(ctx); err != nil {
		return nil, withCause(ctx, err)
	}
	defer func() {
		if cerr := s.writer().Close(); cerr != nil && err == nil {
			err = cerr
		}
	}()
	next, report, err := s.writer().Compact(ctx, s.ledger.state(), o.Compact)
	if err != nil {
		return nil, withCause(ctx, err)
	}
	s.file.Store(next)
	return report, nil
}
