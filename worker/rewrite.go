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
	AcceptLoss bool          // with Repair: give up what the registry knows to have been there, also the registered file if it is lost
	Adopt      bool          // only make the newest file the registered one, whichever is registered
	Wait       time.Duration // for the type's lock, whose holder is asked to give it back; 0 = do not wait
	Compact    storage.CompactOptions
}

// Rewrite writes the newest file of a type anew, as a compaction or a repair, under the type's
// lock: workers of the type stand by meanwhile and go on in the new file. The old file is sealed
// and stays. Of cfg, Queue, Locker, To (Files, of which Dir and Storage), Lease and Logger
// are used.
//
// With AcceptLoss, if the registered file is not here, a new one takes its place instead, and the
// report says what is lost. With Adopt nothing is written anew.
func Rewrite(ctx context.Context, cfg Config, typ string, o RewriteOptions) (report *storage.CompactReport, err error) {
	p, err := newRewriter(cfg, typ, func(f *Files) {
		f.Storage.Salvage, f.Storage.AcceptLoss, f.Storage.Adopt = o.Repair, o.Repair && o.AcceptLoss, o.Adopt
	})
	if err != nil {
		return nil, err
	}
	why := "compact"
	if o.Repair {
		why = "repair"
	}
	err = p.underLock(ctx, typ, why, o.Wait, func(ctx context.Context, lease *lock.Lease) error {
		report, err = p.rewrite(ctx, typ, lease, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// newRewriter returns a replica that never runs, for one type and its files as change leaves them.
func newRewriter(cfg Config, typ string, change func(*Files)) (*replica, error) {
	files, ok := cfg.To.(Files)
	if !ok {
		return nil, bad("To is not Files; name the directory of the files")
	}
	change(&files)
	cfg.To, cfg.Types, cfg.AllTypes = files, []string{typ}, false
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &p.replica, nil
}

// rewrite does what needs the lock.
func (p *replica) rewrite(ctx context.Context, typ string, lease *lock.Lease, o RewriteOptions) (_ *storage.CompactReport, err error) {
	s := &session{pool: p, typ: typ, lease: lease, log: p.log}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if cerr := s.writer().Close(); cerr != nil && err == nil {
			err = cerr
		}
	}()
	if w := s.writer(); o.Adopt {
		return &storage.CompactReport{Path: w.Path(), NextIndex: w.NextIndex()}, nil
	} else if g, ok := w.GivenUp(); ok {
		return &storage.CompactReport{Path: w.Path(), Records: g.Next - g.First, Lost: g.Next - g.First, FirstIndex: g.First, NextIndex: g.Next}, nil
	}
	next, report, err := s.writer().Compact(ctx, s.ledger.State(), o.Compact)
	if err != nil {
		return nil, err
	}
	s.file.Store(next)
	return report, nil
}

// underLock calls f with the type's lock, for which it waits as askFor does. The context of f ends
// with the lock; an error of f then names the reason.
func (p *replica) underLock(ctx context.Context, typ, why string, wait time.Duration, f func(context.Context, *lock.Lease) error) (err error) {
	lease, err := p.askFor(ctx, typ, why, wait)
	if err != nil {
		return fmt.Errorf("lock type %q: %w", typ, err)
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
	if err := f(ctx, lease); err != nil {
		return withCause(ctx, err)
	}
	return nil
}

// askFor acquires the type's lock within wait. Whoever holds it is asked to give it back: one
// worker after the other, as long as there is one that was waiting for it.
func (p *replica) askFor(ctx context.Context, typ, why string, wait time.Duration) (*lock.Lease, error) {
	lease, err := p.cfg.Locker.TryAcquire(ctx, typ, lock.WithLease(p.cfg.Lease), lock.WithWhy(why))
	for end := time.Now().Add(wait); errors.Is(err, lock.ErrHeld) && time.Now().Before(end); {
		if err := p.cfg.Locker.RequestRelease(ctx, typ, why); err != nil && !errors.Is(err, lock.ErrNotHeld) {
			return nil, err
		}
		slice := min(time.Until(end), p.cfg.Lease/2)
		lease, err = p.cfg.Locker.Acquire(ctx, typ, lock.WithLease(p.cfg.Lease), lock.WithWait(max(slice, time.Millisecond)), lock.WithWhy(why), lock.WithFair())
	}
	return lease, err
}
