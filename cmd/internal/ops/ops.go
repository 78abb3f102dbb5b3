// Package ops serves a program's own state over HTTP: metrics, liveness, readiness, and current activity.
//
//	/metrics       for Prometheus
//	/livez         200 while the process makes progress, 503 if a restart may help
//	/readyz        200 while it is connected and not stopping, else 503 and the reason in one line
//	/statusz       JSON: settings, and the state of each type
//	/debug/pprof/  profiles, if enabled
//	other paths    pages (package ui), if enabled
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

// closeTimeout bounds the wait for responses in progress when the server closes.
const closeTimeout = 2 * time.Second

// addrHelp shows what an address looks like.
const addrHelp = ":9090 (this machine only) or 0.0.0.0:9090 (all its addresses)"

// Options of a Server.
type Options struct {
	Addr     string   // host:port, without a host 127.0.0.1; port 0 chooses a free one
	Hosts    []string // host names accepted in requests, in addition to those of limits.go
	Pprof    bool
	Pages    bool             // whether the handler given to Show answers all other paths
	Metrics  []metrics.Option // none: the defaults of package metrics
	URL      string           // of the backend, without secrets
	Store    string           // of the files, without secrets; "" means a directory
	Settings []cli.Setting
	Secrets  []string // texts that must not appear in any response; "" is ignored
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

// Listen opens the address and starts to answer requests. The worker is not ready before Attach.
func Listen(o Options) (*Server, error) {
	l, host, err := Open(o.Addr)
	if err != nil {
		return nil, err
	}
	return serve(l, host, o), nil
}

// Open opens the address of --listen. host is the host in it, "" if there is none.
func Open(addr string) (l net.Listener, host string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return nil, "", cli.Usagef("--listen %q is not an address; write it as in %s", addr, addrHelp)
	}
	// rule: an address without a host means this machine only. Go would listen on all addresses, and not every server here requires a password.
	l, err = net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	if err != nil {
		return nil, "", listenError(addr, err)
	}
	return l, host, nil
}

// NewServer returns a server for h with the limits of this package: timeouts, number of connections,
// and accepted host names: host, which is that of its address, and names.
func NewServer(h http.Handler, host string, names []string) *http.Server {
	s := &http.Server{
		Handler:           hostsOf(host, names).check(h),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout, // rule: a client that does not read its response holds it only for this long
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
	LimitConns(s, maxConns-reserve)
	return s
}

// serve serves on l, which was opened for host.
func serve(l net.Listener, host string, o Options) *Server {
	s := &Server{opts: o, listener: l, served: make(chan struct{}), metrics: metrics.New(o.Metrics...), registry: prometheus.NewRegistry(), started: time.Now()}
	s.registry.MustRegister(s.metrics, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	// One failing metric does not hide the others, and a runaway scraper does not take all the memory.
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
	if o.Pprof { // without /cmdline: the URL on the command line may contain a password
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	s.http = NewServer(mux, host, o.Hosts)
	go func() {
		defer close(s.served)
		s.http.Serve(l) // returns after Close
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

// Observe implements worker.Config.Observe.
func (s *Server) Observe(o worker.Observation) { s.metrics.Observe(o) }

// ObserveStore returns an observer that adds the requests to the files' store to the metrics. Call it
// once.
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

// Show sets the handler for all paths that this package does not serve. Before that, they get 503.
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
		http.Error(w, "the pages are available after the worker has connected to its server; /readyz says what it is waiting for", http.StatusServiceUnavailable)
		return
	}
	pages.ServeHTTP(w, r)
}

// Attach sets the pool to report on, which is about to run.
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

// Close ends open responses and closes the port. Call it before closing the queue.
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

// answer responds with 200 and ok, or with 503 and the reason.
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

// clean returns a text in one line, without secrets.
func (s *Server) clean(text string) string {
	text = redact.Text(cli.StoreText(strings.Join(strings.Fields(text), " "), s.opts.Store))
	for _, secret := range s.opts.Secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// alive returns an error if a restart may help. It does not help against an unreachable server.
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

// ready returns an error if the worker does not serve its types.
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
		return fmt.Errorf("the server is unusable: %w", status.Outage)
	}
	return nil
}
