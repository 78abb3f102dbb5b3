//go:build unix

package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// link is the network between one process and the server: a proxy that knows where a message of MongoDB's wire protocol ends, so
// that it can lose the answer to a request that was carried out, or deliver a request after its sender has given it up.
type link struct {
	listener net.Listener
	target   string
	closed   chan struct{}
	wg       sync.WaitGroup // all goroutines, late requests included

	mu      sync.Mutex
	changed chan struct{} // closed and renewed when one of these changes
	cut     bool          // connections are reset, new ones too
	stalled [2]bool       // by direction: nothing passes, nothing ends
	delay   time.Duration // of each message
	linger  time.Duration // the other side learns so much later that a connection was closed
	drops   int           // so many answers are going to be lost, each with its connection
	lates   int           // so many requests are going to be late, each without its connection
	late    time.Duration // so much
	conns   map[*wire]bool
	most    int // connections at once
}

// The directions of a link.
const (
	toServer = iota
	toClient
)

// wire is one connection through a link.
type wire struct {
	ends [2]*net.TCPConn // by the direction that leads to them: the server, the client
	done chan struct{}   // closed when either end is
	once sync.Once
}

// reset ends a connection for both sides at once.
func (w *wire) reset() {
	for _, c := range w.ends {
		_ = c.SetLinger(0)
	}
	w.close()
}

func (w *wire) close() {
	w.once.Do(func() { close(w.done) })
	w.ends[toServer].Close()
	w.ends[toClient].Close()
}

// newLink returns a link to the server at target, for clients that come to host.
func newLink(host, target string) (*link, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	l := &link{listener: ln, target: target, closed: make(chan struct{}), changed: make(chan struct{}), conns: map[*wire]bool{}}
	l.wg.Go(l.accept)
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

// set changes what the link does.
func (l *link) set(change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	close(l.changed)
	l.changed = make(chan struct{})
}

// heal makes it a good link again. What it held back arrives now.
func (l *link) heal() {
	l.set(func(l *link) {
		l.cut, l.stalled, l.delay, l.linger, l.drops, l.lates, l.late = false, [2]bool{}, 0, 0, 0, 0, 0
	})
}

// sever cuts the link, or only resets what is connected.
func (l *link) sever(stay bool) {
	l.set(func(l *link) {
		l.cut = stay
		for w := range l.conns {
			w.reset()
		}
	})
}

// connections returns how many there are, and how many there were at once.
func (l *link) connections() (now, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns), l.most
}

// close ends the link, and waits for requests that are late.
func (l *link) close() {
	l.heal()
	close(l.closed)
	l.listener.Close()
	l.sever(true)
	l.wg.Wait()
}

func (l *link) accept() {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.connect(c.(*net.TCPConn)) })
	}
}

func (l *link) connect(client *net.TCPConn) {
	refuse := func() { _ = client.SetLinger(0); client.Close() }
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		refuse()
		return
	}
	server, err := net.DialTimeout("tcp", l.target, 10*time.Second)
	if err != nil {
		refuse()
		return
	}
	w := &wire{ends: [2]*net.TCPConn{server.(*net.TCPConn), client}, done: make(chan struct{})}
	l.mu.Lock()
	l.conns[w] = true
	l.most = max(l.most, len(l.conns))
	cut = l.cut
	l.mu.Unlock()
	if cut {
		w.reset()
	}
	var both sync.WaitGroup
	for direction := range w.ends {
		both.Go(func() { l.pump(w, direction) })
	}
	both.Wait()
	l.mu.Lock()
	delete(l.conns, w)
	l.mu.Unlock()
}

// pump carries one direction of a connection until it ends.
func (l *link) pump(w *wire, direction int) {
	from, to := w.ends[1-direction], w.ends[direction]
	for {
		message, err := readMessage(from)
		if err != nil {
			l.mu.Lock()
			linger := l.linger
			l.mu.Unlock()
			l.sleep(w, linger)
			w.close()
			return
		}
		switch l.pass(w, direction, message) {
		case lost:
			w.reset()
			return
		case detained:
			// The client's end breaks, the server's stays: the request is on its way, and nobody waits for it.
			l.mu.Lock()
			delete(l.conns, w)
			l.mu.Unlock()
			_ = w.ends[toClient].SetLinger(0)
			w.ends[toClient].Close()
			l.deliver(w, message)
			return
		}
		if _, err := to.Write(message); err != nil {
			w.close()
			return
		}
	}
}

// fate is what becomes of a message.
type fate int

const (
	passes fate = iota
	lost
	detained
)

// pass waits until a message may pass, if it may.
func (l *link) pass(w *wire, direction int, message []byte) fate {
	l.mu.Lock()
	if operation(message) {
		switch {
		case direction == toClient && l.drops > 0:
			l.drops--
			l.mu.Unlock()
			return lost
		case direction == toServer && l.lates > 0:
			l.lates--
			l.mu.Unlock()
			return detained
		}
	}
	delay := l.delay
	l.mu.Unlock()
	l.sleep(w, delay)
	for {
		l.mu.Lock()
		stalled, changed := l.stalled[direction], l.changed
		l.mu.Unlock()
		if !stalled {
			return passes
		}
		select {
		case <-changed: // also when the client has gone: what it had sent is on its way
		case <-l.closed:
			return passes
		}
	}
}

// deliver sends the server a request whose sender has given it up, and waits for the answer.
func (l *link) deliver(w *wire, request []byte) {
	defer w.close()
	l.mu.Lock()
	late := l.late
	l.mu.Unlock()
	select {
	case <-time.After(late):
	case <-l.closed:
	}
	_ = w.ends[toServer].SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := w.ends[toServer].Write(request); err == nil {
		_, _ = readMessage(w.ends[toServer])
	}
}

// sleep waits, unless the connection ends before.
func (l *link) sleep(w *wire, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-w.done:
	case <-l.closed:
	}
}

// maxMessage is the wire protocol's.
const maxMessage = 48_000_000

// readMessage reads one message of the wire protocol: its length, and the rest.
func readMessage(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n < 16 || n > maxMessage {
		return nil, errors.New("not a message of MongoDB's wire protocol")
	}
	message := make([]byte, n)
	copy(message, length[:])
	_, err := io.ReadFull(r, message[4:])
	return message, err
}

// operation tells requests of the product, and their answers, from the driver's talk about the connection itself.
func operation(message []byte) bool {
	head := string(message[:min(len(message), 400)])
	for _, talk := range []string{"isWritablePrimary", "ismaster", "isMaster", "\x10hello\x00", "helloOk", "\x10ping\x00", "saslStart", "saslContinue", "endSessions"} {
		if strings.Contains(head, talk) {
			return false
		}
	}
	return true
}
