package worker

import (
	"context"
	"errors"
	"os"
	"syscall"

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

// outage logs when an operation begins to fail and when it works again, not the failures in between.
type outage struct{ down bool }

// note logs a change, and reports whether err is an error. what completes "cannot …". ctx is the context
// of the operation.
func (o *outage) note(ctx context.Context, log *zerolog.Logger, err error, what string) bool {
	if calledOff(ctx, err) {
		return true
	}
	failed := err != nil
	if failed != o.down {
		o.down = failed
		if failed {
			log.Warn().Err(err).Msgf("cannot %s; retrying until it succeeds", what)
		} else {
			log.Info().Msgf("can %s again", what)
		}
	}
	return failed
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
		if errors.Is(err, storage.ErrFenced) || !outage.note(ctx, &s.log, err, what) {
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
