package ops

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// reserve is the number of connections of a server beyond those of requests that have called Begin.
const reserve = 16

// LimitConns limits a server to the given number of concurrent requests that have called Begin, and to reserve connections more than that.
func LimitConns(h *http.Server, requests int) {
	c := newConns(requests, requests+reserve)
	h.ConnState = c.changed
	h.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, beginKey{}, func() bool { return c.begin(conn) })
	}
}

// beginKey is the context key of a function that calls begin for the connection of a request.
type beginKey struct{}

// Begin marks a request as in progress: its connection stays open until it is answered. false: too many requests are in progress.
func Begin(r *http.Request) bool {
	begin, ok := r.Context().Value(beginKey{}).(func() bool)
	return !ok || begin()
}

// conns limits the connections of a server.
type conns struct {
	requests, most int // limits: requests in progress, connections

	mu   sync.Mutex
	all  map[net.Conn]bool
	idle map[net.Conn]uint64 // connections without a request in progress, with the number of their last change of state
	last uint64              // number of the last change of state
}

func newConns(requests, most int) *conns {
	return &conns{requests: requests, most: most, all: map[net.Conn]bool{}, idle: map[net.Conn]uint64{}}
}

// changed implements http.Server.ConnState.
func (c *conns) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case state == http.StateClosed || state == http.StateHijacked:
		delete(c.all, conn)
		delete(c.idle, conn)
		return
	case !c.all[conn] && state != http.StateNew:
		return // closed below, to make room
	}
	c.last++
	c.all[conn], c.idle[conn] = true, c.last
	if len(c.all) <= c.most {
		return
	}
	// rule: the connection that has been idle for longest makes room, not the new one: a probe is new, and is answered at once. A connection with a
	// request in progress never makes room: its client would not learn the outcome of a message.
	oldest := conn
	for other, since := range c.idle {
		if since < c.idle[oldest] {
			oldest = other
		}
	}
	delete(c.all, oldest)
	delete(c.idle, oldest)
	oldest.Close()
}

// begin marks the request on a connection as in progress, if the limit allows it.
func (c *conns) begin(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	// rule: requests leave connections to probes. A program that does not answer probes, for example while the queue is unreachable, gets killed.
	if !c.all[conn] || len(c.all)-len(c.idle) >= c.requests {
		return false
	}
	delete(c.idle, conn)
	return true
}
