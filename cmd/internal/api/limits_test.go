package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/rs/zerolog"
)

// dial opens a connection and sends a text.
func (s *service) dial(text string) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// read returns the response on a connection, and whether the server has closed the connection.
func (s *service) read(c net.Conn) reply {
	s.t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.t.Errorf("no answer: %v", err)
		return reply{header: http.Header{}}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Error(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

const head = "POST /v1/types/orders/messages HTTP/1.1\r\nHost: localhost\r\n"

// A truncated body is not a message, even if its beginning would be one.
func TestCutBody(t *testing.T) {
	s := start(t, nil)
	for _, request := range []string{
		head + "Content-Length: 5\r\n\r\n12",
		head + "Content-Length: 5\r\nContent-Type: " + typeLines + "\r\n\r\n12",
		head + "Transfer-Encoding: chunked\r\nContent-Type: " + typeLines + "\r\n\r\n2\r\n12\r\n",
		head + "Transfer-Encoding: chunked\r\nContent-Type: " + typeLines + "\r\n\r\n5\r\n12",
	} {
		c := s.dial(request)
		c.(*net.TCPConn).CloseWrite()
		if a := s.read(c); a.status != http.StatusBadRequest || !strings.Contains(a.body, `"malformed"`) {
			t.Errorf("%q: %d %s", request, a.status, a.body)
		}
	}
	c := s.dial(head + "Content-Length: 5\r\nContent-Type: " + typeLines + "\r\n\r\n1\n2")
	c.Close()
	until(t, "the whole line is stored", func() bool { return len(s.pending("orders")) == 1 })
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	same(t, "stored", s.payloads("orders"), []string{"1"})
}

// Heads that are too large, invalid lengths and requests within requests are refused, and nothing is stored.
func TestHostileHeads(t *testing.T) {
	s := start(t, nil)
	for _, test := range []struct {
		request string
		status  int
	}{
		{head + strings.Repeat("X-Filler: "+strings.Repeat("x", 1000)+"\r\n", maxHeader/1000+10) + "\r\n", 431},
		{head + "Content-Length: -1\r\n\r\n", 400},
		{head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12", 400},
		{head + "Transfer-Encoding: gzip\r\n\r\n12", 501},
		{head + "Content-Length: 99999999999999999999\r\n\r\n", 400},
		{head + "Content-Length: 99999999\r\n\r\n", 413},
		{"POST /v1/types/orders/messages HTTP/1.1\r\n\r\n", 400},
		{"POST /v1/types/../../orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 404},
		{"GET //v1/types HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"GET /v1/types/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"GET /v1/./types HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n\r\n", 404},
		{"NONSENSE\r\n\r\n", 400},
	} {
		if a := s.read(s.dial(test.request)); a.status != test.status {
			t.Errorf("%.80q: %d %s", test.request, a.status, a.body)
		}
	}
	if n := len(s.pending("orders")); n != 0 {
		t.Errorf("%d are stored", n)
	}
}

// A client that keeps the server waiting loses its connection; time that the server takes does not count.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *Options) { o.ClientTimeout = 250 * time.Millisecond })
	s.queue.Around = func(op queuetest.Op, _ string) func() {
		if op == queuetest.OpInsert {
			time.Sleep(400 * time.Millisecond) // longer than a client may wait
		}
		return func() {}
	}
	for _, media := range []string{"text/plain", typeLines} {
		c := s.dial(head + "Content-Type: " + media + "\r\nContent-Length: 10\r\n\r\n1\n")
		a := s.read(c)
		described.saw(t, "POST", orders, a)
		if a.status != http.StatusRequestTimeout || !strings.Contains(a.body, `"too_slow"`) || media == typeLines && !strings.HasPrefix(a.body, `{"line":1,"id":"`) {
			t.Errorf("%s: %d %s", media, a.status, a.body)
		}
	}
	many := strings.Repeat("1\n", 2*chunkLines)
	if a := s.do("POST", "/v1/types/patient/messages", many, "Content-Type", typeLines); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A client that does not read its response loses its connection, and others are answered in the meantime.
func TestClientThatDoesNotRead(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	s := start(t, func(o *Options) { o.ClientTimeout = 250 * time.Millisecond })
	large := strings.Repeat("\x00", queue.MaxPayload) // 90 MB as JSON
	done := s.do("POST", orders, large)
	if done.status != http.StatusCreated {
		t.Fatal(done.body)
	}
	s.drain("orders")
	for range maxReaders {
		s.dial("GET /v1/types/orders/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	until(t, "all of them hold a place", func() bool { return len(s.readers) == maxReaders })
	until(t, "they lose it", func() bool { return len(s.readers) == 0 })
	if a := s.do("GET", "/v1/types/orders", ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// slowLink is the connection to a client that receives so many bytes per second.
type slowLink struct {
	http.ResponseWriter
	rate     int
	deadline time.Time
}

func (l *slowLink) SetWriteDeadline(at time.Time) error { l.deadline = at; return nil }

func (l *slowLink) Write(p []byte) (int, error) {
	takes, left := time.Duration(len(p))*time.Second/time.Duration(l.rate), time.Until(l.deadline)
	time.Sleep(min(takes, left))
	if takes > left {
		return 0, os.ErrDeadlineExceeded
	}
	return len(p), nil
}

// A client that reads slowly must read at slowestClient, or faster, what it gets from files: it holds a place that others wait for. A tail may take longer.
func TestClientThatReadsSlowly(t *testing.T) {
	for _, test := range []struct {
		rate   int
		reader bool
		whole  bool
	}{{slowestClient / 2, true, false}, {slowestClient * 5 / 4, true, true}, {slowestClient / 2, false, true}} {
		synctest.Test(t, func(t *testing.T) {
			link := &slowLink{ResponseWriter: httptest.NewRecorder(), rate: test.rate}
			a := &answer{ResponseWriter: link, c: http.NewResponseController(link), patience: patience{10 * time.Second, 10 * time.Second}, reader: test.reader}
			var err error
			for range 16 {
				time.Sleep(time.Minute) // the time between two writes is the server's own
				if _, err = a.Write(make([]byte, bufferSize)); err != nil {
					break
				}
			}
			if test.whole != (err == nil) {
				t.Errorf("%+v: %d bytes, %v", test, a.bytes, err)
			}
		})
	}
}

// At the limit of requests in progress, further ones are refused, and probes are answered on new connections. No message in progress is cut off.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 2
	s := start(t, func(o *Options) { o.MaxConnections = most })
	inserting, goOn := make(chan struct{}, most), make(chan struct{})
	s.queue.Around = func(op queuetest.Op, _ string) func() {
		if op == queuetest.OpInsert {
			inserting <- struct{}{}
			<-goOn
		}
		return func() {}
	}
	publish := func(n int) net.Conn {
		return s.dial(fmt.Sprintf("POST /v1/types/t%d/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1", n))
	}
	var under []net.Conn
	for i := range most {
		under = append(under, publish(i))
		<-inserting
	}
	for range 50 {
		s.dial("")
		if a := s.read(publish(most)); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, `"busy"`) || a.header.Get("Retry-After") == "" {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a := s.read(s.dial("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	close(goOn)
	for i, c := range under {
		if a := s.read(c); a.status != http.StatusCreated {
			t.Errorf("message %d: %d %s", i, a.status, a.body)
		}
	}
	until(t, "there is room again", func() bool { return s.read(publish(most)).status == http.StatusCreated })
}

// Refused requests, and those that need no token, are answered even if the body that they announce never arrives, and their connections make
// room for others.
func TestRefusedRequestsMakeRoom(t *testing.T) {
	const most = 4
	file, err := LoadTokens(tokenFile(t))
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *Options) { o.Access.Tokens, o.MaxConnections, o.ClientTimeout = file, most, time.Hour })
	const body = "Content-Length: 100000\r\n\r\n"
	for _, test := range []struct {
		request string
		status  int
	}{
		{head + body, 401},
		{head + "Expect: 100-continue\r\n" + body, 401},
		{head + "Transfer-Encoding: chunked\r\n\r\n5\r\n12", 401},
		{"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + body, 200},
		{"GET /v1/types HTTP/1.1\r\nHost: localhost\r\n" + body, 401},
		{"POST /livez HTTP/1.1\r\nHost: localhost\r\n" + body, 401},
		{"POST /v1/types/orders/messages HTTP/1.1\r\nHost: rebound.example\r\n" + body, 421},
	} {
		if a := s.read(s.dial(test.request)); a.status != test.status {
			t.Errorf("%q: %d %s", test.request, a.status, a.body)
		}
		for range 50 {
			s.dial(test.request)
		}
		if a := s.read(s.dial("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")); a.status != 200 {
			t.Errorf("a probe behind %q: %d %s", test.request, a.status, a.body)
		}
	}
}

// An answer is sent although the client does not end its body: after a line that cannot be stored, after a refusal, and when the server stops.
func TestAnswerBeforeTheEndOfABody(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *Options) { o.ClientTimeout = time.Hour })
	const more = "Transfer-Encoding: chunked\r\n\r\n"
	for _, test := range []struct {
		request string
		status  int
		want    string
	}{
		{head + "Content-Type: " + typeLines + "\r\n" + more + "9\r\n1\n{oops\n2\r\n", 422, `"complete":false`},
		{head + "Content-Encoding: gzip\r\n" + more + "2\r\n12", 415, "unsupported_encoding"},
		{head + "Fencepost-Delay: soon\r\n" + more + "2\r\n12", 400, "malformed"},
		{head + fmt.Sprintf("Content-Length: %d\r\n\r\n12", queue.MaxPayload+1), 413, "too_large"},
	} {
		if a := s.read(s.dial(test.request)); a.status != test.status || !strings.Contains(a.body, test.want) {
			t.Errorf("%q: %d %s", test.request, a.status, a.body)
		}
	}
	c := s.dial("POST /v1/types/stream/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + typeLines + "\r\n" + more + fmt.Sprintf("%x\r\n%s\r\n", 2*chunkLines, strings.Repeat("1\n", chunkLines)))
	until(t, "the lines are stored", func() bool { return len(s.pending("stream")) == chunkLines })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if a := s.read(c); a.status != 503 || !strings.HasSuffix(a.body, `{"stored":1000,"unknown":0,"rejected":1,"complete":false}`+"\n") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A client that sends its whole body before it reads gets the answer to a body that is too large.
func TestLargeBodyBeforeItsAnswer(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	body := strings.Repeat("x", queue.MaxPayload+1)
	for _, request := range []string{
		head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
	} {
		until(t, "the answer is there", func() bool { // the server takes what arrives within a second, so a busy machine may need another try
			c := s.dial("")
			defer c.Close()
			if _, err := io.WriteString(c, request); err != nil {
				return false
			}
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			return err == nil && res.StatusCode == http.StatusRequestEntityTooLarge
		})
	}
}

// tokenFile returns a file with a token that no client has.
func tokenFile(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "tokens")
	tokens(t, path, [3]string{"ops", "publish,read", ""})
	return path
}

// Large bodies take turns; small ones do not wait for them.
func TestLargeBodiesTakeTurns(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	pieces := make([]*io.PipeWriter, largeBodies)
	var wg sync.WaitGroup
	for i := range pieces {
		in, out := io.Pipe()
		pieces[i] = out
		wg.Go(func() {
			r := s.request("POST", orders, "")
			r.Body, r.ContentLength = in, -1
			if a := s.send(r); a.status != http.StatusCreated {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
		fmt.Fprint(out, strings.Repeat("x", largeBody+1))
	}
	until(t, "all places are taken", func() bool { return len(s.large) == largeBodies })
	if a := s.do("POST", "/v1/types/small/messages", "x"); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
	s.do("POST", "/v1/types/large/messages", strings.Repeat("x", largeBody+1)).want(t, 503, "busy")
	for _, out := range pieces {
		out.Close()
	}
	wg.Wait()
	if len(s.large) != 0 || len(s.pending("orders")) != largeBodies {
		t.Errorf("%d places are taken, %d are stored", len(s.large), len(s.pending("orders")))
	}
}

// Bodies of 64 KiB or more wait for one another. Small ones do not, and lines are stored in smaller parts meanwhile.
func TestMediumBodiesWait(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var pieces []*io.PipeWriter
	var wg sync.WaitGroup
	post := func() {
		in, out := io.Pipe()
		pieces = append(pieces, out)
		wg.Go(func() {
			r := s.request("POST", orders, "")
			r.Body, r.ContentLength = in, -1
			if a := s.send(r); a.status != http.StatusCreated {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
		wg.Go(func() { fmt.Fprint(out, strings.Repeat("x", mediumBody)) })
	}
	for range mediumBodies {
		post()
	}
	until(t, "all places are taken", func() bool { return len(s.medium) == mediumBodies })
	if a := s.do("POST", "/v1/types/small/messages", strings.Repeat("x", mediumBody-1)); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("POST", "/v1/types/lines/messages", strings.Repeat(`"`+strings.Repeat("x", 1000)+"\"\n", 3*mediumBody/1000), "Content-Type", typeLines); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
	post() // waits for one of the others
	for _, out := range pieces {
		wg.Go(func() { out.Close() })
	}
	wg.Wait()
	if len(s.medium) != 0 || len(s.pending("orders")) != mediumBodies+1 {
		t.Errorf("%d places are taken, %d are stored", len(s.medium), len(s.pending("orders")))
	}
}

// A type takes no goroutine of the server after it has been idle for a while.
func TestIdleTypesTakeNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Wait: time.Minute, Log: zerolog.Nop()}, "starting")
		if err := s.Start(t.Context(), &fencepost.Backend{Queue: queuetest.NewMemory(), Name: "memory"}, chain.Files{}); err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		const types = 2000
		before := runtime.NumGoroutine()
		for i := range types {
			if _, err := s.publisher.Publish(t.Context(), fmt.Sprint("t", i), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		busy := runtime.NumGoroutine()
		time.Sleep(idleType)
		synctest.Wait()
		if idle := runtime.NumGoroutine(); busy-before < types || idle-before > types/10 {
			t.Errorf("%d goroutines before, %d with %d types, %d when they are idle", before, busy, types, idle)
		}
	})
}

// While the server holds memory for as many types as it may, others are refused. A type that has been idle for a while makes room.
func TestTypesInMemoryAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Wait: time.Minute, Log: zerolog.Nop()}, "starting")
		if err := s.Start(t.Context(), &fencepost.Backend{Queue: queuetest.NewMemory(), Name: "memory"}, chain.Files{}); err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		publish := func(typ string) error { return s.store(t.Context(), []queue.Message{{Type: typ}})[0].Err }
		before := runtime.NumGoroutine()
		for i := range maxTypes {
			if err := publish(fmt.Sprint("t", i)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 100 {
			var p *problem
			if err := publish(fmt.Sprint("other", i)); !errors.As(err, &p) || p.Status != 503 || p.Code != "busy" || p.Retry == 0 {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n < maxTypes || n > maxTypes+100 {
			t.Errorf("%d goroutines for %d types", n, maxTypes)
		}
		time.Sleep(idleType)
		if err := publish("t0"); err != nil {
			t.Error(err)
		}
		time.Sleep(idleType)
		for i := range maxTypes - 1 {
			if err := publish(fmt.Sprint("other", i)); err != nil {
				t.Fatal(err)
			}
		}
		if publish("t1") == nil || publish("t0") != nil {
			t.Error("t0 has made room")
		}
	})
}

// A message or a line that is refused because of its type is not stored, and the answer says when to try again.
func TestTypeWithoutMemory(t *testing.T) {
	s := start(t, nil)
	for i := range maxTypes {
		s.inUse.take(fmt.Sprint("t", i))
	}
	for _, media := range []string{"text/plain", typeLines} {
		a := s.do("POST", orders, "1\n2\n", "Content-Type", media)
		if a.status != 503 || a.header.Get("Retry-After") != "30" || !strings.Contains(a.body, `"busy"`) {
			t.Errorf("%d %q %s", a.status, a.header, a.body)
		}
	}
	if a := s.do("POST", "/v1/types/t1/messages", "1\n2\n", "Content-Type", typeLines); a.status != http.StatusCreated || len(s.pending("orders")) != 0 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// Many probes cause one query to the queue.
func TestHealth(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var mu sync.Mutex
	away := false
	s.queue.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if away {
			return queuetest.Fault{Kind: queuetest.Unreachable}
		}
		return queuetest.Fault{}
	}
	for range 20 {
		if a := s.do("GET", "/readyz", ""); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if n := s.queue.Calls(queuetest.OpNow); n > 15 {
		t.Errorf("the queue was asked %d times", n)
	}
	mu.Lock()
	away = true
	mu.Unlock()
	until(t, "it is not ready", func() bool { return s.do("GET", "/readyz", "").status == 503 })
	if a := s.do("GET", "/livez", ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, path := range []string{"/v1/types", "/v1/types/orders", orders, orders + "/1", "/v1/types/orders/tail"} {
		s.do("GET", path, "").want(t, 503, "unavailable")
	}
}

// docs/http.md describes all metrics.
func TestMetrics(t *testing.T) {
	s := start(t, nil)
	s.do("POST", orders, "12345")
	s.do("BREW", "/coffee", "")
	s.do("GET", "/v1/types", "")
	s.do("GET", "//v1/types", "").want(t, 404, "no_such_path")
	other := s.request("GET", "/v1/types", "")
	other.Host = "rebound.example"
	if a := s.send(other); a.status != 421 || !strings.Contains(s.log.String(), `"status":421`) || !strings.Contains(s.log.String(), `"path":"//v1/types","status":404`) {
		t.Errorf("%d, and the log has\n%s", a.status, s.log)
	}
	s.do("GET", "/v1/"+strings.Repeat("x", 10_000), "")
	for line := range strings.Lines(s.log.String()) {
		if len(line) > 1000 {
			t.Errorf("a line has %d bytes", len(line))
		}
	}
	a := s.do("GET", "/metrics", "")
	for _, want := range []string{
		`fencepost_http_requests_total{method="POST",path="/v1/types/{type}/messages",status="201"} 1`,
		`fencepost_http_requests_total{method="other",path="other",status="404"} 1`,
		`fencepost_http_requests_total{method="GET",path="other",status="404"} 2`, `fencepost_http_requests_total{method="GET",path="other",status="421"} 1`,
		`fencepost_http_messages_total{outcome="stored"} 1`, "fencepost_http_stored_bytes_total 5", "fencepost_http_tails 0",
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("there is no %s in\n%s", want, a.body)
		}
	}
	doc := readFile(t, "../../../docs/http.md")
	for line := range strings.Lines(a.body) {
		if name, ok := strings.CutPrefix(line, "# HELP fencepost_"); ok && !strings.Contains(doc, "`fencepost_"+strings.Fields(name)[0]+"`") {
			t.Errorf("docs/http.md does not describe %s", line)
		}
	}
}
