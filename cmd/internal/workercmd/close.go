package workercmd

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/internal/mongoerr"
)

const (
	// answerWithin is how long a server may leave a query unanswered before a stopping worker gives up on it.
	answerWithin = 300 * time.Millisecond
	// askEvery is the pause between two queries.
	askEvery = 100 * time.Millisecond
)

// closeBackend closes the backend. That takes as long as locks remain to be released: those that the pool could not release, and lost ones
// whose acquisition may still be in the store. closeBackend waits for them until ctx ends, as long as the server answers, or is prevented by an
// election or a restart; it does not wait for a silent server. It returns the error that ended the wait.
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
	select { // the requests in progress end with ctx
	case err := <-closed:
		return err
	case <-time.After(answerWithin):
		return context.DeadlineExceeded
	}
}

// answers reports whether the server answers a query. An error about an election or a restart counts as an answer.
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

// closeBy returns when to give up closing the backend: after closeTimeout or, after a signal, at the end of the grace period if that is later.
func closeBy(stopped *time.Time, grace time.Duration) time.Time {
	by := time.Now().Add(closeTimeout)
	if stopped != nil && by.Before(stopped.Add(grace)) {
		return stopped.Add(grace)
	}
	return by
}
