package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Set is several locks that are held together. All methods are safe for concurrent use.
type Set struct {
	held  []*holding // sorted by name
	all   []*holding // what Context holds: those of the context around it, too
	ctx   context.Context
	end   context.CancelCauseFunc
	stops []func() bool // of watching the leases

	once sync.Once
	last []*Lease // to be released by this Set, in order
	lost []error  // of the others
}

// Do acquires name, runs fn, and releases, also when fn panics. fn's context is ctx, holds the lock
// (see [From]) and ends with ctx or the lease, whichever is first. Do returns fn's error, joined
// with the [*LostError] if the lock was lost before it was released: what fn did last may have been
// done without it. Other errors are those of [Locker.Acquire], in which case fn was not called, or
// of [Lease.Release].
//
// Do is re-entrant: if ctx holds name already, fn runs at once under that lock, options do not
// matter, and the lock is released when the last of all who use it is done. (Only who holds it
// shared cannot have it alone; that is an error.) All goroutines that share ctx share its locks: Do
// does not exclude them from each other. Give a goroutine that is to be excluded a context from
// outside.
//
// Whoever acquires further names while it holds one can meet somebody who does it in the other
// order; they wait for each other until WithWait or a context ends that. [Locker.AcquireAll] avoids
// it for names that are known in advance.
func (l *Locker) Do(ctx context.Context, name string, fn func(context.Context) error, opts ...Option) error {
	s, err := l.AcquireAll(ctx, []string{name}, opts...)
	if err != nil {
		return err
	}
	return s.run(ctx, fn)
}

// AcquireAll acquires all names, sorted and each once, so that callers with overlapping names
// cannot wait for each other in a circle. WithWait bounds the whole. If one cannot be acquired, or
// one is lost meanwhile, those acquired are released and the error tells about that one; nothing is
// held then. Names that ctx holds already are counted like in [Locker.Do].
func (l *Locker) AcquireAll(ctx context.Context, names []string, opts ...Option) (*Set, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return nil, &InvalidError{What: "list of lock names", Value: "[]", Problem: "it is empty"}
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	return l.acquireAll(ctx, names, newPatience(opts))
}

// acquireAll acquires names, which are sorted, valid and not the same.
func (l *Locker) acquireAll(ctx context.Context, names []string, p patience) (*Set, error) {
	if err := endOf(ctx); err != nil { // also if there is nothing to wait for
		return nil, fmt.Errorf("acquire lock %q: %w", names[0], err)
	}
	s := &Set{}
	// The locks outlive the context of the acquisition, which may have been about the wait only.
	s.ctx, s.end = context.WithCancelCause(context.WithoutCancel(ctx))
	wait, stop := s.within(ctx)
	defer stop()
	for _, name := range names {
		h, err := find(ctx, l, name, p.alone)
		if h == nil && err == nil {
			h, err = p.acquire(wait, l, name)
		}
		if h != nil {
			s.add(h)
		}
		// One may have been lost while the next one was waited for; that is why the wait ended
		// then.
		if cause := context.Cause(s.ctx); errors.Is(cause, ErrReleased) { // by nobody else than the Locker
			err = fmt.Errorf("acquire lock %q: %w", name, ErrClosed)
		} else if cause != nil {
			err = cause
		}
		if err != nil {
			_ = s.Release(ctx) // goes on in the background; what failed before says more
			return nil, err
		}
	}
	s.all = slices.Clone(heldBy(ctx))
	for _, h := range s.held {
		if !slices.Contains(s.all, h) {
			s.all = append(s.all, h)
		}
	}
	s.ctx = context.WithValue(s.ctx, heldKey{}, s.all)
	return s, nil
}

// add makes h, in which the Set is counted, part of it.
func (s *Set) add(h *holding) {
	s.held = append(s.held, h)
	ended := h.lease.Context()
	s.stops = append(s.stops, context.AfterFunc(ended, func() { s.end(context.Cause(ended)) }))
}

// Context ends when any of the locks is lost, or the Set is released. Its cause ([context.Cause])
// is that [*LostError], or [ErrReleased]. It holds the locks (see [From]), and carries the values
// of the context given to AcquireAll, but not its end. Work that the locks protect runs on it.
func (s *Set) Context() context.Context { return s.ctx }

// Token is the fencing token of name; 0 if name is not in the Set.
func (s *Set) Token(name string) int64 { return s.Tokens()[name] }

// Tokens returns the fencing tokens by name.
func (s *Set) Tokens() map[string]int64 {
	tokens := make(map[string]int64, len(s.held))
	for _, h := range s.held {
		tokens[h.lease.Name()] = h.lease.Token()
	}
	return tokens
}

// Check returns nil if every lock is held and lasts at least need longer. See [Lease.Check].
func (s *Set) Check(need time.Duration) error {
	for _, h := range s.held {
		if err := h.lease.Check(need); err != nil {
			return err
		}
	}
	return nil
}

// Release gives the locks back, in reverse order, except for those that others still use through a
// context. It joins the errors of all; apart from that it is like [Lease.Release]: ctx only bounds
// how long it waits, and calling it again returns the same result.
func (s *Set) Release(ctx context.Context) error { return join(s.release(ctx)) }

func (s *Set) release(ctx context.Context) (errs []error) {
	s.once.Do(func() {
		cause := ErrReleased
		for _, h := range slices.Backward(s.held) {
			loss := h.loss()
			cause = cmp.Or(loss, cause)
			if h.leave() {
				s.last = append(s.last, h.lease)
			} else if loss != nil {
				s.lost = append(s.lost, loss)
			}
		}
		s.end(cause)
		for _, stop := range s.stops {
			stop()
		}
	})
	errs = slices.Clone(s.lost)
	for _, le := range s.last {
		if err := le.Release(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// join is errors.Join that leaves a single error as it is.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// within returns ctx such that it holds what the Set holds and ends when the Set does. The caller
// calls stop when done.
func (s *Set) within(ctx context.Context) (c context.Context, stop func()) {
	if s.all != nil {
		ctx = context.WithValue(ctx, heldKey{}, s.all)
	}
	c, cancel := context.WithCancelCause(ctx)
	ended := s.ctx
	unwatch := context.AfterFunc(ended, func() { cancel(context.Cause(ended)) })
	return c, func() { unwatch(); cancel(nil) }
}

// run runs fn under the Set and releases it, whatever fn does.
func (s *Set) run(ctx context.Context, fn func(context.Context) error) (err error) {
	work, stop := s.within(ctx)
	defer func() {
		stop()
		var errs []error
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range s.release(ctx) {
			told := errors.Is(err, e) // fn returned the cause of its context
			left := ctx.Err() != nil && !errors.Is(e, ErrLost)
			if !told && !left { // left: the release goes on in the background, as the caller wants to go
				errs = append(errs, e)
			}
		}
		err = join(errs)
	}()
	return fn(work)
}

// patience makes one WithWait bound several acquisitions.
type patience struct {
	opts  []Option
	until time.Time // zero = no bound
	alone bool      // the locks are not to be shared
}

func newPatience(opts []Option) patience {
	var c config
	for _, o := range opts {
		o(&c)
	}
	p := patience{opts: slices.Clip(opts), alone: !c.permitsSet}
	if c.waitSet && c.wait > 0 {
		p.until = time.Now().Add(c.wait)
	}
	return p
}

func (p patience) acquire(ctx context.Context, l *Locker, name string) (*holding, error) {
	var (
		le   *Lease
		err  error
		left = time.Until(p.until)
	)
	switch {
	case p.until.IsZero():
		le, err = l.Acquire(ctx, name, p.opts...)
	case left > 0:
		le, err = l.Acquire(ctx, name, append(p.opts, WithWait(left))...)
	default:
		le, err = l.TryAcquire(ctx, name, p.opts...)
	}
	if err != nil {
		return nil, err
	}
	return &holding{lease: le, users: 1}, nil
}
