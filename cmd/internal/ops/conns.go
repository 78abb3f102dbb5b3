package ops

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// reserve is the number of a server's connections that are not for requests which Begin is called for.
const reserve = 16

// LimitConns has a server carry out at most so many requests at a time for which Begin is called, and keep at most reserve connections more.
func LimitConns(h *http.Server, requests int) {
	c := newConns(requests, requests+reserve)
	h.ConnState = c.changed
	h.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, beginKey{}, func() bool { return c.begin(conn) })
	}
}

// beginKey is the key of a request's context for a function that calls begin for its connection.
type beginKey struct{}

// Begin notes that a request is carried out: its connection stays until it is answered. false: there are too many already.
func Begin(r *http.Request) bool {
	begin, ok := r.Context().Value(beginKey{}).(func() bool)
	return !ok || begin()
}

// conns keeps the number of connections of a server.
type conns struct {
	requests, most int // that may be carried out, and connections

	mu   sync.Mutex
	all  map[net.Conn]bool
	idle map[net.Conn]uint64 // those without a request that is carried out; grows with each change of state
	last uint64
}

func newConns(requests, most int) *conns {
	return &conns{requests: requests, most: most, all: map[net.Conn]bool{}, idle: map[net.Conn]uint64{}}
}

// changed is for http.Server.ConnState.
func (c *conns) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case state == http.StateClosed || state == http.StateHijacked:
		delete(c.all, conn)
		delete(c.idle, conn)
		return
	case !c.all[conn] && state != http.StateNew:
		return // it was closed here
	}
	c.last++
	c.all[conn], c.idle[conn] = true, c.last
	if len(c.all) <= c.most {
		return
	}
	// rule: the connection with which nothing has happened for longest makes room, and not the new one: a probe is new, and is answered at once. One
	// whose request is carried out never does: its client would not know what became of a message.
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

// begin notes that the request on a connection is carried out, if it may be.
func (c *conns) begin(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	// rule: requests leave connections to probes. A program that answers no probe is killed, while the queue is away, say.
	if !c.all[conn] || len(c.all)-len(c.idle) >= c.requests {
		return false
	}
	delete(c.idle, conn)
	return true
}
