package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	mrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"github.com/fencepost/fencepost/worker/internal/share"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
)

const (
	discoverEvery = 2 * time.Second        // how often globs are matched against the known types
	watchMin      = 5 * time.Millisecond   // polling for backlog: first interval …
	watchMax      = 500 * time.Millisecond // … and the longest
	acquireSlice  = time.Second            // a waiting replica looks whether there is still backlog this often …
	acquireInSlot = 100 * time.Millisecond // … and if it blocks a slot for that, this often
	retryMin      = 100 * time.Millisecond // pause after a session that failed: first …
	retryMax      = 30 * time.Second       // … and longest
)

// Pool serves types until it is stopped. Create it with New, run it with Run, once.
type Pool struct {
	cfg        Config
	log        zerolog.Logger
	handler    Handler // with all middleware; nil: the messages go to files
	instance   string
	began      time.Time
	rebalancer *share.Rebalancer
	name       string              // instance, with host and process, for letters
	slots      *semaphore.Weighted // nil: no bound
	waiting    atomic.Int32        // types that wait for a slot
	memory     *memory
	stopping   chan struct{}
	stopOnce   sync.Once

	stoppedAt time.Time // set before stopping is closed

	subscriptions subscriptions

	mu      sync.Mutex
	refused map[string]error         // types whose file cannot be used, until it can
	durable map[string]storage.Entry // per type: its file, and how far that was durable at the end of a session
	lives   map[string]ledger.Lives  // by type
	served  map[string]bool
	stats   Stats
	book    book            // see status.go
	strays  map[string]bool // of which there was a warning
}

// Stats counts what a Pool has done since it was created.
type Stats struct {
	Types      int    // types served so far
	Sessions   uint64 // times a file was opened under its lock
	Appended   uint64 // messages made durable and acknowledged
	Bytes      uint64 // their payload bytes
	Duplicates uint64 // redelivered messages that the files refused
	Repeated   uint64 // messages that were not appended because of their idempotency key
	Gaps       uint64 // declared gaps
	Forgotten  uint64 // producers that were forgotten early, as they were more than a file remembers
	Lost       uint64 // sessions ended by a lost lease or by another writer's fence
	Handled    uint64 // messages that a Handler has handled
	Retries    uint64 // calls of a Handler after one that failed
	Dead       uint64 // messages put aside as dead letters
	Promoted   uint64 // delayed messages of any type that this pool made normal ones
}

// New checks the configuration and creates a pool. It does not touch the network or the disk.
func New(cfg Config) (*Pool, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	var id [6]byte
	rand.Read(id[:])
	p := &Pool{
		cfg:      cfg,
		instance: hex.EncodeToString(id[:]),
		began:    time.Now(),
		stopping: make(chan struct{}),
		refused:  make(map[string]error),
		durable:  make(map[string]storage.Entry),
		lives:    make(map[string]ledger.Lives),
		served:   make(map[string]bool),
		book:     book{started: time.Now(), types: make(map[string]*typeRecord)},
	}
	host, _ := os.Hostname()
	p.name = fmt.Sprintf("%s, %s pid %d", p.instance, host, os.Getpid())
	p.log = cfg.Logger.With().Str("worker", p.instance).Logger()
	p.rebalancer = newRebalancer(p)
	p.memory = newMemory(&p.cfg)
	if cfg.Handler != nil {
		p.handler = withTimeout(cfg.Handler, cfg.Timeout)
		for _, wrap := range slices.Backward(cfg.Use) {
			p.handler = wrap(p.handler)
		}
	}
	if cfg.MaxTypes > 0 {
		p.slots = semaphore.NewWeighted(int64(cfg.MaxTypes))
	}
	return p, nil
}

// Stop asks a running pool to stop gracefully: fetch no more, append, sync and acknowledge what was fetched (with a Handler: finish
// the batch that it has), release the locks. Run returns when that is done. It does not wait for a queue that has stopped answering, unless
// messages in hand depend on the answer; then the release of a lock goes on until the Locker is closed. Safe to call more than once and from any goroutine.
func (p *Pool) Stop() { p.stopOnce.Do(func() { p.stoppedAt = time.Now(); close(p.stopping) }) }

// Stats returns the counters so far. Safe for concurrent use.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Types = len(p.served)
	return s
}

// Run serves the types until Stop is called, until they are empty (Config.UntilEmpty), or until ctx ends, which gives
// everything up at once; nothing is lost by that either, the next holder goes on. It returns nil after a stop and when
// all types were drained; an error if ctx ended it, or if files could not be used: with UntilEmpty after all other
// types were drained, otherwise only when no type is left that can be served. With UntilEmpty it returns an *UnfitError for each type in whose
// queue something is left that cannot be appended.
func (p *Pool) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer p.noteRunning()()
	defer p.subscriptions.close()
	leave := p.rebalancer.Begin(ctx, cancel)
	defer leave()
	var types sync.WaitGroup
	serve := func(typ string) {
		p.mu.Lock()
		known := p.served[typ]
		p.served[typ] = true
		p.record(typ)
		p.mu.Unlock()
		if !known {
			types.Go(func() { p.serve(ctx, typ, cancel) })
		}
	}
	stopScheduler := p.startScheduler(ctx)
	err := p.discover(ctx, serve, types.Wait)
	types.Wait()
	stopScheduler()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.Join(err, p.refusals(), p.leftBehind())
}

// discover starts a server for every type that the configuration names or matches. It returns when the pool stops, or,
// with UntilEmpty, when all servers are done and no new type has appeared meanwhile.
func (p *Pool) discover(ctx context.Context, serve func(string), wait func()) error {
	globs := false
	for _, t := range p.cfg.Types {
		if isGlob(t) {
			globs = true
		} else {
			serve(t)
		}
	}
	if !globs {
		if p.cfg.UntilEmpty {
			return nil
		}
		p.pause(ctx, math.MaxInt64)
		return nil
	}
	var outage outage
	ctx, done := p.untilStop(ctx)
	defer done()
	for {
		p.noteAsking("")
		known, err := p.cfg.Queue.Types(ctx)
		p.noteAnswer("", err)
		p.warnStrays()
		if outage.note(&p.log, err, "list the types") && p.cfg.UntilEmpty && fatal(err) {
			return err
		}
		fresh := 0
		for _, t := range known {
			if p.matches(t) && !p.isServed(t) {
				fresh++
				serve(t)
			}
		}
		if p.cfg.UntilEmpty && err == nil {
			if fresh == 0 {
				return nil
			}
			wait()
			continue
		}
		if !p.pause(ctx, discoverEvery) {
			return nil
		}
	}
}

func (p *Pool) matches(typ string) bool { return share.Matches(p.cfg.Types, typ) }

func (p *Pool) isServed(typ string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served[typ]
}

// errAsked ends a session whose type somebody else wants. Whoever that is comes first: this pool stands back for a while.
var errAsked = errors.New("the type was asked for")

const standBack = 2 * time.Second

// serve is the life of one type in this pool: watch, acquire, run a session, again.
func (p *Pool) serve(ctx context.Context, typ string, giveUp context.CancelCauseFunc) {
	log := p.log.With().Str("type", typ).Logger()
	p.rebalancer.Join(typ)
	defer p.rebalancer.Drop(typ)
	retry := backoff{min: retryMin, max: retryMax}
	for !p.stopped(ctx) {
		watching, done := p.untilStop(ctx) // nothing is in hand: a stop does not wait for an answer
		t, err := p.awaitTurn(watching, typ, &log)
		done()
		drained := false
		if err == nil && t == share.TurnNone {
			return
		}
		if err == nil {
			drained, err = p.hold(ctx, typ, t, &log)
		}
		p.noteEnd(typ, err)
		if !drained {
			p.setUnfit(typ, nil) // somebody else looks after it now, or nobody
		}
		switch {
		case drained && p.cfg.UntilEmpty:
			return
		case err == nil:
			p.setRefused(typ, nil)
			retry.reset()
			continue
		case ctx.Err() != nil:
			return
		case errors.Is(err, errAsked):
			p.pause(ctx, standBack)
			continue
		case errors.Is(err, ErrPaused):
			p.setRefused(typ, err)
			return
		case errors.Is(err, lock.ErrLost) || errors.Is(err, storage.ErrFenced):
			// Another replica is at work, or we were paused for too long. Nothing is wrong with the type.
			p.countType(typ, func(s *Stats) { s.Lost++ })
			log.Warn().Err(err).Msg("lock lost, another worker may go on with this type")
			retry.reset()
		case fatal(err):
			p.setRefused(typ, err)
			log.Error().Err(err).Msg("type cannot be served")
			if p.cfg.UntilEmpty {
				return
			}
			if all := p.allRefused(); all != nil {
				giveUp(all)
				return
			}
		case p.cfg.UntilEmpty && errors.Is(err, storage.ErrNoSpace):
			p.setRefused(typ, err)
			return
		default:
			log.Error().Err(err).Msg("session failed, will be tried again")
		}
		if !p.pause(ctx, retry.next()) {
			return
		}
	}
}

// awaitTurn returns when something is to be done about the type: mostly because it has backlog, and falls to this pool. It returns
// share.TurnNone when the pool stops or, with UntilEmpty, when the type has nothing. The error is one that waiting does not cure.
func (p *Pool) awaitTurn(ctx context.Context, typ string, log *zerolog.Logger) (share.Turn, error) {
	poll := backoff{min: watchMin, max: watchMax}
	var outage outage
	for !p.stopped(ctx) {
		ask, wait := p.rebalancer.Next(typ)
		paused := p.rebalancer.Paused(typ)
		p.notePaused(typ, paused)
		switch {
		case paused && !p.cfg.UntilEmpty:
			wait = math.MaxInt64 // it is woken
		case ask:
			return share.TurnAsk, nil
		}
		if wait > 0 {
			p.rebalancer.Pause(ctx, typ, wait)
			continue
		}
		p.noteAsking(typ)
		d, err := p.cfg.Queue.Depth(ctx, typ, 1)
		p.noteAnswer(typ, err)
		if err == nil && d.Pending == 0 {
			p.wantsNoMore(typ)
			err = p.lookAtForeign(ctx, typ, d.Foreign, log)
		}
		switch {
		case p.stopped(ctx):
			return share.TurnNone, nil
		case fatal(err):
			return share.TurnNone, err
		case outage.note(log, err, "look for messages"):
			wait = poll.next()
		case d.Pending > 0 && paused:
			return share.TurnNone, pausedError(typ)
		case d.Pending > 0:
			var t share.Turn
			if t, wait = p.rebalancer.Turn(typ); t != share.TurnNone {
				return t, nil
			}
		case p.cfg.UntilEmpty:
			return share.TurnNone, nil
		default:
			wait = max(poll.next(), p.rebalancer.Empty(typ))
		}
		p.rebalancer.Pause(ctx, typ, wait)
	}
	return share.TurnNone, nil
}

// hold takes a slot and the type's lock, and runs one session. Without an error the session ended in order, or there was
// no backlog any more when the lock came free; drained tells that the session saw the type empty.
func (p *Pool) hold(ctx context.Context, typ string, t share.Turn, log *zerolog.Logger) (drained bool, err error) {
	defer p.rebalancer.Freed(typ)
	stopCtx, done := p.untilStop(ctx)
	defer done()
	wait := acquireSlice
	switch {
	case p.slots == nil:
	case t == share.TurnStandBy:
		if !p.slots.TryAcquire(1) {
			return false, nil
		}
		defer p.slots.Release(1)
	default:
		wait = acquireInSlot
		p.waiting.Add(1)
		err := p.slots.Acquire(stopCtx, 1)
		p.waiting.Add(-1)
		if err != nil {
			return false, nil
		}
		defer p.slots.Release(1)
	}
	p.wants(typ)
	lease, err := p.acquire(stopCtx, typ, t, wait)
	switch {
	case stopCtx.Err() != nil && lease == nil, errors.Is(err, lock.ErrHeld):
		return false, nil // back to watching: the holder may have drained the type meanwhile
	case err != nil:
		return false, fmt.Errorf("acquire the lock of type %q: %w", typ, err)
	}
	p.noteHeld(typ, lease)
	defer func() {
		defer p.noteHeld(typ, nil)
		// Released on a context of its own: the session's is over by now, and the next holder must not wait for the lease.
		rctx, cancel := p.parting(context.WithoutCancel(ctx), p.cfg.Lease/5)
		defer cancel()
		if rerr := lease.Release(rctx); rerr != nil && err == nil && !errors.Is(rerr, lock.ErrLost) {
			log.Warn().Err(rerr).Msg("lock not released yet; without an answer it will expire")
		}
	}()
	if t != share.TurnAsk { // what was asked for has traffic
		if d, err := p.cfg.Queue.Depth(stopCtx, typ, 1); err == nil && d.Pending == 0 {
			return false, nil // drained by the previous holder: do not grow the file by a fence for nothing
		}
	}
	s := p.newSession(typ, lease, *log)
	p.rebalancer.Holds(typ, s)
	drained, err = s.run(ctx)
	if err == nil && s.asked() {
		log.Info().Str("reason", lease.RequestReason()).Msg("gave the type back because it was asked for")
		err = errAsked
	}
	return drained, err
}

// acquire takes the type's lock in the way of a turn.
func (p *Pool) acquire(ctx context.Context, typ string, t share.Turn, wait time.Duration) (*lock.Lease, error) {
	opts := []lock.Option{lock.WithLease(p.cfg.Lease), lock.WithWhy(why(p.instance))}
	switch t {
	case share.TurnAsk:
		return p.takeShare(ctx, typ)
	case share.TurnStandBy:
		return p.cfg.Locker.TryAcquire(ctx, typ, opts...)
	}
	return p.cfg.Locker.Acquire(ctx, typ, append(opts, lock.WithWait(wait))...)
}

func (p *Pool) newSession(typ string, lease *lock.Lease, log zerolog.Logger) *session {
	s := &session{pool: p, typ: typ, lease: lease, log: log, filing: make(chan struct{}, 1), halted: make(chan struct{}), ended: make(chan struct{})}
	s.halt = sync.OnceFunc(func() { close(s.halted) })
	s.unfit = p.unfitOf(typ)
	s.touch()
	if p.handler == nil {
		s.sink = fileSink{s}
	} else {
		s.sink = &handlerSink{session: s, handler: s.observed(p.handler)}
	}
	return s
}

// untilStop returns a context that also ends when the pool is asked to stop.
func (p *Pool) untilStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (p *Pool) stopped(ctx context.Context) bool {
	select {
	case <-p.stopping:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// pause waits for d; false when the pool stopped meanwhile.
func (p *Pool) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.stopping:
	case <-ctx.Done():
	}
	return false
}

func (p *Pool) setRefused(typ string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.refused, typ)
	} else {
		p.refused[typ] = err
	}
	p.restate(typ)
}

// allRefused returns the refusals if no type is left that this pool could serve, else nil.
func (p *Pool) allRefused() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.cfg.Types {
		if isGlob(t) || p.refused[t] == nil {
			return nil
		}
	}
	return p.refusalsLocked()
}

func (p *Pool) refusals() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refusalsLocked()
}

func (p *Pool) refusalsLocked() error {
	var errs []error
	for _, err := range p.refused {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// fatal reports whether err needs a person: trying again cannot help.
func fatal(err error) bool {
	for _, sentinel := range []error{storage.ErrIntegrity, storage.ErrRefused, ledger.ErrState, queue.ErrPermission, queue.ErrReplaced, os.ErrPermission,
		syscall.ENOTDIR, syscall.EISDIR, syscall.EROFS, syscall.ELOOP, syscall.ENAMETOOLONG} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// backoff yields growing, jittered pauses.
type backoff struct {
	min, max, cur time.Duration
}

func (b *backoff) next() time.Duration {
	b.cur = min(max(2*b.cur, b.min), b.max)
	return b.cur/2 + mrand.N(b.cur/2+1)
}

// full yields pauses from nothing to the growing bound: many that failed together do not try again together.
func (b *backoff) full() time.Duration {
	b.cur = min(max(2*b.cur, b.min), b.max)
	return mrand.N(b.cur + 1)
}

func (b *backoff) reset() { b.cur = 0 }

// outage logs the beginning and the end of a failing operation, and nothing in between.
type outage struct{ down bool }

// note reports whether err is an error.
func (o *outage) note(log *zerolog.Logger, err error, what string) bool {
	failed := err != nil && !errors.Is(err, context.Canceled)
	if failed != o.down {
		o.down = failed
		if failed {
			log.Warn().Err(err).Msgf("cannot %s, trying again until it works", what)
		} else {
			log.Info().Msgf("can %s again", what)
		}
	}
	return err != nil
}
