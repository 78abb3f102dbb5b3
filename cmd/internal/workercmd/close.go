package workercmd

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/internal/mongoerr"
)

const (
	// answerWithin is how long a server may leave a question unanswered before a worker that ends gives up on it.
	answerWithin = 300 * time.Millisecond
	// askEvery is the pause between two questions.
	askEvery = 100 * time.Millisecond
)

// closeBackend closes the backend. That takes as long as locks are still to be released: those that the pool could not release, and those
// that were lost and may still stand in the store under their acquisition. It waits for them until ctx ends, while the server answers, or an
// election or a restart keeps it from that; a server that is silent is not waited for. It returns what ended it.
func closeBackend(ctx context.Context, closes, ask func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- closes(ctx) }()
	go func() {
		defer cancel()
		for ctx.Err() == nil && answers(ctx, ask) {
			select {
			case <-time.After(askEvery):
			case <-ctx.Done():
			}
		}
	}()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
	}
	select { // the requests under way have ended with ctx
	case err := <-closed:
		return err
	case <-time.After(answerWithin):
		return context.DeadlineExceeded
	}
}

// answers asks the server something. An error about an election or a restart is an answer.
func answers(ctx context.Context, ask func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- ask(ctx) }()
	var err error
	select {
	case err = <-done:
	case <-time.After(answerWithin + askEvery):
		return false
	}
	if err == nil {
		return true
	}
	_, heard := mongoerr.Passing(err)
	return heard || ctx.Err() == nil
}

// closeBy is when the backend has to be closed: after a signal, no later than the end of the grace.
func closeBy(stopped *time.Time, grace time.Duration) time.Time {
	by := time.Now().Add(closeTimeout)
	if stopped != nil && by.Before(stopped.Add(grace)) {
		return stopped.Add(grace)
	}
	return by
}
