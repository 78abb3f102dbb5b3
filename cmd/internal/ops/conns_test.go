package ops

import (
	"net"
	"net/http"
	"slices"
	"testing"
)

// closing records that it was closed.
type closing struct {
	net.Conn
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// Of the connections without a request, the one idle for longest makes room, never one with a request. Requests leave a connection to others.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	c := newConns(2, 3)
	var all []*closing
	open := func() *closing {
		conn := &closing{}
		all = append(all, conn)
		c.changed(conn, http.StateNew)
		return conn
	}
	want := func(when string, closed ...*closing) {
		t.Helper()
		for i, conn := range all {
			if conn.closed != slices.Contains(closed, conn) {
				t.Errorf("%s: connection %d is closed: %v", when, i, conn.closed)
			}
		}
	}
	request := func(conn *closing, begins bool) {
		t.Helper()
		c.changed(conn, http.StateActive)
		if c.begin(conn) != begins {
			t.Errorf("a request begins: %v", !begins)
		}
	}
	busy, idle, used := open(), open(), open()
	request(busy, true)
	request(used, true)
	want("three of three")
	next := open()
	want("one more", idle)
	request(next, false)
	open()
	want("one whose request was refused makes room", idle, next)
	c.changed(used, http.StateIdle)
	last := open()
	want("the one that was not used at all is older", idle, next, all[4])
	request(last, true)
	open()
	want("the one that was used is older", idle, next, all[4], used)
	c.changed(busy, http.StateClosed)
	open()
	want("one has ended", idle, next, all[4], used)
	request(used, false)
	want("a request on a connection that was closed", idle, next, all[4], used)
}
