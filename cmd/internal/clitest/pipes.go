package clitest

import (
	"net"
	"testing"
)

// Pipes is a listener without a network: its connections buffer nothing, and in a synctest bubble their deadlines use the bubble's clock.
type Pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

// NewPipes returns a listener for a server.
func NewPipes() *Pipes { return &Pipes{make(chan net.Conn), make(chan struct{})} }

// Dial connects to the server, and closes the connection at the end of the test.
func (p *Pipes) Dial(t *testing.T) net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	t.Cleanup(func() { client.Close() })
	return client
}

// Accept implements net.Listener.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipes) Close() error { close(p.closed); return nil }

// Addr implements net.Listener.
func (p *Pipes) Addr() net.Addr { return &net.TCPAddr{} }
