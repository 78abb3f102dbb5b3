package mongoerr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Failures records why a client last failed to greet a server, if that has to do with TLS. Create it with [Watch]. A nil Failures
// records nothing. Safe for concurrent use.
//
// The driver's error tells how its last attempt ended. If it was cancelled, that says nothing, but the attempt before it explains why.
type Failures struct {
	mu      sync.Mutex
	last    error
	greeted bool // a server has answered once
}

// Watch returns the Failures of a client created from these options, to which it adds a server monitor.
func Watch(o *options.ClientOptions) *Failures {
	f := new(Failures)
	o.SetServerMonitor(&event.ServerMonitor{
		ServerHeartbeatSucceeded: func(*event.ServerHeartbeatSucceededEvent) { f.answered() },
		ServerHeartbeatFailed:    func(e *event.ServerHeartbeatFailedEvent) { f.failed(e.Failure) },
	})
	return f
}

func (f *Failures) answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.greeted = nil, true
}

func (f *Failures) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case errors.Is(err, context.Canceled):
	case TLS(err) != "", hungUp(err) && !f.greeted: // after a greeting, a server that hangs up has gone
		f.last = err
	default:
		f.last = nil
	}
}

// Recall returns err, an error of the client, and adds the failure that explains it if err does not tell how the last attempt ended.
func (f *Failures) Recall(err error) error {
	if f == nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil || f.last == nil || TLS(err) != "" || tells(err) {
		return err
	}
	return fmt.Errorf("%w; an attempt before: %w", err, attempt{f.last})
}

// tells reports whether the driver knows how an attempt ended that was not cancelled.
func tells(err error) bool {
	var selection topology.ServerSelectionError
	return errors.As(err, &selection) && slices.ContainsFunc(selection.Desc.Servers, func(s description.Server) bool {
		return s.LastError != nil && !errors.Is(s.LastError, context.Canceled)
	})
}

// attempt is why an attempt to greet a server failed.
type attempt struct{ error }

func (a attempt) Unwrap() error { return a.error }
