// Package distance measures how far away a MongoDB server is: how long a packet takes to it and back.
//
// The answer to a command does not tell: on a busy machine it waits for processors, here and there. But the kernels that
// establish a connection do not wait, and the one here knows how long they took.
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

// kept is how many of the latest connections to an address count. The fastest tells: a packet that was lost costs a second.
const kept = 8

// Meter measures the round trip to the server that a client sends its commands to. Create it with [Of]. The nil Meter knows nothing.
// Safe for concurrent use.
type Meter struct {
	dialer net.Dialer

	mu    sync.Mutex
	trips map[string][]time.Duration // by address
	used  string                     // the address of the latest connection for commands: of the primary, while the client only asks that
}

// Of returns the Meter of a client that is made from these options, to which it adds a dialer and a pool monitor.
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

// RoundTrip is how long a packet takes to the server and back; 0 if that is not known.
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
