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

// Set is several locks that are held together. If one of them is lost, the work must stop: see
// [Set.Context]. All methods are safe for concurrent use.
type Set struct {
	held  []*holding // sorted by name
	all   []*holding // held, and the holdings that the caller's context already had
	ctx   context.Context
	end   context.CancelCauseFunc
	stops []func() bool // each stops watching a lease

	once sync.Once
	last []*Lease // the leases of which this Set was the last user: it releases them, in this order
	lost []error  // losses among the leases that still have other users
}

// Do acquires name, runs fn, and releases the lock, also when fn panics. fn's context is derived from
// ctx, holds the lock (see [From]) and ends with ctx or the lease, whichever ends first. Do returns
// fn's error, joined with a [*LostError] if the lock was lost before the release: then the last part
// of fn may have run without it. Other errors are those of [Locker.Acquire] (fn was not called) or
// [Lease.Release].
//
// Do is re-entrant: if ctx already holds name, fn runs at once under that lock, opts are ignored, and
// the lock is released when its last user is done. One exception: inside a shared lock, acquiring the
// same name exclusively is an error. All goroutines that share ctx share its locks, so Do does not
// exclude them from each other. To exclude a goroutine, give it a context that does not hold the
// lock.
//
// Nested calls with different names can deadlock with callers that nest them in another order; then
// they wait until WithWait or a context ends the wait. If you know the names in advance, use
// [Locker.AcquireAll], which cannot deadlock.
func (l *Locker) Do(ctx context.Context, name string, fn func(context.Context) error, opts ...Option) error {
	s, err := l.AcquireAll(ctx, []string{name}, opts...)
	if err != nil {
		return err
	}
	return s.run(ctx, fn)
}

// AcquireAll acquires all names, in sorted order and each once, so that callers with overlapping
// names cannot deadlock. [WithWait] bounds the whole call. If one lock cannot be acquired, or one is
// lost meanwhile, the others are released, nothing is held, and the error is about that lock. Names
// that ctx already holds are re-entered as in [Locker.Do].
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

// acquireAll acquires names, which must be sorted, valid and distinct.
func (l *Locker) acquireAll(ctx context.Context, names []string, p patience) (*Set, error) {
	if err := endOf(ctx); err != nil { // even if no lock would have to wait
		return nil, fmt.Errorf("acquire lock %q: %w", names[0], err)
	}
	s := &Set{}
	// The locks outlive the context of the acquisition, which may only have bounded the wait.
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
		// If the wait ended because a lock acquired earlier was lost, report that loss.
		if cause := context.Cause(s.ctx); errors.Is(cause, ErrReleased) { // only Close can have released it
			err = fmt.Errorf("acquire lock %q: %w", name, ErrClosed)
		} else if cause != nil {
			err = cause
		}
		if err != nil {
			s.dismiss(ctx)
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

// add makes h part of the Set, which is already counted as a user of h. From now on the end of h's
// lease ends the Set's context.
func (s *Set) add(h *holding) {
	s.held = append(s.held, h)
	ended := h.lease.Context()
	s.stops = append(s.stops, context.AfterFunc(ended, func() { s.end(context.Cause(ended)) }))
}

// Context ends when any of the locks is lost, or the Set is released. Its cause ([context.Cause]) is
// that [*LostError], or [ErrReleased]. It holds the locks (see [From]), and carries the values of the
// context given to AcquireAll, but does not end with it. Run the protected work under it.
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

// Release releases the locks in reverse order, except those that other Sets still use through a
// context. It returns the joined errors of all. Otherwise it is like [Lease.Release]: ctx only bounds
// how long it waits, and further calls return the same result.
func (s *Set) Release(ctx context.Context) error { return join(s.release(ctx)) }

// release is Release with all errors. Only the first call decides which leases to release.
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

// dismiss releases the locks of a Set that is not returned to the caller. It waits at most maxTimeout, for one answer of the
// store; the release then continues in the background. Its error is dropped: the caller has a more useful one.
func (s *Set) dismiss(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxTimeout)
	defer cancel()
	_ = s.Release(ctx)
}

// join is errors.Join, but returns a single error unwrapped.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// within derives a context from ctx that holds the locks of the Set and ends when the Set does. The
// caller must call stop.
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
			told := errors.Is(err, e)                          // fn returned the cause of its context: do not join it twice
			left := ctx.Err() != nil && !errors.Is(e, ErrLost) // the caller no longer waits for the release, which continues
			if !told && !left {
				errs = append(errs, e)
			}
		}
		err = join(errs)
	}()
	return fn(work)
}

// patience has the options of several acquisitions that share one WithWait.
type patience struct {
	opts  []Option
	until time.Time // zero = no bound
	alone bool      // the locks are acquired exclusively
}

// newPatience evaluates the options; the time of WithWait starts now.
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

// acquire acquires one lock within the time left of WithWait. If no time is left it still tries once,
// so that names that are free do not fail.
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
