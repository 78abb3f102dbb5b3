//go:build unix

package main

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// link is the network between one process and the server, or the store: a proxy that recognises message boundaries, so that it can
// lose the answer to an executed request, deliver a request after its sender has given up, or answer in the server's place.
type link struct {
	protocol
	listener net.Listener
	target   string
	closed   chan struct{}
	wg       sync.WaitGroup // all goroutines, late requests included

	mu       sync.Mutex
	changed  chan struct{} // closed and renewed when one of these changes
	cut      bool          // connections are reset, new ones too
	stalled  [2]bool       // by direction: nothing passes, nothing ends
	delay    time.Duration // of each message
	linger   time.Duration // delay after which the other side learns that a connection was closed
	drops    int           // number of answers to lose, each with its connection
	lates    int           // number of requests to delay, each without its connection
	late     time.Duration // by this much
	creates  int           // number of creates to delay, each without its connection
	spoils   int           // number of creates to execute and answer with an error
	deny     trouble       // the answer to requests to the store, which are not executed
	underWay int           // delayed creates that are not delivered yet
	ended    lateCreates   // outcomes of those that were
	conns    map[*wire]bool
	most     int // concurrent connections
}

// lateCreates counts the outcomes of creates that were delivered after their sender had given up.
type lateCreates struct {
	Created int `json:"created"` // it was not too late
	Taken   int `json:"taken"`   // the name had another value: the sender's own, if it had repeated its request, or a successor's
}

// The directions of a link.
const (
	toServer = iota
	toClient
)

// wire is one connection through a link.
type wire struct {
	ends [2]*net.TCPConn // by the direction that leads to them: the server, the client
	from [2]*bufio.Reader
	done chan struct{} // closed when either end is
	once sync.Once

	mu      sync.Mutex
	request request // the last one
	late    bool    // it is delivered late
}

// request is what a link remembers of a request until it is answered.
type request struct {
	message []byte
	create  bool // of a slot
	store   bool // to the store; the same link may also lead to the queue
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

// newLink returns a link to the server at target, for clients that connect to host.
func newLink(host, target string, p protocol) (*link, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	l := &link{protocol: p, listener: ln, target: target, closed: make(chan struct{}), changed: make(chan struct{}), conns: map[*wire]bool{}}
	l.wg.Go(l.accept)
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

// set changes the link's behaviour.
func (l *link) set(change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	close(l.changed)
	l.changed = make(chan struct{})
}

// heal removes all faults of the link, and delivers what it held back.
func (l *link) heal() {
	l.set(func(l *link) {
		l.cut, l.stalled, l.delay, l.linger, l.drops, l.lates, l.late = false, [2]bool{}, 0, 0, 0, 0, 0
		l.creates, l.spoils, l.deny = 0, 0, none
	})
}

// sever cuts the link if stay is set; otherwise it only resets the existing connections.
func (l *link) sever(stay bool) {
	l.set(func(l *link) {
		l.cut = stay
		for w := range l.conns {
			w.reset()
		}
	})
}

// connections returns the current and the highest number of concurrent connections.
func (l *link) connections() (now, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns), l.most
}

// detained reports whether a delayed create is in flight.
func (l *link) detained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.underWay > 0
}

// close ends the link, and waits for delayed requests.
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
	w.from = [2]*bufio.Reader{bufio.NewReader(client), bufio.NewReader(server)}
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
	to := w.ends[direction]
	for {
		message, err := l.read(w, direction)
		if err != nil {
			l.mu.Lock()
			linger := l.linger
			l.mu.Unlock()
			l.sleep(w, linger)
			w.close()
			return
		}
		fate, answer := l.pass(w, direction, message)
		switch fate {
		case lost:
			w.reset()
			return
		case detained:
			// The client's end breaks, the server's stays: the request is in flight, and no client waits for it.
			l.mu.Lock()
			delete(l.conns, w)
			l.mu.Unlock()
			_ = w.ends[toClient].SetLinger(0)
			w.ends[toClient].Close()
			l.deliver(w, message)
			return
		case answered:
			to, message = w.ends[toClient], answer
		case passes:
			to = w.ends[direction]
		}
		if _, err := to.Write(message); err != nil {
			w.close()
			return
		}
	}
}

// fate is what happens to a message.
type fate int

const (
	passes fate = iota
	lost
	detained
	answered // the client gets an answer that is not the server's
)

// pass decides what happens to a message, and waits until it may pass.
func (l *link) pass(w *wire, direction int, message []byte) (fate, []byte) {
	w.mu.Lock()
	if direction == toServer {
		w.request = request{message: message, create: l.isCreate(message), store: l.isStore(message)}
	}
	r, late := w.request, w.late
	w.mu.Unlock()
	l.mu.Lock()
	switch {
	case direction == toClient && late:
		switch {
		case r.create && l.isTaken(message):
			l.ended.Taken++
		case r.create && l.isDone(message):
			l.ended.Created++
		}
		l.mu.Unlock()
		return lost, nil
	case direction == toServer && r.create && l.creates > 0:
		l.creates--
		l.underWay++
		l.mu.Unlock()
		return detained, nil
	case direction == toClient && r.create && l.spoils > 0 && l.operation(message):
		l.spoils--
		l.mu.Unlock()
		return answered, l.answer(r.message, unavailable)
	case direction == toServer && r.store && (l.deny == revoked || l.deny == unavailable || l.deny == full && r.create):
		answer := l.answer(r.message, l.deny)
		l.mu.Unlock()
		return answered, answer
	case l.operation(message) && direction == toClient && l.drops > 0:
		l.drops--
		l.mu.Unlock()
		return lost, nil
	case l.operation(message) && direction == toServer && l.lates > 0:
		l.lates--
		l.mu.Unlock()
		return detained, nil
	}
	delay := l.delay
	l.mu.Unlock()
	l.sleep(w, delay)
	for {
		l.mu.Lock()
		stalled, changed := l.stalled[direction], l.changed
		l.mu.Unlock()
		if !stalled {
			return passes, nil
		}
		select {
		case <-changed: // also when the client has gone: what it sent is in flight
		case <-l.closed:
			return passes, nil
		}
	}
}

// deliver sends the server a request whose sender has given up, and waits for the answer.
func (l *link) deliver(w *wire, request []byte) {
	defer w.close()
	l.mu.Lock()
	late := l.late
	l.mu.Unlock()
	select {
	case <-time.After(late):
	case <-l.closed:
	}
	w.mu.Lock()
	w.late = true
	create := w.request.create
	w.mu.Unlock()
	l.mu.Lock()
	if create && l.underWay > 0 {
		l.underWay--
	}
	l.mu.Unlock()
	_ = w.ends[toServer].SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := w.ends[toServer].Write(request); err == nil {
		<-w.done // the other direction ends it with the answer
	}
}

// sleep waits, unless the connection ends first.
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
