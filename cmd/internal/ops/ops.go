// Package ops serves a program's own state over HTTP: metrics, liveness, readiness, and current activity.
//
//	/metrics       for Prometheus
//	/livez         200 while the process gets on with its work, 503 when a restart may help
//	/readyz        200 while it is connected and not stopping, else 503 and one line that says why
//	/statusz       JSON: settings, and what it does with each type
//	/debug/pprof/  profiles, if asked for
//	everything else is answered with pages (package ui), if asked for
//
// It listens before anything else starts, so a program that cannot reach its server can report why.
package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// closeTimeout bounds the wait for answers under way when the server closes.
const closeTimeout = 2 * time.Second

// addrHelp says what an address looks like.
const addrHelp = ":9090 (this machine only) or 0.0.0.0:9090 (all its addresses)"

// Options of a Server.
type Options struct {
	Addr     string   // host:port, without a host 127.0.0.1; port 0 chooses a free one
	Hosts    []string // host names that requests may use, in addition to those of limits.go
	Pprof    bool
	Pages    bool             // all other paths are answered with what Show is given
	Metrics  []metrics.Option // none: the defaults of package metrics
	URL      string           // of the backend, without secrets
	Store    string           // of the files, without secrets; "" means a directory
	Settings []cli.Setting
	Secrets  []string // must not appear in any answer; "" means none
}

// Server reports the state of one worker. Safe for concurrent use.
type Server struct {
	opts     Options
	listener net.Listener
	http     *http.Server
	served   chan struct{}
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	started  time.Time

	mu       sync.Mutex
	pool     *worker.Pool
	waiting  string // why there is no pool yet
	pages    http.Handler
	stopping bool
}

// Listen opens the address and answers requests from then on. Until Attach the worker is not ready.
func Listen(o Options) (*Server, error) {
	l, host, err := Open(o.Addr)
	if err != nil {
		return nil, err
	}
	return serve(l, host, o), nil
}

// Open opens the address of --listen. host is its host, "" if it has none.
func Open(addr string) (l net.Listener, host string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return nil, "", cli.Usagef("--listen %q is not an address; write it as in %s", addr, addrHelp)
	}
	// rule: without a host this machine only. Go would take all its addresses, and not everything that listens asks for a password.
	l, err = net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	if err != nil {
		return nil, "", listenError(addr, err)
	}
	return l, host, nil
}

// NewServer returns a server that answers with h, within the limits of this package: time, number of
// clients, and the host names that requests may use: that of its address, host, and names.
func NewServer(h http.Handler, host string, names []string) *http.Server {
	s := &http.Server{
		Handler:           hostsOf(host, names).check(h),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout, // rule: who does not read its answer holds it for this long, and not for good
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
	LimitConns(s, maxConns-reserve)
	return s
}

// serve answers at l, which was opened for host.
func serve(l net.Listener, host string, o Options) *Server {
	s := &Server{opts: o, listener: l, served: make(chan struct{}), metrics: metrics.New(o.Metrics...), registry: prometheus.NewRegistry(), started: time.Now()}
	s.registry.MustRegister(s.metrics, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	// One failing metric does not hide the others, and a scraper that has gone mad does not take all the memory.
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 10}))
	mux.HandleFunc("GET /livez", s.answer(s.alive))
	mux.HandleFunc("GET /readyz", s.answer(s.ready))
	mux.HandleFunc("GET /statusz", s.statusz)
	if o.Pages {
		mux.HandleFunc("/", s.page)
	} else {
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
			printable.Fprintf(w, "fencepost worker: /metrics /livez /readyz /statusz\n")
		})
	}
	if o.Pprof { // without /cmdline: the URL on the command line may have a password
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	s.http = NewServer(mux, host, o.Hosts)
	go func() {
		defer close(s.served)
		s.http.Serve(l) // it ends with Close
	}()
	return s
}

func listenError(addr string, err error) error {
	var dns *net.DNSError
	var wrong *net.AddrError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--listen %s: the port is in use; choose another one, or stop the program that uses it: %w", addr, err)
	case errors.As(err, &dns), errors.As(err, &wrong), errors.Is(err, syscall.EADDRNOTAVAIL):
		return cli.Usagef("--listen %s: this machine has no such address or port; use one such as %s: %w", addr, addrHelp, err)
	}
	return fmt.Errorf("--listen %s: %w", addr, err)
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Observe is for worker.Config.Observe.
func (s *Server) Observe(o worker.Observation) { s.metrics.Observe(o) }

// ObserveStore returns an observer of the requests to the store of the files, and adds them to the
// metrics. Call it once.
func (s *Server) ObserveStore() func(slots.Request) {
	m := metrics.NewStore()
	s.registry.MustRegister(m)
	return m.Observe
}

// Waiting records why there is no usable server yet, at an address without secrets.
func (s *Server) Waiting(address, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = fmt.Sprintf("waiting for a usable server at %s: %s", address, reason)
}

// Show sets the handler of all paths that are not of this package. Until then they are answered with 503.
func (s *Server) Show(pages http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages = pages
}

func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	pages := s.pages
	s.mu.Unlock()
	if pages == nil {
		http.Error(w, "the pages are there when the worker has reached its server; /readyz says what it waits for", http.StatusServiceUnavailable)
		return
	}
	pages.ServeHTTP(w, r)
}

// Attach sets the pool that the answers are about, which is about to run.
func (s *Server) Attach(pool *worker.Pool, cfg worker.Config) {
	s.metrics.Attach(pool, cfg)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = pool
}

// Stopping records that the worker is about to end: it is not ready from now on.
func (s *Server) Stopping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
}

// Close ends the answers and closes the port. Call it before closing the queue.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		s.http.Close()
	}
	<-s.served
	s.metrics.Close()
}

func (s *Server) state() (pool *worker.Pool, stopping bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool, s.stopping
}

// answer says 200 ok, or 503 and why.
func (s *Server) answer(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			printable.Fprintf(w, "%s\n", s.clean(err.Error()))
			return
		}
		printable.Fprintf(w, "ok\n")
	}
}

// clean makes one line of a text, without secrets.
func (s *Server) clean(text string) string {
	text = redact.Text(cli.StoreText(strings.Join(strings.Fields(text), " "), s.opts.Store))
	for _, secret := range s.opts.Secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// alive says whether a restart may help. An unreachable server is no reason for one.
func (s *Server) alive() error {
	pool, _ := s.state()
	if pool == nil {
		return nil
	}
	for _, t := range pool.Status().Types {
		if t.Stuck {
			return fmt.Errorf("type %s is held but has made no progress for minutes: last commit %s", t.Type, since(t.LastCommit))
		}
	}
	return nil
}

func since(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return time.Since(t).Round(time.Second).String() + " ago"
}

// ready says whether the worker serves its types.
func (s *Server) ready() error {
	pool, stopping := s.state()
	switch {
	case stopping:
		return errors.New("stopping")
	case pool == nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting != "" {
			return errors.New(s.waiting)
		}
		return fmt.Errorf("connecting to %s", s.opts.URL)
	}
	status := pool.Status()
	switch {
	case status.Stopping:
		return errors.New("stopping")
	case !status.Running:
		return errors.New("starting")
	case status.Outage != nil:
		return fmt.Errorf("the server cannot be used: %w", status.Outage)
	}
	return nil
}
