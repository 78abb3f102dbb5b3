// Package lock is a distributed mutex with fencing tokens over any store that can update one
// document atomically.
//
// Start with [New], which returns a [Locker] on a store (lock/mongolock, lock/sqlitelock), and with
// [Locker.Do], which runs a function under a lock. [Locker.Acquire] returns a [Lease]: one lock,
// held for a limited time. The Locker renews the lease in the background. If renewals fail, the
// lease ends, and the holder is notified before the lock can be granted again.
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
//	held ──record is no longer ours──► lost  (Context ends with *LostError)
//	held ──deadline, or WithMaxHold──► lost
//
// # Guarantees
//
// Always, whatever clocks, networks and processes do, a grant is returned to at most one caller,
// and its token ([Lease.Token]) is greater than those of all earlier grants of the name. A resource
// that refuses tokens lower than the highest it has seen (fencing) is therefore safe even from a
// holder that was paused and does not know it lost the lock. The token counter lives in the store
// and survives release. If the record itself is deleted (by an operator, or by the garbage collection
// of names idle for weeks), the counter restarts at the wall clock in microseconds, which is above
// every older token unless the clock was set back. [Lease.RaiseToken] covers even that case, for a
// resource that remembers the highest token.
//
// As long as the clock rates of two machines agree within 1/16 and holders honour [Lease.Context],
// at most one lease of a name is valid at any time. Wall clocks play no part in this: no stored date
// is ever compared with a clock. A waiter takes over a lock only after it has itself observed one
// record version unchanged for the holder's whole lease plus 1/16 plus 250 ms. The holder ends its
// lease 1/16 (at least 250 ms) early, counted from when it sent the last acknowledged renewal.
//
// Goroutines of one process acquire a lock in the order in which they requested it. A handoff between
// them takes one round trip. Processes that keep waiting for the same lock take places in the queue
// in its record and usually acquire it in turn. The order is guaranteed only if all of them use
// [WithFair].
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
//	takeover.go   when a holder is presumed dead; observe.go: what a Locker has observed of each record
//	waitqueue.go  the queue inside this process, and places in the record's queue; turns.go: when to poll
//	lease.go      the life of a lease; renew.go: renewals, one by one and in batches
//	release.go    release, handoff, and undoing an attempt whose outcome is unclear
//	failure.go    what an acquisition does after a store error
//	admin.go      operations for operators: list, inspect, request, force
//	set.go, context.go, graph.go  several locks, re-entrance, and roots
//	keyed.go      mutexes of one process
//	store.go      what a backend implements; package locktest tests it
//
// # Protocol
//
// The record of a name is the [Record]; the operations on it are those of [Store]. Every write, except
// those of places in the queue and of requests to release, sets a fresh random record version. Writes
// of a holder are bound to its [HoldID], which is new for every acquisition; only a takeover is bound to
// the version. The reasoning behind each rule, with the failures of other systems it avoids, is in
// docs/decisions/0200-lock-protocol.md and 0203. The observation scheme is that of the DynamoDB lock
// client; fencing tokens are those of Chubby's sequencers (Burrows, OSDI 2006).
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
	// DefaultLease outlasts the election of a MongoDB primary (up to about 12 s) plus one renewal
	// interval.
	DefaultLease = 20 * time.Second
	// MinLease is the shortest lease: the safety margins would consume a shorter one.
	MinLease = time.Second
	// MaxLease bounds how long a crashed holder can block a lock.
	MaxLease = 24 * time.Hour
	// DefaultGiveUpAfter is how long Acquire retries while the store fails.
	DefaultGiveUpAfter = 30 * time.Second

	minMargin  = 250 * time.Millisecond // smallest safety margin at each end of a lease
	maxTimeout = 3 * time.Second        // longest single store operation
	minPoll    = 5 * time.Millisecond   // shortest first pause of a waiter
	maxPoll    = 250 * time.Millisecond // longest pause of a waiter …
	soonPoll   = 70 * time.Millisecond  // … while the present holder is recent: see attempt.read
	eagerPoll  = 10 * time.Millisecond  // longest pause of a waiter that is first in the record's queue …
	eagerPolls = 100                    // … for this many reads, about a second
	hangGrace  = 50 * time.Millisecond  // how long an operation may overrun its timeout before its caller stops waiting
)

// opTimeout bounds one store operation. Several fit into a lease, so that one lost packet does not
// cost the lock.
func opTimeout(lease time.Duration) time.Duration { return min(lease/5, maxTimeout) }

// Options configures [New]. The zero value is ready to use.
type Options struct {
	// Lease is how long other Lockers wait before they take over the lock of a dead holder. A
	// holder that cannot reach the store loses the lock after about this time.
	// Defaults to [DefaultLease]; at least [MinLease], at most [MaxLease]. [WithLease] overrides it
	// per lock.
	Lease time.Duration

	// GiveUpAfter is how long [Locker.Acquire] retries while the store returns nothing but errors, or
	// answers reads but fails every write, as with a full disk. Then Acquire returns an
	// [*UnavailableError]. A wait for a holder does not count, nor does time during a request in
	// which the process was stopped, or its machine suspended. Defaults to [DefaultGiveUpAfter].
	// TryAcquire gives up after two failed operations.
	GiveUpAfter time.Duration

	// Owner identifies the holder to callers that find the lock held. It plays no part in who holds a lock: several Lockers may
	// have the same. Defaults to [ThisProcess]; to choose a name, change Instance in its result.
	Owner Process

	// Clock measures leases. It must be monotonic and should keep running while the machine
	// sleeps. Defaults to CLOCK_BOOTTIME on Linux. Meant for tests.
	Clock func() time.Duration

	// Wall is the clock that seeds the token of a name that has no record. Defaults to time.Now.
	// Meant for tests.
	Wall func() time.Time
}

// Locker acquires locks in one store. It is safe for concurrent use. Close it to release the locks
// it still holds. One Locker per process and store is enough: its callers then wait in one queue, hand
// locks off to each other, and share renewals.
//
// Lock order: the mutex of a Lease, then mu. The mutexes of observations and waitQueues are held only
// inside their methods, which never take another one.
type Locker struct {
	store  Store
	opts   Options
	clock  func() time.Duration // for observing other holders: never runs ahead of true time
	valid  func() time.Duration // for our own leases: never falls behind true time
	base   context.Context      // of store operations: ends when Close stops waiting
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
	wg        sync.WaitGroup // goroutines that may still use the store
	closeOnce sync.Once
	closeDone chan struct{} // closed when Close has its result
	closeErr  error

	mu     sync.Mutex // guards the fields below; taken after a Lease's
	closed bool       // enter no longer adds to wg
	leases map[HoldID]*Lease

	renewing    bool          // the renewal goroutine is running
	nextRenewal time.Duration // when that goroutine next wakes, on valid
}

// New returns a Locker on store, which [Locker.Close] closes. It does not access the store yet. The
// error is an [*InvalidError] for an option out of range.
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
		l.clock, l.valid = clock.Boot, validityClock // if Boot stops during sleep, a takeover only comes later
	}
	l.base, l.cancel = context.WithCancel(context.Background())
	l.open, l.shut = context.WithCancel(context.Background())
	return l, nil
}

// Option modifies one call of [Locker.Acquire], [Locker.TryAcquire], [Locker.Do] or
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
// store has not answered at all by then, Acquire continues like TryAcquire, so that the error can
// name the holder; use a context to bound that, too. d must be positive; to not wait at all, use
// TryAcquire, which ignores this option.
func WithWait(d time.Duration) Option { return func(c *config) { c.wait, c.waitSet = d, true } }

// WithMaxHold bounds how long the lock is held: after d it is no longer renewed and is lost
// ([LostMaxHold]). It is a safety net for holders that hang; a holder that is done must still release.
func WithMaxHold(d time.Duration) Option {
	return func(c *config) { c.maxHold, c.maxHoldSet = d, true }
}

// WithShared acquires the lock as one of many readers: it is shared with other callers that use
// WithShared and excludes callers that do not (writers). Later readers do not overtake a waiting
// writer. There can be up to [MaxEntries] readers. It is WithPermits(MaxEntries): given both options,
// the last one counts.
func WithShared() Option { return WithPermits(MaxEntries) }

// WithPermits shares the lock among at most n holders: a semaphore. All users of the name should
// pass the same n, because each acquisition checks only its own. Every grant still has a greater
// token than the one before it, but do not fence with these tokens: holders act concurrently, and a
// resource that refuses lower tokens would refuse all but the newest holder.
func WithPermits(n int) Option { return func(c *config) { c.permits, c.permitsSet = n, true } }

// WithFair makes Acquire, once it has found the lock held, wait in the queue in the lock's record
// together with waiters of other processes. Waiters in the queue get the lock in turn. Waiters
// outside it wait until it is empty, or take a place after a second. A waiter that dies blocks the
// queue until its place expires, after about a second. Waiting in the queue costs a write every fifth
// of a second. TryAcquire, which does not wait, ignores this option; it does not overtake the queue either.
func WithFair() Option { return func(c *config) { c.fair = true } }

// WithTakeoverDelay delays an acquisition that took over the lock from a holder presumed dead: it
// holds the lock for d before it returns. Use it for resources that cannot compare tokens, where
// requests of the old holder may still be in flight. An acquisition after a release is not delayed.
// If the caller stops waiting, the lock stays held until d has passed. It applies to TryAcquire as well.
// All users of the name should pass the same d: a caller without it that takes the lock over and releases it
// leaves the next one without a delay.
func WithTakeoverDelay(d time.Duration) Option { return func(c *config) { c.delay = d } }

// WithWhy says what the lock is held for, in at most 512 bytes. Callers that find the lock held see
// this text.
func WithWhy(why string) Option { return func(c *config) { c.why = why } }

// Acquire takes the lock, waiting for its holder as long as needed, and returns within milliseconds
// when ctx ends.
//
// A wait costs a parked goroutine. Of the goroutines of this Locker that wait for the same lock, only
// the first polls: it reads one document every 5 to 250 ms. Where many processes wait, it takes a place
// in the record's queue and reads rarely until its turn is near, so a grant costs about ten commands
// however many wait. A waiter that dies can leave a contended lock unused for two seconds.
//
// Errors: an [*InvalidError] for an invalid name or option; a [*HeldError] if ctx or WithWait ended
// while the lock was held (it wraps ctx's error in the first case); an [*UnavailableError] if the
// store did not answer, or failed every write; [ErrClosed]. After an error the caller holds nothing: an attempt whose
// outcome is unclear is undone in the background.
//
// Acquire is not re-entrant, as [Locker.Do] is: a holder that acquires the same name again waits for itself. If ctx shows
// that, because it holds the lock (see [From]), the error is a [*HeldError] at once.
func (l *Locker) Acquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return l.acquire(ctx, name, opts, false)
}

// TryAcquire takes the lock if it is free, or held by a dead holder; otherwise it returns a
// [*HeldError] at once. The Locker remembers its observations of the holder, so repeated calls take
// over a dead lease as soon as a waiting Acquire would.
func (l *Locker) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return l.acquire(ctx, name, opts, true)
}

// Close releases all leases, ends all waits with [ErrClosed], waits for the background work of this
// Locker, and closes the store. If ctx ends first, Close cancels the remaining work and returns an
// error; locks that could not be released become free after one lease. Further calls wait for, and
// return, the same result.
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
	<-l.closeDone // shutdown ends soon after its context does
	return l.closeErr
}

// shutdown runs once, as the last goroutine of the Locker. It is counted in l.wg until all releases
// have been started.
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
		// rule: every release ends before the store's client is closed (bk-repo#1960).
		l.wg.Wait()
		l.cancel()
		idle <- l.store.Close()
	}()
	var err error
	select {
	case err = <-idle:
	case <-ctx.Done():
		l.cancel() // ends all operations still running, unless the store ignores its context
		select {
		case err = <-idle:
		case <-time.After(2 * hangGrace):
			err = fmt.Errorf("an operation of the lock store does not end: %w", endOf(ctx))
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

// holds reports whether a hold belongs to a live lease of this Locker.
func (l *Locker) holds(id HoldID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, own := l.leases[id]
	return own
}

// call runs one store operation on its own goroutine and context, bounded by timeout. It returns
// early when ctx ends or the operation ignores its timeout; late then receives the
// result whenever it arrives. So no caller waits for a store that hangs, and a caller that stops
// waiting does not cancel its operation, which would cost the driver a connection.
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
		settled atomic.Bool // true: the result has been delivered, or the caller no longer waits for it
		done    = make(chan result, 1)
	)
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("%w: %w", errNotSent, endOf(ctx))
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
		left = fmt.Errorf("stopped waiting for the answer of the lock store: %w", endOf(ctx))
	case <-hung.C:
		left = fmt.Errorf("no answer within %v", timeout)
	}
	if !settled.CompareAndSwap(false, true) {
		r := <-done
		return r.v, r.err
	}
	return zero, left
}

// pause waits for d, or until stop is closed. It reports whether it waited for all of d.
var pause = wait.Unless

// jitter spreads waiters, so that those that started together drift apart.
type jitter = wait.Decorrelated

// newJitter returns the backoff of a wait or of retries: random pauses from minPoll up to ceiling.
func newJitter(ceiling time.Duration) jitter { return jitter{Min: minPoll, Max: ceiling} }

// newPoll returns the pauses between the reads of a waiter. They differ by less than a jitter's: the more even the reads are, the
// sooner as many of them find that the lock is free.
func newPoll() wait.Backoff { return wait.Backoff{Min: 2 * minPoll, Max: maxPoll} }
