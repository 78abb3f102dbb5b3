package worker

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"github.com/rs/zerolog"
)

// Retries. What fails is tried again after a pause that grows; what no retry can help ends with its
// error (fatal). The stages wait for the queue with these; a message that a Handler fails is in
// retries, and Config.RetryMin and RetryMax bound its pauses.

// outage logs the beginning and the end of a failing operation, and nothing in between.
type outage struct{ down bool }

// note reports whether err is an error.
func (o *outage) note(log *zerolog.Logger, err error, what string) bool {
	failed := err != nil && !errors.Is(err, context.Canceled)
	if failed != o.down {
		o.down = failed
		if failed {
			log.Warn().Err(err).Msgf("cannot %s; retrying until it succeeds", what)
		} else {
			log.Info().Msgf("can %s again", what)
		}
	}
	return err != nil
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

// retries counts the attempts of the messages of a session that a Handler failed, and decides when
// each is over.
type retries struct {
	attempts map[queue.ID]int // of messages that have failed and are not settled
	most     int              // before a message becomes a dead letter; 0: no number is enough
	pause    wait.Backoff
}

// newRetries takes its bounds from the configuration. With OnError Block no number of attempts is
// enough, not even after a permanent error: somebody has to look.
func newRetries(cfg *Config) retries {
	r := retries{attempts: map[queue.ID]int{}, pause: wait.Backoff{Min: cfg.RetryMin, Max: cfg.RetryMax}}
	if cfg.OnError == DeadLetter {
		r.most = cfg.MaxAttempts
	}
	return r
}

// failed counts a failure of one message. over tells that it is not to be tried again.
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
