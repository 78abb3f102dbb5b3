package mongoqueue_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy is between a client and a server, and drops requests or answers.
type proxy struct {
	listener net.Listener
	target   string
	stalled  chan struct{} // closed: nothing passes, nothing ends
	muteNext atomic.Int64  // > 0: this many answers are dropped, and the connection then cut

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// newProxy returns a proxy for the first host of uri, and the URI that goes through it.
func newProxy(t testing.TB, uri string) (*proxy, string) {
	t.Helper()
	rest := strings.TrimPrefix(uri, "mongodb://")
	if at := strings.LastIndexByte(strings.SplitN(rest, "/", 2)[0], '@'); at >= 0 {
		rest = rest[at+1:]
	}
	host, path, _ := strings.Cut(rest, "/")
	host, _, _ = strings.Cut(host, ",")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: host, stalled: make(chan struct{}), conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	through := strings.Replace(uri, rest, l.Addr().String()+"/"+path, 1)
	if !strings.Contains(through, "directConnection") {
		sep := "?"
		if strings.Contains(through, "?") {
			sep = "&"
		}
		through += sep + "directConnection=true"
	}
	return p, through
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(server, client, false) })
		p.wg.Go(func() { p.pump(client, server, true) })
	}
}

func (p *proxy) pump(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-p.stalled:
			_, _ = io.Copy(io.Discard, from) // until a side closes
			return
		default:
		}
		if answers && n > 0 && p.muteNext.Load() > 0 && isOpAnswer(buf[:n]) && p.muteNext.Add(-1) >= 0 {
			return // the request was performed, the answer is lost with the connection
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// isOpAnswer distinguishes answers to writes from those to the driver's monitoring.
func isOpAnswer(b []byte) bool { return !strings.Contains(string(b), "isWritablePrimary") }

// stall lets nothing pass from now on, without closing anything: a partition.
func (p *proxy) stall() { close(p.stalled) }

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

func (p *proxy) close() {
	p.listener.Close()
	p.cut()
	p.wg.Wait()
}
