package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/rs/zerolog"
)

// service is a running server, with a queue in memory that can fail.
type service struct {
	*Server
	t      testing.TB
	queue  *queuetest.Faulty
	memory *queuetest.Memory
	dir    string
	url    string
	log    *syncBuffer
	client *http.Client
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start starts a server. change modifies its options.
func start(t testing.TB, change func(*Options)) *service {
	t.Helper()
	return startWith(t, change, func(*chain.Files) {})
}

// startWith is start with a function that modifies where the files are.
func startWith(t testing.TB, change func(*Options), place func(*chain.Files)) *service {
	t.Helper()
	s := &service{t: t, memory: queuetest.NewMemory(), dir: t.TempDir(), log: &syncBuffer{}}
	s.queue = &queuetest.Faulty{Queue: s.memory}
	locker, err := lock.New(locktest.NewMemory().Open(), lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Poll: 5 * time.Millisecond,
		Wait: time.Minute, ClientTimeout: time.Minute, Heartbeat: 20 * time.Millisecond, MaxConnections: 100, CountUpTo: 1000, Log: zerolog.New(s.log)}
	if change != nil {
		change(&o)
	}
	files := chain.Files{Dir: s.dir, Place: worker.Place(nil, s.dir)}
	place(&files)
	s.Server = New(o, "starting")
	if err := s.Start(t.Context(), &fencepost.Backend{Queue: s.queue, Locker: locker, Name: "memory"}, files); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, scheme := s.HTTP("127.0.0.1"), "http://"
	if o.Access.TLS != nil {
		scheme = "https://"
		go server.ServeTLS(l, "", "")
	} else {
		go server.Serve(l)
	}
	s.url = scheme + l.Addr().String()
	transport := &http.Transport{}
	s.client = &http.Client{Timeout: 2 * time.Minute, Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.Close(ctx)
		locker.Close(ctx)
	})
	return s
}

// reply is a response.
type reply struct {
	status int
	header http.Header
	body   string
}

// request creates a request; headers are name, value, name, value.
func (s *service) request(method, path, body string, headers ...string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// do sends a request and reads the response.
func (s *service) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	return s.send(s.request(method, path, body, headers...))
}

func (s *service) send(r *http.Request) reply {
	s.t.Helper()
	res, err := s.client.Do(r)
	if err != nil {
		s.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		return reply{header: http.Header{}}
	}
	defer res.Body.Close()
	var b []byte
	if res.Header.Get("Content-Type") != "text/event-stream" { // a tail has no end: see tail
		b, err = io.ReadAll(res.Body)
	}
	if err != nil {
		s.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
	a := reply{res.StatusCode, res.Header, string(b)}
	described.saw(s.t, r.Method, r.URL.EscapedPath(), a)
	return a
}

// want checks the status and the code of a problem response.
func (a reply) want(t testing.TB, status int, code string) problem {
	t.Helper()
	var p problem
	if a.status != status || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %s, want %d %s: %s", a.status, a.header.Get("Content-Type"), status, code, a.body)
	} else if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Code != code || p.Status != status || p.Detail == "" || p.Remedy == "" {
		t.Errorf("%v, want code %s: %s", err, code, a.body)
	}
	return p
}

// outcomes returns the lines of a response, and the last one.
func (a reply) outcomes(t testing.TB) (lines []outcomeLine, sum summaryLine) {
	t.Helper()
	if a.header.Get("Content-Type") != typeLines {
		t.Fatalf("%d %s: %s", a.status, a.header.Get("Content-Type"), a.body)
	}
	in := bufio.NewScanner(strings.NewReader(a.body))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if strings.HasPrefix(in.Text(), `{"stored"`) {
			if err := json.Unmarshal(in.Bytes(), &sum); err != nil {
				t.Fatal(err)
			}
			return lines, sum
		}
		var o outcomeLine
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, o)
	}
	t.Fatalf("no summary: %s", a.body)
	return nil, sum
}

// pending returns the pending messages.
func (s *service) pending(typ string) []queue.Message {
	s.t.Helper()
	msgs, err := s.memory.Fetch(context.Background(), typ, queue.ID{}, queue.Limit{Messages: 1_000_000})
	if err != nil {
		s.t.Fatal(err)
	}
	return msgs
}

// payloads returns the payloads of the pending messages.
func (s *service) payloads(typ string) (all []string) {
	s.t.Helper()
	for _, m := range s.pending(typ) {
		all = append(all, string(m.Payload))
	}
	return all
}

// drain lets a worker append the pending messages.
func (s *service) drain(types ...string) {
	s.t.Helper()
	pool, err := worker.New(worker.Config{Queue: s.memory, Locker: s.backend.Locker, To: worker.Files{Dir: s.dir, Storage: storage.Options{AllowOverlay: true}}, Types: types, UntilEmpty: true})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := pool.Run(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// until waits for a condition.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// same compares lists.
func same(t testing.TB, what string, got, want []string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		code = described.verdict()
	}
	os.Exit(code)
}
