// Package lock is a distributed mutex with fencing tokens over any store that can update one
// document atomically.
//
// A [Locker] acquires named locks; a [Lease] is one lock held for a while. The holder renews the
// lease in the background; when it cannot, it is told so before anybody else may hold the lock.
//
//	              free                       held by another, renewing
//	Acquire ──► Store.Acquire ──► held     ──► wait: read, sleep 5…250 ms, read …
//	              │ no record               held by another, standing still for its whole lease
//	              └► Store.Create ─► held   ──► Store.TakeOver(version seen) ──► held
//
//	held ──renewed every lease/5──► held   (those of a Locker together: BatchRenewer)
//	held ──Release──► released            (Context ends with ErrReleased)
//	held ──half of the lease without a renewal──► suspect ──a renewal──► held
//	held ──record is not ours any more──► lost  (Context ends with *LostError)
//	held ──deadline, or WithMaxHold──► lost
//
// # Guarantees
//
// Always, whatever clocks, networks and processes do: a grant is returned to at most one caller,
// and its token ([Lease.Token]) is greater than those of all earlier grants of the name. A resource
// that refuses lower tokens than it has seen (fencing) is therefore safe even from a holder that
// was paused and does not know it lost the lock. The token counter lives in the store and survives
// release. When the record itself is deleted (an operator, the garbage collection of names idle for
// weeks), it starts again at the wall clock in microseconds, which is above every older token
// unless the clock was set back; [Lease.RaiseToken] covers even that for a resource that remembers.
//
// As long as the clock rates of two machines agree within 1/16 and holders honour [Lease.Context],
// at most one lease of a name is valid at any time. No wall clock matters: nobody compares a stored
// date with a clock. A waiter takes a lock over only after it has itself watched one record version
// stand still for the holder's whole lease (and 1/16 and 250 ms more); the holder ends its lease
// 1/16 (at least 250 ms) early, counted from when it sent the last renewal that was acknowledged.
//
// Goroutines of one process get a lock in the order in which they came; it goes from hand to hand
// in one round trip. Processes that keep waiting for the same lock take places in its record's
// queue, and mostly get it in turn. That is promised only if all ask for it ([WithFair]).
//
// A lock may be shared ([WithShared], [WithPermits]): each share is a lease of its own, which lives
// and dies by itself.
//
// # Several locks, nesting
//
// [Locker.Do] runs a function under a lock, [Locker.AcquireAll] holds several, [Graph] locks the
// roots of what depends on each other; these three are re-entrant through the context. [Keyed] is
// for one process.
//
// # Protocol
//
// The record of a name is the [Record]; the operations on it are those of [Store]. Every write sets
// a fresh random record version. Writes of a holder are bound to its [HoldID], which is new for
// every acquisition; only the taker is bound to the version. The reasoning behind each rule, with
// the failures of other systems it avoids, is in docs/decisions/0200-lock-protocol.md and 0203. The
// observation scheme is that of the DynamoDB lock client; fencing tokens are those of Chubby's
// sequencers (Burrows, OSDI 2006).
package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/wait"
)

// Bounds and defaults. They are part of the protocol: every process on one store may use another
// lease, but all use the same rules about it.
const (
	// DefaultLease outlives an election of a new MongoDB primary (up to about 12 s) and one renewal
	// interval.
	DefaultLease = 20 * time.Second
	// MinLease is the shortest lease: below it the safety margins would eat the lease.
	MinLease = time.Second
	// MaxLease bounds how long a crashed holder can block others.
	MaxLease = 24 * time.Hour
	// DefaultGiveUpAfter is how long Acquire goes on while the store answers nothing but errors.
	DefaultGiveUpAfter = 30 * time.Second

	minMargin  = 250 * time.Millisecond // least safety margin at each end of a lease
	maxTimeout = 3 * time.Second        // longest single store operation
	minPoll    = 5 * time.Millisecond   // first pause of a waiter
	maxPoll    = 250 * time.Millisecond // longest pause of a waiter
	eagerPoll  = 10 * time.Millisecond  // … of one that has become the first in the record's queue
	eagerPolls = 100                    // … for so many reads, about a second
	hangGrace  = 50 * time.Millisecond  // how long an operation may outlive its timeout before it is left behind
)

// opTimeout bounds one store operation: several fit into a lease, so that one lost packet is no
// lost lock.
func opTimeout(lease time.Duration) time.Duration { return min(lease/5, maxTimeout) }

// Options configures [New]. The zero value is ready to use.
type Options struct {
	// Lease is how long a lock stays held when its holder dies: others wait so long before they
	// take it over. A holder that cannot reach the store loses the lock after about this time.
	// Defaults to [DefaultLease]; at least [MinLease], at most [MaxLease]. [WithLease] overrides it
	// per lock.
	Lease time.Duration

	// GiveUpAfter is how long [Locker.Acquire] goes on while every answer of the store is an error,
	// before it returns an [*UnavailableError]. Defaults to [DefaultGiveUpAfter]. TryAcquire gives
	// up after two failed operations.
	GiveUpAfter time.Duration

	// Owner is shown to those who find the lock held. Defaults to [ThisProcess].
	Owner Process

	// Clock reads a clock that never jumps and, where the system has one, goes on while the machine
	// sleeps. It measures leases. Defaults to CLOCK_BOOTTIME on Linux. Meant for tests.
	Clock func() time.Duration

	// Wall is the clock that seeds the token of a name that has no record. Defaults to time.Now.
	// Meant for tests.
	Wall func() time.Time
}

// Locker acquires locks in one store. It is safe for concurrent use. Close it to release what it
// still holds.
type Locker struct {
	store  Store
	opts   Options
	clock  func() time.Duration // for watching others: never runs ahead of true time
	valid  func() time.Duration // for the own leases: never falls behind true time
	base   context.Context      // of store operations: ends when Close has waited long enough
	cancel context.CancelFunc
	stats  stats

	seen   observations
	queues waitQueues

	watchOnce sync.Once

	batches   BatchRenewer  // the store, if it is one
	renewWake chan struct{} // the schedule of renewals has changed

	open      context.Context // ends when Close begins
	shut      context.CancelFunc
	wg        sync.WaitGroup // everybody who may still use the store
	closeOnce sync.Once
	closeDone chan struct{} // closed when Close has its result
	closeErr  error

	mu     sync.Mutex // guards the fields below; taken after a Lease's
	closed bool       // nobody new is counted in wg
	leases map[HoldID]*Lease

	renewing    bool          // the goroutine of the renewals runs
	nextRenewal time.Duration // until when it sleeps
}

// New returns a Locker on store, which it closes in [Locker.Close]. It does not touch the store
// yet. The error is an [*InvalidError] for an option out of range.
func New(store Store, opts Options) (*Locker, error) {
	if store == nil {
		return nil, &InvalidError{What: "store", Value: "nil", Problem: "open one with mongolock or sqlitelock"}
	}
	if opts.Lease == 0 {
		opts.Lease = DefaultLease
	}
	if err := checkLease(opts.Lease); err != nil {
		return nil, err
	}
	if opts.GiveUpAfter == 0 {
		opts.GiveUpAfter = DefaultGiveUpAfter
	}
	if opts.GiveUpAfter < 0 {
		return nil, &InvalidError{What: "give-up time", Value: opts.GiveUpAfter.String(), Problem: "it must be positive"}
	}
	if opts.Owner == (Process{}) {
		opts.Owner = ThisProcess()
	}
	if err := checkOwner(opts.Owner); err != nil {
		return nil, err
	}
	if opts.Wall == nil {
		opts.Wall = time.Now
	}
	l := &Locker{
		store: store, opts: opts,
		clock: opts.Clock, valid: opts.Clock,
		closeDone: make(chan struct{}),
		leases:    make(map[HoldID]*Lease),
		renewWake: make(chan struct{}, 1),
	}
	l.batches, _ = store.(BatchRenewer)
	if l.clock == nil {
		l.clock, l.valid = clock.Boot, validityClock // a taker that sleeps waits longer, at worst
	}
	l.base, l.cancel = context.WithCancel(context.Background())
	l.open, l.shut = context.WithCancel(context.Background())
	return l, nil
}

// Option changes one call of Acquire or TryAcquire.
type Option func(*config)

type config struct {
	lease      time.Duration
	wait       time.Duration // Acquire only
	waitSet    bool
	why        string
	maxHold    time.Duration
	maxHoldSet bool
	delay      time.Duration
	permits    int
	permitsSet bool
	fair       bool
}

// WithLease sets the lease of this lock instead of [Options.Lease].
func WithLease(d time.Duration) Option { return func(c *config) { c.lease = d } }

// WithWait bounds how long Acquire waits for a holder: after d it returns a [*HeldError]. When the
// store has not answered by then, Acquire goes on as TryAcquire: a context bounds that, too. d must
// be positive; use TryAcquire to not wait.
func WithWait(d time.Duration) Option { return func(c *config) { c.wait, c.waitSet = d, true } }

// WithMaxHold bounds how long the lock is held: it is lost ([LostMaxHold]) after d, as nothing
// renews it beyond. It is a net under holders that hang; a holder that is done releases.
func WithMaxHold(d time.Duration) Option {
	return func(c *config) { c.maxHold, c.maxHoldSet = d, true }
}

// WithShared shares the lock with all others who share it, and with nobody else: many readers, or
// one writer. A writer who waits keeps later readers from overtaking. There may be [MaxEntries]
// readers.
func WithShared() Option { return WithPermits(MaxEntries) }

// WithPermits shares the lock with n-1 others at most: a semaphore. All who use the name should
// agree about n, as each heeds his own. Tokens differ and grow from grant to grant; but as the
// holders of several permits act at the same time, a resource that refuses lower tokens is of no
// use to them.
func WithPermits(n int) Option { return func(c *config) { c.permits, c.permitsSet = n, true } }

// WithFair has Acquire wait in the queue with the waiters of other processes, once it has found the
// lock held: in the line, which is in the lock's record, each gets the lock in turn, and those who
// do not stand in it wait until it is empty, or take a place after a second. A waiter that dies
// holds the line up for its place in it, about a second. While it waits it costs a write every
// fifth of a second.
func WithFair() Option { return func(c *config) { c.fair = true } }

// WithTakeoverDelay has an acquisition that took the lock over from a holder presumed dead wait for
// d, holding the lock, before it returns: for resources that cannot compare tokens, where what the
// old holder sent may still be under way. It costs nothing after a release. TryAcquire waits as
// well.
func WithTakeoverDelay(d time.Duration) Option { return func(c *config) { c.delay = d } }

// WithWhy says what the lock is held for, in at most 512 bytes. It is shown to those who find it
// held.
func WithWhy(why string) Option { return func(c *config) { c.why = why } }

// Acquire takes the lock, waiting for its holder as long as needed, and returns within milliseconds
// when ctx ends. While it waits it costs a parked goroutine, and the first of those in this Locker
// who wait for the same lock a read of one document every 5 to 250 ms. Where many processes wait, it
// takes a place in the record's queue, and looks rarely until its turn is near: a grant costs some
// ten commands then, however many wait. A waiter that dies can leave a contended lock unused for
// two seconds.
//
// Errors: an [*InvalidError] for a bad name or option; a [*HeldError] when ctx or WithWait ended
// while somebody else held the lock (it wraps ctx's error in the first case); an
// [*UnavailableError] when the store did not answer; [ErrClosed]. After an error the caller holds
// nothing: an attempt whose outcome is unclear is undone in the background.
//
// It is not re-entrant, as [Locker.Do] is: to acquire a name twice is to wait for oneself.
func (l *Locker) Acquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return l.acquire(ctx, name, opts, false)
}

// TryAcquire takes the lock if it is free, or held by a dead holder; otherwise it returns a
// [*HeldError] at once. What it saw of the holder is remembered: repeated calls take a dead lease
// over as soon as a waiting Acquire would.
func (l *Locker) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return l.acquire(ctx, name, opts, true)
}

// Close releases all leases, ends all waits with [ErrClosed], waits for the background work of this
// Locker, and closes the store. When ctx ends first, what is left is cut off and the error says so;
// locks that could not be released free themselves after one lease. Closing again waits for the
// same result.
func (l *Locker) Close(ctx context.Context) error {
	l.closeOnce.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.wg.Add(1)
		held := slices.Collect(maps.Values(l.leases))
		l.mu.Unlock()
		l.shut()
		go l.shutdown(ctx, held)
	})
	<-l.closeDone // shutdown ends by itself soon after its context does
	return l.closeErr
}

// shutdown runs once, as the last goroutine of the Locker. It is counted in l.wg until all releases
// are under way.
func (l *Locker) shutdown(ctx context.Context, held []*Lease) {
	defer close(l.closeDone)
	for _, le := range held {
		le.beginRelease(true)
	}
	l.wg.Done()
	var errs []error
	for _, le := range held {
		if err := le.Release(ctx); err != nil && !errors.Is(err, ErrLost) {
			errs = append(errs, err)
		}
	}
	idle := make(chan error, 1)
	go func() {
		// rule: every release comes before the end of the store's client (bk-repo#1960).
		l.wg.Wait()
		l.cancel()
		idle <- l.store.Close()
	}()
	var err error
	select {
	case err = <-idle:
	case <-ctx.Done():
		l.cancel() // whatever still runs ends now, unless the store ignores its context
		select {
		case err = <-idle:
		case <-time.After(2 * hangGrace):
			err = fmt.Errorf("an operation of the lock store does not end: %w", context.Cause(ctx))
		}
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		l.closeErr = fmt.Errorf("close locker: %w", err)
	}
}

// enter counts a caller in, so that Close waits for it. The caller calls l.wg.Done when it leaves.
func (l *Locker) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.wg.Add(1)
	return nil
}

// holds tells whether a hold is one of this Locker's leases.
func (l *Locker) holds(id HoldID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, own := l.leases[id]
	return own
}

// call runs one store operation on its own goroutine and context, bounded by timeout. It returns
// early, with errLeft, when ctx ends or the operation ignores its timeout; late then gets the
// result whenever it comes. So no caller ever waits for a store that hangs, and the connection of
// an operation in flight is not torn down only because a caller lost interest.
//
// The operation gets nothing of the caller's context: a database session in it must not swallow
// lock writes.
//
// The caller must be counted in l.wg.
func call[T any](l *Locker, ctx context.Context, timeout time.Duration, op func(context.Context) (T, error),
	late func(T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var (
		zero    T
		settled atomic.Bool // true: the result has been delivered or left behind
		done    = make(chan result, 1)
	)
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("%w: %w", errNotSent, context.Cause(ctx))
	}
	opCtx, cancel := context.WithTimeout(l.base, timeout)
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		v, err := op(opCtx)
		cancel()
		if settled.CompareAndSwap(false, true) {
			done <- result{v, err}
		} else if late != nil {
			late(v, err)
		}
	}()
	hung := time.NewTimer(timeout + hangGrace)
	defer hung.Stop()
	var left error
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		left = context.Cause(ctx)
	case <-hung.C:
		left = fmt.Errorf("no answer within %v", timeout)
	}
	if !settled.CompareAndSwap(false, true) {
		r := <-done
		return r.v, r.err
	}
	return zero, fmt.Errorf("%w: %w", errLeft, left)
}

// pause waits for d, or until stop is closed. It reports whether it waited to the end.
var pause = wait.Unless

// jitter spreads waiters: those that started together drift apart.
type jitter = wait.Decorrelated

func newJitter(ceiling time.Duration) jitter { return jitter{Min: minPoll, Max: ceiling} }
