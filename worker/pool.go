package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/share"
	"golang.org/x/sync/semaphore"
)

const (
	discoverEvery = 2 * time.Second        // how often globs are matched against all types, while the listener does not work
	acquireInSlot = 100 * time.Millisecond // like acquireSlice, but for a replica whose wait occupies a slot (MaxTypes)
	maxLooks      = 16                     // types, or locks of other replicas, that a pool checks concurrently
	maxOpening    = 32                     // types that a pool opens concurrently: with more, an urgent one would wait for all the others
	freshLook     = 50 * time.Millisecond  // a pool that checked a type for messages this recently does not check again under its lock
	retryMin      = 100 * time.Millisecond // pause after a failed session: the first …
	retryMax      = 30 * time.Second       // … and the longest
)

// Pool serves types until it is stopped. Create it with [New] and call [Pool.Run] once; then create
// another one. All methods are safe for concurrent use.
type Pool struct {
	replica
	types    globs.Set           // Config.Types
	slots    *semaphore.Weighted // nil: no bound
	looks    *semaphore.Weighted // checks of types and of their locks: at most maxLooks
	opening  *semaphore.Weighted // types being opened: at most maxOpening, or fewer, see openingPart
	stopOnce sync.Once
	ran      atomic.Bool // Run was called

	mu     sync.Mutex
	served map[string]bool // types found so far; a type stays served until Run returns
}

// New checks the configuration and creates a pool. It does not touch the network or the disk. The
// error wraps [ErrConfig].
func New(cfg Config) (*Pool, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	var id [6]byte
	rand.Read(id[:])
	instance := hex.EncodeToString(id[:])
	host, _ := os.Hostname()
	p := &Pool{
		replica: replica{
			cfg:      cfg,
			log:      cfg.Logger.With().Str("worker", instance).Logger(),
			instance: instance,
			name:     fmt.Sprintf("%s, %s pid %d", instance, host, os.Getpid()),
			began:    time.Now(),
			memory:   newMemory(&cfg),
			polling:  make(chan struct{}, maxPolling),
			book:     newBook(),
			files:    newKnownFiles(),
		},
		types:   globs.NewSet(cfg.Types),
		served:  make(map[string]bool),
		looks:   semaphore.NewWeighted(maxLooks),
		opening: semaphore.NewWeighted(maxOpening),
	}
	p.stopping, p.stop = context.WithCancel(context.Background())
	p.rebalancer = newRebalancer(&p.replica)
	patience := wait.Patience{Min: listenTimeout, Max: listenLongest}
	p.listener = &listener{pool: p, reads: patience, lists: patience}
	switch to := cfg.To.(type) {
	case Files:
		p.dest, p.fs = to, storage.Shared(to.Storage.FS)
	case Handling:
		var err error
		if p.handler, err = to.handler(); err != nil {
			return nil, err
		}
	}
	if cfg.MaxTypes > 0 {
		p.slots = semaphore.NewWeighted(int64(cfg.MaxTypes))
	}
	return p, nil
}

// Stop makes a running pool stop gracefully: the pool stops fetching, appends, syncs and acknowledges
// the messages it has fetched (with a Handler: finishes the current batch), and releases the locks.
// Stop returns at once; Run returns when all that is done. An unresponsive queue delays Run only if
// fetched messages depend on its answer; a lock release without an answer continues in the background
// until the Locker is closed. Further calls do nothing.
//
// A Handler delays Run for as long as a batch takes it. To bound that, end Run's ctx some time after Stop;
// a Handler that ignores its ctx delays Run even then.
func (p *Pool) Stop() { p.stopOnce.Do(func() { p.stoppedAt = time.Now(); p.stop() }) }

// Stats returns the counters so far.
func (p *Pool) Stats() Stats {
	s := p.book.totals()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Types = len(p.served)
	return s
}

// Status returns what the pool is doing. It reads memory only, neither the server nor the disk.
func (p *Pool) Status() Status {
	s := p.book.status(2*time.Minute + 2*p.cfg.Lease + p.cfg.RetryMax + p.cfg.Linger)
	s.Instance, s.Stopping = p.instance, p.stopping.Err() != nil
	return s
}

// Subscribe returns a channel of the pool's events of the given kinds, or of all kinds if none is
// given. Events of one type come in order. The channel is closed when Run returns, or by cancel,
// which may be called more than once.
//
// The pool never waits for a subscriber. The channel holds buffer events, at least 1. When it is
// full, the oldest event is dropped for the new one, and Event.Missed counts the dropped events. So
// the last event always arrives, and a slow subscriber can see that it missed some. Use Config.Events
// to get every event, and Stats for counts.
func (p *Pool) Subscribe(buffer int, kinds ...EventKind) (events <-chan Event, cancel func()) {
	sub := &subscription{events: make(chan Event, max(buffer, 1)), kinds: slices.Clone(kinds)}
	s := &p.subscriptions
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		close(sub.events)
	} else {
		s.all = append(s.all, sub)
	}
	return sub.events, func() { s.cancel(sub) }
}

// Run serves the types until Stop is called, all types are empty (Config.UntilEmpty), or ctx ends.
// The end of ctx aborts everything at once; no message is lost, and the next holder continues. Run still
// waits until a running Handler returns.
//
// Run returns the cause of ctx if ctx has ended. Otherwise it returns nil, or the errors of the types
// that were refused at the end (State Refused): an operator has to change something, for example restore
// a file, or grant a permission. As long as some types can be served, Run continues with those: until
// Stop, or with UntilEmpty until they are drained. A type whose failures may pass, such as an outage, a
// full disk or a handler that fails, is retried until then. Run does not return its error; Status has
// it. With UntilEmpty it also returns an *UnfitError for each type whose queue still has messages that
// cannot be appended, and a *PausedError for each paused type with messages, and does not wait for room
// on a full disk. A pool whose queue or Locker was closed ends with queue.ErrClosed or lock.ErrClosed, wrapped.
// A second call returns an error at once.
func (p *Pool) Run(ctx context.Context) error {
	if p.ran.Swap(true) {
		return errors.New("worker: a Pool runs once; create another one with New")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.book.setRunning(true)
	defer p.book.setRunning(false)
	defer p.subscriptions.close()
	leave := p.rebalancer.Begin(ctx, cancel)
	defer leave()
	var types sync.WaitGroup
	serve := func(pending bool, names ...string) (fresh, served []string) {
		fresh, served = p.claim(pending, names)
		at := p.placeAmong(len(fresh))
		for _, typ := range slices.Concat(fresh[at:], fresh[:at]) {
			p.book.add(typ)
			types.Go(func() { p.serve(ctx, typ, pending, cancel) })
		}
		return fresh, served
	}
	stopScheduler := p.startScheduler(ctx)
	p.listener.serve = serve
	stopListening := p.listener.start(ctx)
	err := p.discover(ctx, serve, types.Wait)
	stopListening()
	types.Wait()
	stopScheduler()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	err = errors.Join(err, p.book.refusals())
	if p.cfg.UntilEmpty {
		err = errors.Join(err, p.book.leftBehind())
	}
	return err
}

// discover calls serve for every type that the configuration names or matches. It returns when the
// pool stops or, with UntilEmpty, when all types are done and no new type has appeared meanwhile.
func (p *Pool) discover(ctx context.Context, serve serveFunc, wait func()) error {
	var names []string
	for _, t := range p.cfg.Types {
		if !globs.Is(t) {
			names = append(names, t)
		}
	}
	p.begin(ctx, names, serve)
	if len(names) == len(p.cfg.Types) {
		if p.cfg.UntilEmpty {
			wait()
			return nil
		}
		p.pause(ctx, math.MaxInt64)
		return nil
	}
	var outage outage
	ctx, done := p.untilStop(ctx)
	defer done()
	for {
		began := time.Now()
		p.book.noteAsking("")
		known, err := p.cfg.Queue.Types(ctx)
		p.book.noteAnswer(ctx, "", err)
		took := time.Since(began)
		p.strays.warn(p.cfg.Queue.Strays(), &p.log)
		if p.outages.note(ctx, &outage, &p.log, err, "list the types") && p.cfg.UntilEmpty && fatal(err) {
			return err
		}
		fresh := slices.DeleteFunc(known, func(t string) bool { return !p.matches(t) || p.isServed(t) })
		p.begin(ctx, fresh, serve)
		if p.cfg.UntilEmpty && err == nil {
			if len(fresh) == 0 {
				return nil
			}
			wait()
			continue
		}
		if !p.awaitDiscovery(ctx, took) {
			return nil
		}
	}
}

// serveFunc starts serving those of the given types that the configuration names or matches and that are
// not served yet. It returns these as fresh, and those that were served already as served. pending means
// that the types are known to have messages.
type serveFunc func(pending bool, types ...string) (fresh, served []string)

// claim marks the given types as served, if the configuration names or matches them: see serveFunc.
func (p *Pool) claim(pending bool, names []string) (fresh, served []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, typ := range names {
		switch {
		case p.served[typ]:
			served = append(served, typ)
		case p.matches(typ):
			p.served[typ] = true
			fresh = append(fresh, typ)
		}
	}
	p.rebalancer.Join(pending, fresh...) // before they are served: others use what it creates
	return fresh, served
}

// begin starts serving types. With UntilEmpty it queries all of them at once, and those without
// messages are done.
func (p *Pool) begin(ctx context.Context, types []string, serve serveFunc) {
	if len(types) < 2 || !p.cfg.UntilEmpty {
		serve(false, types...)
		return
	}
	ctx, done := p.untilStop(ctx)
	defer done()
	pending, err := p.pending(ctx, types, len(types))
	if err != nil {
		serve(false, types...) // the check of each type reports the error
		return
	}
	serve(true, pending...)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, typ := range types {
		p.served[typ] = true
		p.book.add(typ)
	}
}

// awaitDiscovery waits until the types should be listed again; false means that the pool has stopped.
// It waits longer if listing is slow, and while the listener works, because the listener finds types
// with messages by itself. took is how long the last listing took.
func (p *Pool) awaitDiscovery(ctx context.Context, took time.Duration) bool {
	alone := max(discoverEvery, p.rebalancer.Spread(sweepShare*took))
	for began := time.Now(); ; {
		if !p.pause(ctx, discoverEvery) {
			return false
		}
		waited := time.Since(began)
		if waited >= sweepMost || waited >= alone && !p.listener.listening.Load() {
			return true
		}
	}
}

// matches reports whether Config.Types names or matches a type.
func (p *Pool) matches(typ string) bool { return p.types.Match(typ) }

// isServed reports whether a type has been found before. Once found, it is served until Run returns.
func (p *Pool) isServed(typ string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served[typ]
}

// errAsked is returned by hold after a session that ended in order because the release of its lock was
// requested. This pool then waits for standBack before it competes for the lock again.
var errAsked = errors.New("the type was asked for")

// inOrder reports whether a session that ended with err ended without a failure.
func inOrder(err error) bool { return err == nil || errors.Is(err, errAsked) }

const standBack = 2 * time.Second

// serve is the loop of one type in this pool: watch, acquire, run a session, repeat. pending means that
// the type is known to have messages. giveUp ends the pool.
func (p *Pool) serve(ctx context.Context, typ string, pending bool, giveUp context.CancelCauseFunc) {
	defer p.rebalancer.Drop(typ)
	if !pending && !p.rebalancer.Paused(typ) {
		p.awaitNews(ctx, typ)
	}
	retry := wait.Backoff{Min: retryMin, Max: retryMax}
	for !p.stopped(ctx) {
		watching, done := p.untilStop(ctx) // no message depends on these answers: a stop does not wait for them
		t, looked, err := p.awaitTurn(watching, typ)
		done()
		drained := false
		if err == nil && t == share.TurnNone {
			return
		}
		if err == nil {
			began := time.Now()
			drained, err = p.hold(ctx, typ, t, looked)
			if time.Since(began) > retryMax { // a session that lasted this long is not one of a series of failures
				retry.Reset()
			}
		}
		if !p.goesOn(ctx, typ, drained, err, &retry, giveUp) {
			return
		}
	}
}

// goesOn decides whether the pool continues with a type after a turn that ended with err. If it does,
// goesOn pauses first where necessary.
func (p *Pool) goesOn(ctx context.Context, typ string, drained bool, err error, retry *wait.Backoff, giveUp context.CancelCauseFunc) bool {
	log := p.logOf(typ)
	asked := errors.Is(err, errAsked)
	if asked {
		err = nil
	}
	if cancelled(ctx, err) {
		p.book.noteEnd(typ, nil)
	} else {
		p.book.noteEnd(typ, err)
	}
	if !drained {
		p.book.setUnfit(typ, nil) // the type is no longer held here
	}
	if drained && err == nil {
		p.noteNothing(typ)
	}
	switch {
	case drained && p.cfg.UntilEmpty && err == nil:
		return false
	case err == nil:
		p.book.setRefused(typ, nil)
		retry.Reset()
		return !asked || p.pause(ctx, standBack)
	case ctx.Err() != nil:
		if !cancelled(ctx, err) {
			log.Warn().Err(err).Msg("session failed while the pool was ending")
		}
		return false
	case errors.Is(err, lock.ErrClosed):
		giveUp(err) // no lock can ever be acquired again
		return false
	case errors.Is(err, lock.ErrLost) || errors.Is(err, storage.ErrFenced):
		// Another replica holds the type, or this process was paused for too long. Nothing is wrong
		// with the type.
		p.book.countType(typ, func(s *Stats) { s.Lost++ })
		log.Warn().Err(err).Msg("lock lost; another worker may continue this type")
	case fatal(err):
		p.book.setRefused(typ, err)
		p.tellTrouble(typ, err.Error(), err, "type cannot be served")
		if p.cfg.UntilEmpty {
			return false
		}
		// An unusable lock record does not end the pool: an operator can remove the record while workers run.
		if all := p.book.allRefused(p.cfg.Types); all != nil && !errors.Is(err, lock.ErrDamaged) {
			giveUp(all)
			return false
		}
	case errors.Is(err, ErrPaused), p.cfg.UntilEmpty && errors.Is(err, storage.ErrNoSpace):
		p.book.setRefused(typ, err)
		return false
	case errors.Is(err, storage.ErrNoSpace):
		p.book.setRefused(typ, nil) // any earlier problem with the file is gone
		p.tellTrouble(typ, "no room", err, "session failed; the type continues when there is room")
	default:
		p.tellTrouble(typ, err.Error(), err, "session failed; retrying")
	}
	return p.pause(ctx, retry.Next())
}

// hold takes a slot and the type's lock, and runs one session. It returns nil if the session ended in
// order (errAsked if the release of its lock was requested), if another replica holds the lock, or if no
// messages were left when the lock became free. looked is when the pool last checked for messages.
// drained means that the session has seen the type empty.
func (p *Pool) hold(ctx context.Context, typ string, t share.Turn, looked time.Time) (drained bool, err error) {
	defer p.rebalancer.Freed(typ)
	wait := acquireSlice
	if p.slots != nil {
		var ok bool
		if wait, ok = p.takeSlot(ctx, t); !ok {
			return false, nil
		}
		defer p.slots.Release(1)
	}
	slot := &openingSlot{slots: p.opening, part: p.openingPart()}
	defer slot.release()
	lease, waited, err := p.lock(ctx, typ, t, wait, slot)
	if lease == nil {
		return false, err
	}
	if waited {
		looked = time.Time{} // the last holder may have drained the type meanwhile
	}
	p.noteHeld(typ, lease)
	defer func() { p.unlock(ctx, typ, lease, inOrder(err)) }()
	if t != share.TurnAsk && p.isDrained(ctx, typ, looked) { // a type that this pool asked for has traffic
		return false, nil // the previous holder drained it: do not open the file, which would add a fence
	}
	s := newSession(&p.replica, typ, lease)
	p.rebalancer.Holds(typ, s)
	drained, err = s.run(ctx, slot)
	if err == nil && s.asked() {
		err = errAsked
	}
	return drained, err
}

// takeSlot takes one of the slots of a pool with Config.MaxTypes. wait is how long to wait for the lock
// while occupying the slot. ok is false if no slot is available for this turn, or if the pool stops.
func (p *Pool) takeSlot(ctx context.Context, t share.Turn) (wait time.Duration, ok bool) {
	if t == share.TurnStandBy {
		return acquireSlice, p.slots.TryAcquire(1)
	}
	ctx, done := p.untilStop(ctx)
	defer done()
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	p.rebalancer.WakeSessions() // so that an idle session ends and frees its slot
	return acquireInSlot, p.slots.Acquire(ctx, 1) == nil
}

// lock acquires the type's lock. The lease is nil if another replica holds the lock, or if the pool stops. waited means that
// another replica held it at the first attempt.
func (p *Pool) lock(ctx context.Context, typ string, t share.Turn, wait time.Duration, slot *openingSlot) (lease *lock.Lease, waited bool, err error) {
	ctx, done := p.untilStop(ctx)
	defer done()
	p.book.wants(typ)
	lease, waited, err = p.acquire(ctx, typ, t, wait, slot)
	switch {
	case lease != nil:
		return lease, waited, nil
	case ctx.Err() != nil, errors.Is(err, lock.ErrHeld):
		return nil, waited, nil // watch again: the holder may drain the type meanwhile
	}
	return nil, waited, fmt.Errorf("acquire the lock of type %q: %w", typ, err)
}

// unlock releases the type's lock. tell is false after a session that ended with an error: a failed
// release is then not logged as well.
func (p *Pool) unlock(ctx context.Context, typ string, lease *lock.Lease, tell bool) {
	defer p.book.noteHeld(typ, nil)
	// The release has a context of its own, because the session's has ended. Without a release the next
	// holder would have to wait until the lease expires.
	ctx, cancel := p.parting(context.WithoutCancel(ctx), p.cfg.Lease/5)
	defer cancel()
	if err := lease.Release(ctx); err != nil && tell && !errors.Is(err, lock.ErrLost) {
		log := p.logOf(typ)
		log.Warn().Err(err).Msg("lock not released yet; if the server does not answer, it expires")
	}
}

// isDrained queries whether a type has run out of messages. It returns false without a query if the pool has just checked, or if it
// runs with UntilEmpty and no other pool can have drained the type in the meantime.
func (p *Pool) isDrained(ctx context.Context, typ string, looked time.Time) bool {
	if time.Since(looked) <= freshLook || p.cfg.UntilEmpty && p.rebalancer.Sole(typ) {
		return false
	}
	ctx, done := p.untilStop(ctx)
	defer done()
	// rule: the check of a held type does not queue up with those of other types: there may be thousands.
	d, err := p.ask(ctx, typ)
	drained := err == nil && d.Pending == 0
	p.rebalancer.Asked(drained)
	return drained
}
