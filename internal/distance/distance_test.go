package distance

import (
	"context"
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// dial connects the Meter to a listener, which never answers, and returns its address.
func dial(t *testing.T, m *Meter) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c, err := m.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return l.Addr().String()
}

// TestRoundTrip: a server's kernel accepts a connection at once, whatever its program does.
func TestRoundTrip(t *testing.T) {
	o := options.Client()
	m := Of(o)
	if got := m.RoundTrip(); got != 0 {
		t.Errorf("%v before anything is known", got)
	}
	address := dial(t, m)
	o.PoolMonitor.Event(&event.PoolEvent{Type: event.ConnectionReady, Address: address})
	measured := m.trips[address]
	if len(measured) == 0 {
		t.Skip("this system does not report how long it took")
	}
	if got := m.RoundTrip(); got <= 0 || got > 100*time.Millisecond {
		t.Errorf("%v on one machine", got)
	}
}

// TestAClient: the driver uses the same address for dialling and in its events.
func TestAClient(t *testing.T) {
	o := options.Client().ApplyURI(mongotest.URI(t))
	m := Of(o)
	client, err := mongo.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	if err := client.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if len(m.trips) == 0 {
		t.Skip("this system does not report how long it took")
	}
	if got := m.RoundTrip(); got <= 0 {
		t.Errorf("%v to %q, of %v", got, m.used, m.trips)
	}
}

// TestTheServerInUse: the distance is that of the server that receives the commands, and of its fastest recent
// connection.
func TestTheServerInUse(t *testing.T) {
	o := options.Client()
	m := Of(o)
	ready := func(address string) {
		o.PoolMonitor.Event(&event.PoolEvent{Type: event.ConnectionReady, Address: address})
	}
	m.trips["near:1"] = []time.Duration{time.Second, 2 * time.Millisecond, 3 * time.Millisecond}
	m.trips["far:1"] = []time.Duration{50 * time.Millisecond}
	for _, step := range []struct {
		address string
		want    time.Duration
	}{{"near:1", 2 * time.Millisecond}, {"far:1", 50 * time.Millisecond}, {"unknown:1", 0}} {
		ready(step.address)
		if got := m.RoundTrip(); got != step.want {
			t.Errorf("%s: %v, want %v", step.address, got, step.want)
		}
	}
	o.PoolMonitor.Event(&event.PoolEvent{Type: event.ConnectionCreated, Address: "near:1"})
	if got := m.RoundTrip(); got != 0 {
		t.Errorf("%v of a connection that is not in use", got)
	}
}

// TestOldConnectionsDoNotCount: a server may move away.
func TestOldConnectionsDoNotCount(t *testing.T) {
	m := Of(options.Client())
	address := dial(t, m)
	if len(m.trips[address]) == 0 {
		t.Skip("this system does not report how long it took")
	}
	m.trips[address] = nil
	for range 2 * kept {
		c, err := m.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if n := len(m.trips[address]); n != kept {
		t.Errorf("%d connections count, want %d", n, kept)
	}
}

func TestNobodyListens(t *testing.T) {
	m := Of(options.Client())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c, err := m.DialContext(ctx, "tcp", "127.0.0.1:1"); err == nil {
		c.Close()
		t.Error("connected")
	}
}

func TestANilMeter(t *testing.T) {
	var m *Meter
	if got := m.RoundTrip(); got != 0 {
		t.Errorf("got %v", got)
	}
}
