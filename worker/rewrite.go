package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
)

// RewriteOptions configures [Rewrite].
type RewriteOptions struct {
	Repair     bool          // the file is damaged: save what can be read
	AcceptLoss bool          // only with Repair: accept that records the registry knows to be durable are lost, even the whole registered file
	Adopt      bool          // only register the newest file, whichever is registered now; not with Repair
	Wait       time.Duration // how long to wait for the type's lock, whose holder is asked to release it; 0 = do not wait
	Compact    storage.CompactOptions
}

// Rewrite copies the newest file of a type into a new one, as a compaction or a repair, under the
// type's lock: workers of the type wait meanwhile and continue in the new file. The old file is
// sealed and stays. Of cfg, Rewrite uses Queue, Locker, To (Files: Dir and Storage), Lease and Logger.
//
// With AcceptLoss, if the registered file is missing, a new empty one takes its place, and the report
// says what is lost. With Adopt nothing is rewritten. A type with no file, registered or not, is an error
// that wraps fs.ErrNotExist.
func Rewrite(ctx context.Context, cfg Config, typ string, o RewriteOptions) (report *storage.CompactReport, err error) {
	switch {
	case o.AcceptLoss && !o.Repair:
		return nil, bad("RewriteOptions.AcceptLoss applies to a repair only; set Repair, too")
	case o.Adopt && o.Repair:
		return nil, bad("RewriteOptions has Adopt and Repair; first adopt the file, then repair it")
	}
	p, err := newRewriter(cfg, typ)
	if err != nil {
		return nil, err
	}
	to := &p.dest.Storage // here, because New refuses them
	to.Salvage, to.AcceptLoss, to.Adopt = o.Repair, o.AcceptLoss, o.Adopt
	if err := p.hasFile(ctx, typ); err != nil {
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

// newRewriter returns a replica that never runs, to open the files of one type.
func newRewriter(cfg Config, typ string) (*replica, error) {
	if _, ok := cfg.To.(Files); !ok {
		return nil, bad("To is %T; use worker.Files{…}, which names the directory of the files", cfg.To)
	}
	cfg.Types, cfg.AllTypes = []string{typ}, false
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &p.replica, nil
}

// hasFile returns an error if a type has neither a registered file nor another one: opening it would create one.
func (p *replica) hasFile(ctx context.Context, typ string) error {
	_, known, err := p.cfg.Queue.RegistryEntry(ctx, typ)
	if err != nil || known {
		return err
	}
	chain, err := storage.ReadChain(p.fs, p.dest.Dir, typ)
	if err == nil && len(chain) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("type %q has no registered file, and none in %s: %w", typ, p.dest.Dir, err)
	}
	return nil
}

// rewrite does the part of Rewrite that needs the lock.
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

// underLock acquires the type's lock as askFor does, and calls f under it. The context of f ends if
// the lock is lost; the error then says so.
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

// askFor acquires the type's lock within wait. It asks the holder to release it, and the next holder,
// too, if another worker gets the lock first.
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
