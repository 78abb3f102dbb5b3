package conform

import (
	"net"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/mongowire"
)

// proxy is the way of a program to the server. Everything passes, and inserts are recorded, until a fault is armed: then the next inserts meet it.
type proxy struct {
	listener net.Listener
	target   string
	record   *record
	closed   chan struct{}
	wg       sync.WaitGroup // all goroutines, late requests included

	mu    sync.Mutex
	armed fault
	left  int // inserts that it is for
	hit   chan struct{}
	stall time.Time // nothing passes before
	cut   time.Time // nobody can connect before
	conns map[*conn]bool
}

// fault is what happens to an insert.
type fault struct {
	what fate
	last time.Duration // of a stall, a cut, a delay
	then func()        // of a kill
}

// fate is what becomes of an insert.
type fate int

const (
	passes      fate = iota
	loseAnswer       // it is carried out, the connection is reset instead of the answer
	loseRequest      // the connection is reset
	late             // the connection is reset, and the server gets it after a while
	stall            // nothing passes for a while
	cut              // all connections are reset, and nobody can connect for a while
	killBefore       // the program is killed, and the server does not get it
	killAfter        // the program is killed, and the server gets it
)

// conn is one connection through the proxy.
type conn struct {
	client, server *net.TCPConn
	done           chan struct{}
	once           sync.Once

	mu      sync.Mutex
	pending map[uint32]request
}

// request is one that waits for its answer.
type request struct {
	insert *insertion
	reads  bool // messages, with read concern majority
	asks   bool // for settings
	lose   bool // its answer
}

func newProxy(target string, r *record) (*proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: ln, target: target, record: r, closed: make(chan struct{}), hit: make(chan struct{}), conns: map[*conn]bool{}}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// close ends all connections, and waits for requests that are late.
func (p *proxy) close() {
	close(p.closed)
	p.listener.Close()
	p.reset()
	p.wg.Wait()
}

// arm lets the next inserts meet a fault.
func (p *proxy) arm(f fault, inserts int) (hit <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.left, p.hit = f, inserts, make(chan struct{})
	return p.hit
}

// disarm ends all faults, also stalls and cuts that last.
func (p *proxy) disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.stall, p.cut = 0, time.Time{}, time.Time{}
}

// reset resets all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.reset()
	}
}

func (c *conn) reset() {
	_ = c.client.SetLinger(0)
	_ = c.server.SetLinger(0)
	c.close()
}

func (c *conn) close() {
	c.once.Do(func() { close(c.done) })
	c.client.Close()
	c.server.Close()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.connect(client.(*net.TCPConn)) })
	}
}

func (p *proxy) connect(client *net.TCPConn) {
	refuse := func() { _ = client.SetLinger(0); client.Close() }
	server, err := net.DialTimeout("tcp", p.target, 10*time.Second)
	if err != nil {
		refuse()
		return
	}
	c := &conn{client: client, server: server.(*net.TCPConn), done: make(chan struct{}), pending: map[uint32]request{}}
	p.mu.Lock()
	select {
	case <-p.closed:
		p.cut = time.Now().Add(time.Hour)
	default:
	}
	refused := time.Now().Before(p.cut)
	if !refused {
		p.conns[c] = true
	}
	p.mu.Unlock()
	if refused {
		c.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.requests(c) })
	both.Go(func() { p.answers(c) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// requests carries what the program sends.
func (p *proxy) requests(c *conn) {
	defer c.close()
	for {
		message, err := mongowire.Read(c.client)
		if err != nil {
			return
		}
		m := wireMessage(message)
		if m.compressed() {
			p.record.add("the program compresses its messages, so they cannot be judged; leave compressors out of what it connects with")
		}
		req := parseRequest(m)
		if req.asks {
			p.record.settings(noAnswer)
		}
		var f fault
		if req.insert != nil {
			p.record.insert(req.insert, time.Now())
			f = p.meet()
		}
		switch f.what {
		case loseAnswer:
			req.lose = true
		case loseRequest:
			c.reset()
			return
		case late:
			p.deliver(c, m, f.last)
			return
		case stall:
			p.mu.Lock()
			p.stall = time.Now().Add(f.last)
			p.mu.Unlock()
		case cut:
			p.mu.Lock()
			p.cut = time.Now().Add(f.last)
			p.mu.Unlock()
			p.reset()
			return
		case killBefore:
			f.then()
			c.reset()
			return
		case killAfter:
			f.then()
		}
		if req != (request{}) {
			c.mu.Lock()
			c.pending[m.id()] = req
			c.mu.Unlock()
		}
		p.wait(c)
		if _, err := c.server.Write(m); err != nil {
			return
		}
	}
}

// meet tells which fault an insert meets.
func (p *proxy) meet() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		return fault{}
	}
	if p.left--; p.left == 0 {
		close(p.hit)
	}
	return p.armed
}

// answers carries what the server answers.
func (p *proxy) answers(c *conn) {
	defer c.close()
	for {
		message, err := mongowire.Read(c.server)
		if err != nil {
			return
		}
		m := wireMessage(message)
		p.wait(c)
		c.mu.Lock()
		req, ok := c.pending[m.answersTo()]
		delete(c.pending, m.answersTo())
		c.mu.Unlock()
		switch {
		case !ok:
		case req.lose:
			c.reset()
			return
		case req.insert != nil: // noted before the program can know it
			p.record.stored(req.insert.stored(m), time.Now())
		case req.asks:
			if reply, _ := m.body(); succeeded(reply) {
				p.record.settings(answered)
			}
		default:
			p.record.stored(found(m), time.Now())
		}
		if _, err := c.client.Write(m); err != nil {
			return
		}
	}
}

// wait waits while nothing passes.
func (p *proxy) wait(c *conn) {
	for {
		p.mu.Lock()
		left := time.Until(p.stall)
		p.mu.Unlock()
		if left <= 0 || !sleep(min(left, 50*time.Millisecond), c.done) {
			return
		}
	}
}

// deliver breaks the program's end of a connection, and gives the server the request after a while.
func (p *proxy) deliver(c *conn, m wireMessage, after time.Duration) {
	_ = c.client.SetLinger(0)
	c.client.Close()
	sleep(after, p.closed)
	_ = c.server.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.server.Write(m); err == nil {
		sleep(30*time.Second, c.done) // until it is answered
	}
}

// sleep waits for d, or less if done is closed: then it returns false.
func sleep(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}
