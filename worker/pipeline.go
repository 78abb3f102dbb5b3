package worker

import (
	"context"
	"errors"
	"sync"

	"github.com/fencepost/fencepost/lock"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
)

// A session, from the grant of the lock to its release, and the three stages that a message passes
// through:
//
//	fetch.go ──batch──▶ append.go (or handle.go) ──group──▶ ack.go
//
// The stages run concurrently: one batch is fetched while another is synced and a third one
// acknowledged. The channels between them are short, so a slow stage slows down the others instead
// of filling the memory.

// newSession prepares a session of a type whose lock is held. It alone decides whether messages go to a
// file or to a Handler: the fetch and ack stages are the same for both.
func newSession(p *replica, typ string, lease *lock.Lease) *session {
	s := &session{pool: p, typ: typ, lease: lease, log: p.logOf(typ), filing: make(chan struct{}, 1), halted: make(chan struct{})}
	s.ended, s.end = context.WithCancel(context.Background())
	s.halt = sync.OnceFunc(func() { close(s.halted) })
	s.unfit = p.book.unfitOf(typ)
	s.touch()
	if p.toFiles() {
		s.sink = fileSink{s}
	} else {
		s.sink = &handlerSink{session: s, handler: s.observed(p.handler), retries: newRetries(&p.cfg)}
	}
	return s
}

// A session ends in one of three ways. In order: the fetch stage finds a reason to stop and closes
// its channel, and the batches in the pipeline pass through to the end. With an error: the first stage
// that fails cancels the others, and the fetched messages stay in the queue for the next session. By
// losing the lease: the lease's context ends everything in the session, with the loss as the cause.
// In the last two cases, messages that were synced and not acknowledged are delivered again, and the
// next ledger refuses them.

// run opens the file in the slot, drains the type, and closes the file. drained means that the session
// has seen the type empty.
//
// The steps before and after the pipeline are functions of their own, so that their stack frames are not
// kept for each of thousands of sessions.
func (s *session) run(ctx context.Context, slot *openingSlot) (drained bool, err error) {
	pool := ctx
	defer func() { s.noteLoss(pool, err) }()
	// The session lives on the lease's context: loss cancels everything with its cause.
	ctx, cancel := mergeContext(s.lease.Context(), pool)
	defer cancel()
	if open, err := s.begin(ctx, slot); !open {
		return false, err
	}
	drained, err = s.pipeline(ctx)
	return drained, s.finish(pool, withCause(ctx, err))
}

// begin opens the file in the slot. It returns false with an error, or if the pool stops.
func (s *session) begin(ctx context.Context, slot *openingSlot) (open bool, err error) {
	opening, opened := s.pool.untilStop(ctx) // a stop interrupts the opening: no message depends on it yet
	if err = slot.take(opening); err == nil {
		err = s.sink.open(opening)
		slot.release()
	}
	stopped := ctx.Err() == nil && opening.Err() != nil && errors.Is(err, context.Canceled)
	opened()
	switch {
	case stopped:
		return false, nil
	case err != nil:
		return false, withCause(ctx, err)
	}
	s.log = s.pool.log.With().Str("type", s.typ).Int64("epoch", s.lease.Token()).Logger()
	s.count(func(st *Stats) { st.Sessions++ })
	s.sink.describe(s.log.WithLevel(s.level())).Int("producers", s.ledger.Producers()).Msg("holding the type")
	s.emit(Event{Kind: Acquired})
	return true, nil
}

// level is the level of the lines about the begin and the end of a session. A session that retries after a failed one is not news.
func (s *session) level() zerolog.Level {
	if s.pool.book.troubled(s.typ) {
		return zerolog.DebugLevel
	}
	return zerolog.InfoLevel
}

// finish closes the file after the pipeline has ended with err. It returns err or, if err is nil, its own error.
// pool is the context of the pool.
func (s *session) finish(pool context.Context, err error) error {
	err = s.sink.close(err)
	var outcome string
	switch {
	case err == nil:
		outcome = "released the type"
		s.emit(Event{Kind: Released})
	case cancelled(pool, err):
		outcome = "stopped serving the type: the pool was cancelled"
		s.emit(Event{Kind: Released})
	default:
		outcome = "stopped serving the type after an error" // which goesOn logs, or Run returns
		s.emit(Event{Kind: Lost, Err: err})
	}
	s.sink.describe(s.log.WithLevel(s.level())).Uint64("appended", s.appended).Uint64("duplicates", s.duplicates).
		Uint64("gaps", s.gaps).Msg(outcome)
	if err == nil && s.asked() {
		s.log.Info().Str("reason", s.lease.RequestReason()).Msg("another replica had asked for the type")
	}
	return err
}

// pipeline runs the stages until the type is idle or empty, the pool stops, or something fails. While
// the type is quiet no stage runs: a resting session consists of this goroutine only.
func (s *session) pipeline(ctx context.Context) (drained bool, err error) {
	f := newFetcher(s)
	for {
		drained, err = s.stages(ctx, f)
		if err != nil || !s.resting {
			return drained, err
		}
		f.rest(ctx)
		s.resting = false
	}
}

// stages runs the three stages until the fetch stage ends and everything it has fetched is settled.
// Meanwhile it watches for reasons to end the session.
func (s *session) stages(ctx context.Context, f *fetcher) (drained bool, err error) {
	cfg := &s.pool.cfg
	fetched := make(chan batch, cfg.Prefetch-1) // the fetch stage holds one more
	durable := make(chan group, 1)
	watched, stopWatching := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(watched) })
	defer watching.Wait()
	defer stopWatching()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(fetched)
		var err error
		drained, err = f.run(ctx, fetched)
		return err
	})
	g.Go(func() error {
		defer close(durable)
		return s.sink.stage(ctx, fetched, durable)
	})
	g.Go(func() error { return s.ackStage(ctx, durable) })
	err = g.Wait()
	for left := range fetched {
		left.memory.give()
	}
	return drained, err
}
