package conform

import (
	"net"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/mongowire"
	"github.com/fencepost/fencepost/internal/wait"
)

// proxy connects a program to the server. It forwards everything and records inserts. An armed fault affects the next inserts.
type proxy struct {
	listener net.Listener
	target   string
	record   *record
	closed   chan struct{}
	wg       sync.WaitGroup // all goroutines, late requests included

	mu    sync.Mutex
	armed fault
	left  int // how many more inserts it affects
	hit   chan struct{}
	stall time.Time // nothing is forwarded before this time
	cut   time.Time // connections are refused before this time
	conns map[*conn]bool
}

// fault is what happens to an insert.
type fault struct {
	what fate
	last time.Duration // duration of a stall, a cut or a delay
	then func()        // kills the program
}

// fate is the kind of a fault.
type fate int

const (
	passes      fate = iota
	loseAnswer       // the insert is executed, but the connection is reset instead of a response
	loseRequest      // the connection is reset
	late             // the connection is reset, and the server gets the insert after a while
	stall            // nothing is forwarded for a while
	cut              // all connections are reset, and new ones are refused for a while
	killBefore       // the program is killed, and the server does not get the insert
	killAfter        // the program is killed, and the server gets the insert
)

// conn is one connection through the proxy.
type conn struct {
	client, server *net.TCPConn
	done           chan struct{}
	once           sync.Once

	mu      sync.Mutex
	pending map[uint32]request
}

// request is a request that waits for its response.
type request struct {
	insert *insertion
	reads  bool // it reads messages, with read concern majority
	asks   bool // it reads settings
	lose   bool // its response is lost
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

// close ends all connections, and waits for late requests.
func (p *proxy) close() {
	close(p.closed)
	p.listener.Close()
	p.reset()
	p.wg.Wait()
}

// arm sets a fault for the next inserts. hit is closed when the last of them arrives.
func (p *proxy) arm(f fault, inserts int) (hit <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.left, p.hit = f, inserts, make(chan struct{})
	return p.hit
}

// disarm ends all faults, including current stalls and cuts.
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

// requests forwards the requests of the program.
func (p *proxy) requests(c *conn) {
	defer c.close()
	for {
		message, err := mongowire.Read(c.client)
		if err != nil {
			return
		}
		m := wireMessage(message)
		if m.compressed() {
			p.record.add("the program compresses its messages, so they cannot be judged; connect without compressors")
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

// meet returns the fault for an insert.
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

// answers forwards the responses of the server.
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
		case req.insert != nil: // recorded before the program can know it
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

// wait waits for the end of a stall.
func (p *proxy) wait(c *conn) {
	for {
		p.mu.Lock()
		left := time.Until(p.stall)
		p.mu.Unlock()
		if left <= 0 || !wait.Unless(c.done, min(left, 50*time.Millisecond)) {
			return
		}
	}
}

// deliver resets the program's end of a connection, and sends the request to the server after a while.
func (p *proxy) deliver(c *conn, m wireMessage, after time.Duration) {
	_ = c.client.SetLinger(0)
	c.client.Close()
	wait.Unless(p.closed, after)
	_ = c.server.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.server.Write(m); err == nil {
		wait.Unless(c.done, 30*time.Second) // until the response arrives
	}
}
