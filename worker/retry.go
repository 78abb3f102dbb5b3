package worker

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"github.com/rs/zerolog"
)

// Retries. Operations that fail are retried after a growing pause, unless the error is permanent (fatal).
// The stages retry operations on the queue (session.insist), with an outage for the log. The struct
// retries is for messages that a Handler could not handle: Config.RetryMin and RetryMax bound their pause.

// outages logs when operations of a pool begin to fail and when they work again, not the failures in between.
// While nothing works, all have the same cause: the log has one warning, and one line when something works
// again. Safe for concurrent use.
type outages struct {
	mu     sync.Mutex
	worked time.Time // when an operation last worked
	warned time.Time // when the last warning was logged …
	open   bool      // … and that nothing has worked again since
}

// outage is the state of one operation. Only its caller uses it.
type outage struct {
	since  time.Time // when it began to fail; zero: it works
	warned bool      // and that was logged
	alone  bool      // at its last failure, others had worked since the last warning
}

// note logs a change, and reports whether err is an error. what completes "cannot …". ctx is the context
// of the operation.
func (s *outages) note(ctx context.Context, o *outage, log *zerolog.Logger, err error, what string) bool {
	if calledOff(ctx, err) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if err == nil {
		s.worked = now
		joint := !o.since.IsZero() && !o.since.Before(s.warned) // it failed for the reason of the last warning
		if joint && s.open || !joint && o.warned {
			log.Info().Msgf("can %s again", what)
		}
		s.open = s.open && !joint
		*o = outage{}
		return false
	}
	first := o.since.IsZero()
	if first {
		o.since = now
	}
	others := !s.warned.After(s.worked)
	// An operation that has failed together with all others may fail once more when they work again.
	if !o.warned && others && (first || o.alone) {
		o.since, o.warned = now, true
		s.warned, s.open = now, true
		log.Warn().Err(err).Msgf("cannot %s; retrying until it succeeds", what)
	}
	o.alone = others
	return true
}

// trouble is a series of sessions of one type that failed, one after another. Guarded by book.mu.
type trouble struct {
	what     string // went wrong in the last one
	since    time.Time
	failures int
	durable  bool          // a session has made messages durable since the last failure
	told     time.Time     // when it was last logged, and …
	pause    time.Duration // … how long until it is logged again
}

// While the sessions of a type fail for the same reason, that is logged again after troubleMin, twice as long, and so on up to troubleMost.
const (
	troubleMin  = 10 * time.Second
	troubleMost = time.Hour
)

// noteTrouble records that a session has failed. It returns how many have failed one after another, since when, and whether to log it.
func (b *book) noteTrouble(typ, what string) (failures int, since time.Time, tell bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, now := b.record(typ), time.Now()
	if r.trouble == nil {
		r.trouble = &trouble{since: now}
	}
	t := r.trouble
	t.failures, t.durable = t.failures+1, false
	switch {
	case t.what != what:
		t.pause = troubleMin
	case now.Sub(t.told) >= t.pause:
		t.pause = min(2*t.pause, troubleMost)
	default:
		return t.failures, t.since, false
	}
	t.what, t.told = what, now
	return t.failures, t.since, true
}

// troubled reports whether the last session of a type has failed.
func (b *book) troubled(typ string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record(typ).trouble != nil
}

// tellTrouble logs that a session has failed with err, unless the same was logged a moment ago. what tells one reason from another.
func (p *replica) tellTrouble(typ, what string, err error, msg string) {
	failures, since, tell := p.book.noteTrouble(typ, what)
	if !tell {
		return
	}
	log := p.logOf(typ)
	e := log.Error().Err(err)
	if failures > 1 {
		e = e.Int("failures", failures).Time("since", since)
	}
	e.Msg(msg)
}

// overcome logs that sessions of a type have failed, and that this is over. t is nil if they have not.
func (p *replica) overcome(typ string, t *trouble, msg string) {
	if t != nil {
		log := p.logOf(typ)
		log.Info().Int("failures", t.failures).Time("since", t.since).Msg(msg)
	}
}

// noteNothing records that this pool has nothing to do about a type: see book.noteNothing.
func (p *replica) noteNothing(typ string) {
	p.overcome(typ, p.book.noteNothing(typ), "the type has no messages for this worker, so nothing is retried")
}

// calledOff reports whether err only says that an operation was cancelled: its context has ended. err may
// be the cause of the context, for example a lost lease. It says nothing about the server.
func calledOff(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, context.Canceled))
}

// insist repeats try until it succeeds, the session has ended, or another writer has fenced it. Meanwhile
// the type is blocked. what completes "cannot …".
func (s *session) insist(ctx context.Context, outage *outage, what string, try func() error) error {
	retry := wait.Backoff{Min: watchMin, Max: watchMax}
	for {
		err := try()
		if errors.Is(err, storage.ErrFenced) || !s.pool.outages.note(ctx, outage, &s.log, err, what) {
			return err
		}
		if !calledOff(ctx, err) {
			s.noteFailing(err)
		}
		if err := wait.For(ctx, retry.Next()); err != nil {
			return err
		}
	}
}

// fatal reports whether err is permanent: a retry cannot help, because an operator has to change something.
func fatal(err error) bool {
	for _, sentinel := range []error{storage.ErrIntegrity, storage.ErrRefused, ledger.ErrState, queue.ErrPermission, queue.ErrReplaced, lock.ErrPermanent,
		os.ErrPermission, syscall.ENOTDIR, syscall.EISDIR, syscall.EROFS, syscall.ELOOP, syscall.ENAMETOOLONG} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// retries counts, in one session, the failures of each message, and decides when a message has failed
// too often. It also has the pause before the next attempt.
type retries struct {
	attempts map[queue.ID]int // failures of messages that are not settled
	most     int              // failures before a message becomes a dead letter; 0: no bound
	pause    wait.Backoff
}

// newRetries takes the bounds from the configuration. With OnError Block a message is retried
// indefinitely, even after a permanent error.
func newRetries(cfg *Config) retries {
	r := retries{attempts: map[queue.ID]int{}, pause: wait.Backoff{Min: cfg.RetryMin, Max: cfg.RetryMax}}
	if cfg.OnError == DeadLetter {
		r.most = cfg.MaxAttempts
	}
	return r
}

// failed counts a failure of one message: the n-th. over means that it must not be retried.
func (r *retries) failed(id queue.ID, err error) (n int, over bool) {
	r.attempts[id]++
	n = r.attempts[id]
	var permanent *permanentError
	if over = r.most > 0 && (n >= r.most || errors.As(err, &permanent)); over {
		delete(r.attempts, id)
	}
	return n, over
}

// settled ends the count of a message, and returns how often it had failed.
func (r *retries) settled(id queue.ID) (failures int) {
	failures = r.attempts[id]
	delete(r.attempts, id)
	return failures
}
