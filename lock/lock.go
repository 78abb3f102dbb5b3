// Package lock is a distributed mutex with fencing tokens over any store that can update one
// document atomically.
//
// Start with [New], which makes a [Locker] on a store (lock/mongolock, lock/sqlitelock), and with
// [Locker.Do], which runs a function under a lock. [Locker.Acquire] returns a [Lease]: one lock,
// held for a while. The Locker renews the lease in the background. When renewals fail, the lease
// ends, and the holder learns so, before anybody else can get the lock.
//
// # Life of a lock
//
//	              free                       held by another, which renews
//	Acquire ──► Store.Acquire ──► held     ──► wait: read, sleep 5…250 ms, read …
//	              │ no record               held by another, unchanged for its whole lease
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
// at most one lease of a name is valid at any time. Wall clocks play no part in that: nobody compares
// a stored date with a clock. A waiter takes a lock over only after it has itself watched one record version
// stay unchanged for the holder's whole lease plus 1/16 plus 250 ms. The holder ends its lease 1/16
// (at least 250 ms) early, counted from when it sent the last renewal that was acknowledged.
//
// Goroutines of one process get a lock in the order in which they asked. A handoff between them
// takes one round trip. Processes that keep waiting for the same lock take places in the queue in
// its record and usually get it in turn. Turns are guaranteed only if all of them use [WithFair].
//
// A lock can be shared ([WithShared], [WithPermits]). Each share is a lease of its own: it is
// renewed, lost and released independently of the others.
//
// # Several locks, nesting
//
// [Locker.Do] runs a function under a lock, [Locker.AcquireAll] holds several locks, and [Graph]
// locks objects that depend on each other by locking their roots. These three are re-entrant
// through the context. [Keyed] is a mutex per key inside one process; it needs no store.
//
// # Where to read
//
//	acquire.go    an acquisition, step by step: read, acquire, confirm, take over
//	takeover.go   when a holder is presumed dead; observe.go: what a Locker has seen of each record
//	waitqueue.go  the queue inside this process, and places in the record's queue; turns.go: when to look
//	lease.go      the life of a lease; renew.go: renewals, one by one and in batches
//	release.go    release, handoff, and undoing an attempt whose outcome is unclear
//	failure.go    what an acquisition does after an error of the store
//	admin.go      what operators do: list, inspect, request, force
//	set.go, context.go, graph.go  several locks, re-entrance, and roots
//	keyed.go      mutexes of one process
//	store.go      what a backend implements; package locktest tests it
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
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/wait"
)

// Bounds and defaults. Processes on one store may use different leases, but they must agree on
// these bounds and margins: they are part of the protocol.
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
	maxPoll    = 250 * time.Millisecond // longest pause of a waiter …
	soonPoll   = 80 * time.Millisecond  // … until it has waited for long: see attempt.read
	eagerPoll  = 10 * time.Millisecond  // longest pause of a waiter that is now first in the record's queue …
	eagerPolls = 100                    // … for this many reads, about a second
	hangGrace  = 50 * time.Millisecond  // how long an operation may outlive its timeout before it is left behind
)

// opTimeout bounds one store operation. Several fit into a lease, so that one lost packet does not
// cost the lock.
func opTimeout(lease time.Duration) time.Duration { return min(lease/5, maxTimeout) }

// Options configures [New]. The zero value is ready to use.
type Options struct {
	// Lease is how long others wait before they take over the lock of a dead holder. A holder
	// that cannot reach the store loses the lock after about this time.
	// Defaults to [DefaultLease]; at least [MinLease], at most [MaxLease]. [WithLease] overrides it
	// per lock.
	Lease time.Duration

	// GiveUpAfter is how long [Locker.Acquire] goes on while every answer of the store is an error,
	// before it returns an [*UnavailableError]. Time in which the process was stopped, or its machine
	// suspended, during a request does not count. Defaults to [DefaultGiveUpAfter]. TryAcquire gives
	// up after two failed operations.
	GiveUpAfter time.Duration

	// Owner is shown to those who find the lock held. Defaults to [ThisProcess].
	Owner Process

	// Clock measures leases. It must be monotonic and should keep running while the machine
	// sleeps. Defaults to CLOCK_BOOTTIME on Linux. Meant for tests.
	Clock func() time.Duration

	// Wall is the clock that seeds the token of a name that has no record. Defaults to time.Now.
	// Meant for tests.
	Wall func() time.Time
}

// Locker acquires locks in one store. It is safe for concurrent use. Close it to release what it
// still holds. One Locker per process and store is enough: its goroutines then wait in one queue, hand
// locks off to each other, and share the renewals.
//
// Mutexes are taken in this order: that of a Lease, then mu. Those of observations and waitQueues are
// held only inside their methods, which call nothing that takes another one.
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
	pace   pace // of the store's answers

	watchOnce sync.Once

	batches   BatchRenewer  // the store, if it implements that; nil otherwise
	renewWake chan struct{} // the schedule of renewals has changed

	open      context.Context // ends when Close begins
	shut      context.CancelFunc
	wg        sync.WaitGroup // everybody who may still use the store
	closeOnce sync.Once
	closeDone chan struct{} // closed when Close has its result
	closeErr  error

	mu     sync.Mutex // guards the fields below; taken after a Lease's
	closed bool       // enter adds nobody to wg any more
	leases map[HoldID]*Lease

	renewing    bool          // the goroutine of the renewals runs
	nextRenewal time.Duration // when that goroutine wakes next, on valid
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

// Option changes one call of [Locker.Acquire], [Locker.TryAcquire], [Locker.Do] or
// [Locker.AcquireAll].
type Option func(*config)

// config has the options of one acquisition.
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

// WithWait bounds how long Acquire waits for a holder: after d it returns a [*HeldError]. If the
// store has not answered once by then, Acquire continues like TryAcquire, so that the error can name
// the holder; use a context to bound that, too. d must be positive; to not wait use TryAcquire.
func WithWait(d time.Duration) Option { return func(c *config) { c.wait, c.waitSet = d, true } }

// WithMaxHold bounds how long the lock is held: after d it is not renewed any more and is lost
// ([LostMaxHold]). It is a safety net for holders that hang; a holder that is done must release.
func WithMaxHold(d time.Duration) Option {
	return func(c *config) { c.maxHold, c.maxHoldSet = d, true }
}

// WithShared acquires the lock as one of many readers: it is shared with other callers of WithShared
// and excludes those without (writers). A waiting writer keeps later readers from overtaking it.
// There can be up to [MaxEntries] readers.
func WithShared() Option { return WithPermits(MaxEntries) }

// WithPermits shares the lock among at most n holders: a semaphore. All users of the name should
// pass the same n, because each acquisition checks only its own. Every grant still has a greater
// token than the one before it, but do not fence with these tokens: holders act at the same time,
// and a resource that refuses lower tokens would refuse all but the newest holder.
func WithPermits(n int) Option { return func(c *config) { c.permits, c.permitsSet = n, true } }

// WithFair makes Acquire, once it has found the lock held, wait in the queue in the lock's record
// together with waiters of other processes. Those in the queue get the lock in turn. Those outside
// wait until it is empty, or take a place after a second. A waiter that dies blocks the queue until
// its place expires, about a second. Waiting in the queue costs a write every fifth of a second.
func WithFair() Option { return func(c *config) { c.fair = true } }

// WithTakeoverDelay delays an acquisition that took the lock over from a holder presumed dead: it
// holds the lock for d before it returns. Use it for resources that cannot compare tokens, where
// requests of the old holder may still be in flight. An acquisition after a release is not delayed.
// When the caller stops waiting, the lock stays held until d is over. It applies to TryAcquire as well.
func WithTakeoverDelay(d time.Duration) Option { return func(c *config) { c.delay = d } }

// WithWhy says what the lock is held for, in at most 512 bytes. It is shown to those who find it
// held.
func WithWhy(why string) Option { return func(c *config) { c.why = why } }

// Acquire takes the lock, waiting for its holder as long as needed, and returns within milliseconds
// when ctx ends.
//
// A wait costs a parked goroutine. Of the goroutines of this Locker that wait for the same lock, the
// first reads one document every 5 to 250 ms. Where many processes wait, that one takes a place in
// the record's queue and reads rarely until its turn is near, so a grant costs about ten commands
// however many wait. A waiter that dies can leave a contended lock unused for two seconds.
//
// Errors: an [*InvalidError] for a bad name or option; a [*HeldError] when ctx or WithWait ended
// while somebody else held the lock (it wraps ctx's error in the first case); an
// [*UnavailableError] when the store did not answer; [ErrClosed]. After an error the caller holds
// nothing: an attempt whose outcome is unclear is undone in the background.
//
// Acquire is not re-entrant: a holder that acquires the same name again waits for itself.
// [Locker.Do] is re-entrant.
func (l *Locker) Acquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return l.acquire(ctx, name, opts, false)
}

// TryAcquire takes the lock if it is free, or held by a dead holder; otherwise it returns a
// [*HeldError] at once. It remembers what it saw of the holder: repeated calls take a dead lease
// over as soon as a waiting Acquire would.
func (l *Locker) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return l.acquire(ctx, name, opts, true)
}

// Close releases all leases, ends all waits with [ErrClosed], waits for the background work of this
// Locker, and closes the store. If ctx ends first, Close cancels the rest and returns an error;
// locks that could not be released become free after one lease. Further calls wait for the same
// result.
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
		if !le.lapse() {
			le.beginRelease(true)
		}
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

// enter adds the caller to l.wg, so that Close waits for it. The caller calls l.wg.Done when it is
// done. The error is ErrClosed.
func (l *Locker) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.wg.Add(1)
	return nil
}

// holds tells whether a hold belongs to a live lease of this Locker.
func (l *Locker) holds(id HoldID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, own := l.leases[id]
	return own
}

// call runs one store operation on its own goroutine and context, bounded by timeout. It returns
// early, with errLeft, when ctx ends or the operation ignores its timeout; late then receives the
// result whenever it comes. So no caller waits for a store that hangs. And a caller that stops
// waiting does not cancel its operation, which would cost the driver the connection.
//
// The operation does not see the caller's context: if that carried a database session, the lock's
// writes would become part of the caller's transaction.
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
	timeout = min(timeout, math.MaxInt64-hangGrace)
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

// pause waits for d, or until stop is closed. It reports whether it waited for all of d.
var pause = wait.Unless

// jitter spreads waiters: those that started together drift apart.
type jitter = wait.Decorrelated

// newJitter makes the backoff of a wait or of retries: random pauses from minPoll up to ceiling.
func newJitter(ceiling time.Duration) jitter { return jitter{Min: minPoll, Max: ceiling} }
