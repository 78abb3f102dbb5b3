package mongoerr

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Failures keeps why a client last failed to greet a server, if that has to do with TLS. Create it with [Watch]. The nil Failures keeps
// nothing. Safe for concurrent use.
//
// The driver's error tells how its last attempt ended. If it was cancelled, that says nothing, and the one before it knew why.
type Failures struct {
	mu   sync.Mutex
	last error
}

// Watch returns the Failures of a client that is made from these options, to which it adds a server monitor.
func Watch(o *options.ClientOptions) *Failures {
	f := new(Failures)
	o.SetServerMonitor(&event.ServerMonitor{
		ServerHeartbeatSucceeded: func(*event.ServerHeartbeatSucceededEvent) { f.set(nil) },
		ServerHeartbeatFailed: func(e *event.ServerHeartbeatFailedEvent) {
			switch {
			case errors.Is(e.Failure, context.Canceled):
			case TLS(e.Failure) != "":
				f.set(e.Failure)
			default:
				f.set(nil)
			}
		},
	})
	return f
}

func (f *Failures) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = err
}

// Recall returns err, an error of the client, with the failure that explains it if err has nothing to do with TLS itself.
func (f *Failures) Recall(err error) error {
	if f == nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil || f.last == nil || TLS(err) != "" {
		return err
	}
	return fmt.Errorf("%w; an attempt before: %w", err, f.last)
}
