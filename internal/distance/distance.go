// Package distance measures the network round trip to a MongoDB server.
//
// The duration of a command does not show it: on a busy machine the command waits for processors, at both ends. But the kernels that
// establish a connection do not wait, and the local one knows how long that took.
package distance

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// kept is the number of latest connections to an address that count. The fastest one is used: a lost packet costs a second.
const kept = 8

// Meter measures the round trip to the server that a client sends its commands to. Create it with [Of]. A nil Meter measures
// nothing. Safe for concurrent use.
type Meter struct {
	dialer net.Dialer

	mu    sync.Mutex
	trips map[string][]time.Duration // by address
	used  string                     // the address of the latest connection for commands: the primary's, while the client queries only that
}

// Of returns the Meter of a client created from these options, to which it adds a dialer and a pool monitor.
func Of(o *options.ClientOptions) *Meter {
	m := &Meter{trips: map[string][]time.Duration{}}
	o.SetDialer(m)
	o.SetPoolMonitor(&event.PoolMonitor{Event: func(e *event.PoolEvent) {
		if e.Type == event.ConnectionReady {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.used = e.Address
		}
	}})
	return m
}

// DialContext connects as the driver would, and measures the round trip.
func (m *Meter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := m.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if trip, ok := roundTrip(c); ok {
		m.mu.Lock()
		defer m.mu.Unlock()
		trips := append(m.trips[address], trip)
		m.trips[address] = trips[max(len(trips)-kept, 0):]
	}
	return c, nil
}

// RoundTrip returns the round-trip time to the server; 0 if it is unknown.
func (m *Meter) RoundTrip() time.Duration {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if trips := m.trips[m.used]; len(trips) > 0 {
		return slices.Min(trips)
	}
	return 0
}
