package api

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/httpbody"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/ready"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// Options of a Server.
type Options struct {
	Poll           time.Duration // how often a tail polls them for new records
	Access         Access
	Hosts          []string      // host names accepted in requests, in addition to those that package ops accepts
	Wait           time.Duration // longest wait for the outcome of a message; then it is withdrawn, or its outcome is unknown
	ClientTimeout  time.Duration // how long a client may keep the server waiting while it sends a request or receives a response
	Heartbeat      time.Duration // interval of the comments that an idle tail sends, so that each side notices when the other is gone
	MaxConnections int           // connections with requests in progress, not counting a few reserved for probes
	CountUpTo      int           // largest backlog that is counted exactly
	Log            zerolog.Logger
}

// Server answers requests. Safe for concurrent use.
type Server struct {
	o         Options
	backend   *fencepost.Backend // set by Start, like the next two
	files     chain.Files
	publisher *queue.Publisher
	routes    []route
	metrics   *metrics
	medium    chan struct{} // semaphores for bodies, see space
	large     chan struct{}
	readers   chan struct{}
	tails     chan struct{}
	inUse     typesInUse
	ready     ready.Queue

	stopped context.Context // when done, tails end and no more lines are read
	stop    context.CancelFunc

	mu       sync.Mutex
	waiting  string // what Start is waited for; "" after it
	stops    bool
	inFlight sync.WaitGroup
}

// New returns a server that answers probes only, until Start. waiting is its reason for not being ready, without secrets.
func New(o Options, waiting string) *Server {
	s := &Server{o: o, waiting: waiting, metrics: newMetrics(), medium: make(chan struct{}, mediumBodies), large: make(chan struct{}, largeBodies), readers: make(chan struct{}, maxReaders), tails: make(chan struct{}, maxTails)}
	// A message is sent within Wait, and repeated for half of it. Then its type becomes idle.
	s.inUse = typesInUse{keep: idleType + 2*o.Wait, since: map[string]time.Time{}}
	s.o.Access.logTo(o.Log)
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.routes = []route{
		{"POST", "/v1/types/{type}/messages", scopePublish, nil, s.publish},
		{"GET", "/v1/types", scopeRead, []string{"after", "limit"}, s.types},
		{"GET", "/v1/types/{type}", scopeRead, nil, s.typ},
		{"GET", "/v1/types/{type}/messages", scopeRead, []string{"from", "limit"}, s.messages},
		{"GET", "/v1/types/{type}/messages/{message}", scopeRead, nil, s.message},
		{"GET", tailPattern, scopeRead, []string{"from"}, s.tail},
		{"GET", "/metrics", scopeRead, nil, s.metrics.serve},
		{"GET", "/livez", "", nil, s.alive},
		{"GET", "/readyz", "", nil, s.isReady},
	}
	return s
}

// Start makes the server ready. It has its own publisher, which Close closes. ctx bounds only Start.
func (s *Server) Start(ctx context.Context, b *fencepost.Backend, files chain.Files) error {
	// A batch is abandoned before its request times out, so that a definite refusal is reported as such.
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{RepeatFor: s.o.Wait / 2, AttemptTimeout: s.o.Wait / 3, BacklogWait: -1, IdleRotate: idleType,
		OnRepeat: func(r queue.Repeat) {
			s.o.Log.Warn().Str("type", r.Type).Int("messages", r.Messages).Int("attempt", r.Attempt).Err(r.Err).Msg("messages could not be stored, trying again")
		}})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backend, s.files, s.publisher, s.waiting = b, files, p, ""
	return nil
}

// Waiting sets the reason for not being ready, without secrets, before Start.
func (s *Server) Waiting(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = reason
}

// HTTP returns an http.Server for a listener opened for host, see ops.Open.
func (s *Server) HTTP(host string) *http.Server {
	h := ops.NewServer(s.handler(), host, s.o.Hosts)
	h.Handler = s.noted(h.Handler)
	h.ReadHeaderTimeout, h.IdleTimeout, h.MaxHeaderBytes = headerTimeout, idleTimeout, maxHeader
	h.ReadTimeout, h.WriteTimeout = s.o.ClientTimeout, 0 // bodies and responses have their own deadlines, see limits.go
	ops.LimitConns(h, s.o.MaxConnections)
	h.DisableGeneralOptionsHandler = true // net/http would answer OPTIONS * with 200, past the checks of hosts and tokens
	h.Protocols = new(http.Protocols)
	h.Protocols.SetHTTP1(true) // not HTTP/2, whose connections can have any number of requests in progress
	h.ErrorLog = stdlog.New(lineLog{s.o.Log}, "", 0)
	if t := s.o.Access.TLS; t != nil {
		h.TLSConfig = t.Config()
	}
	return h
}

// lineLog forwards the log lines of net/http.
type lineLog struct{ log zerolog.Logger }

func (l lineLog) Write(p []byte) (int, error) {
	event := l.log.Debug() // disconnected clients, failed handshakes
	if strings.Contains(string(p), "panic") {
		event = l.log.Error()
	}
	event.Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}

// route is one operation.
type route struct {
	method, pattern string
	scope           scope    // "": no token required
	parameters      []string // of the query; one without scope takes any query: the answer to a probe must not depend on it
	handle          func(w *answer, r *http.Request, c *client) error
}

// methods returns the methods that a route takes.
func (rt *route) methods() []string {
	if rt.method == http.MethodGet && rt.pattern != tailPattern { // a tail has no end
		return []string{http.MethodGet, http.MethodHead} // net/http leaves the body out
	}
	return []string{rt.method}
}

const tailPattern = "/v1/types/{type}/tail"

// noted logs and counts all requests that next answers, also those with a wrong host, which package ops refuses.
func (s *Server) noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		began := time.Now()
		w := &answer{ResponseWriter: rw, c: http.NewResponseController(rw), patience: patience{s.o.ClientTimeout, s.o.ClientTimeout}}
		next.ServeHTTP(w, r)
		s.note(r, w, time.Since(began))
	})
}

// handler answers all requests, with an answer as ResponseWriter.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	var patterns []string
	for _, rt := range s.routes {
		if !slices.Contains(patterns, rt.pattern) {
			patterns = append(patterns, rt.pattern)
			mux.Handle(rt.pattern, s.dispatch(rt.pattern))
		}
	}
	nothing := s.dispatch("")
	mux.Handle("/", nothing)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Other forms of a path are no path: mux would redirect them, which no client of an API expects.
		if p := r.URL.EscapedPath(); !strings.HasPrefix(p, "/") || path.Clean(p) != p {
			nothing(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// dispatch returns the handler of a pattern; "" handles the requests that no route matches.
func (s *Server) dispatch(pattern string) http.HandlerFunc {
	crossOrigin := http.NewCrossOriginProtection()
	return func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*answer)
		w.pattern = pattern
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		err := s.serve(w, r, pattern, crossOrigin)
		if err != nil && w.status == 0 {
			s.problem(err).write(w)
		} else if err != nil {
			s.o.Log.Warn().Str("path", printable.Short(r.URL.Path)).Err(err).Msg("an answer ended early")
		}
	}
}

// serve answers a request, or returns an error that says why not.
func (s *Server) serve(w *answer, r *http.Request, pattern string, crossOrigin *http.CrossOriginProtection) error {
	var rt *route
	if at := slices.IndexFunc(s.routes, func(rt route) bool { return rt.pattern == pattern && slices.Contains(rt.methods(), r.Method) }); at >= 0 {
		rt = &s.routes[at]
	}
	if rt != nil && rt.scope == "" {
		httpbody.Take(w, r)
		return rt.handle(w, r, nil)
	}
	// rule: a request that arrived before the stop is finished; a later one is refused.
	if err := s.enter(); err != nil {
		httpbody.Take(w, r)
		w.Header().Set("Connection", "close")
		return err
	}
	defer s.inFlight.Done()
	who, err := s.admit(w, r, pattern, rt, crossOrigin)
	w.client = who
	if err == nil && !ops.Begin(r) {
		err = busy("too many requests in progress")
	}
	// rule: a refused request holds its connection only briefly, not for as long as a body may take: its client may be unauthenticated.
	if err != nil || rt.method == http.MethodGet {
		httpbody.Take(w, r)
	}
	if err != nil {
		return err
	}
	if err = rt.handle(w, r, who); err != nil && w.status == 0 && rt.method == http.MethodPost {
		httpbody.TakeRest(w, r) // the problem does not wait for a body that nobody reads
	}
	return err
}

// admit returns the client of a request, and an error if the request is refused. rt is nil if no route matches.
func (s *Server) admit(w *answer, r *http.Request, pattern string, rt *route, crossOrigin *http.CrossOriginProtection) (*client, error) {
	// rule: a page of another origin must not publish: the browser is inside the network, and needs no token on this machine.
	if err := crossOrigin.Check(r); err != nil {
		return nil, newProblem(http.StatusForbidden, "cross_origin", "publish from a program, or from a page of the same origin", "a browser sent this for a page of another origin")
	}
	// rule: with --client-ca, a client without a certificate signed by the authority gets no answer except to probes.
	if !s.o.Access.certified(r) {
		w.Header().Set("Connection", "close") // a client that has another certificate by now presents it when it connects again
		return nil, uncertified()
	}
	who := s.o.Access.client(r)
	if who == nil {
		return nil, newProblem(http.StatusUnauthorized, "unauthorized", "send a token that the server knows, as in Authorization: Bearer fpt_…", "the request has no valid token")
	}
	if rt == nil {
		return who, s.nothing(w, r, pattern)
	}
	if !who.may(rt.scope) {
		return who, newProblem(http.StatusForbidden, "forbidden", "use a token that has the scope", "the token is not for %s", rt.scope)
	}
	if typ := r.PathValue("type"); strings.Contains(pattern, "{type}") {
		if err := queue.ValidateType(typ); err != nil {
			return who, err
		}
		if !who.mayUse(typ) {
			return who, newProblem(http.StatusForbidden, "forbidden", "use a token that is for the type", "the token is not for type %s", typ)
		}
	}
	return who, rt.checkQuery(r.URL.RawQuery)
}

func uncertified() *problem {
	return newProblem(http.StatusUnauthorized, "certificate_required", "connect with a certificate that an authority of the server's --client-ca has signed", "the connection has no certificate that the server accepts")
}

// checkQuery refuses a query of which a part would be ignored: net/url leaves out what it cannot read, and a handler reads one value of each parameter
// that it knows.
//
// rule: no part of a query is ignored: a misspelled from would mean the beginning.
func (rt *route) checkQuery(query string) error {
	var seen []string
	for part := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(part, "=")
		name, wrongKey := url.QueryUnescape(key)
		_, wrongValue := url.QueryUnescape(value)
		switch {
		case part == "": // as at the end of from=0&
			continue
		case strings.Contains(part, ";"):
			return malformed("put & between parameters, and write %3B for a ; in a value", "the query has a ; in %s", printable.Short(part))
		case wrongKey != nil || wrongValue != nil:
			return malformed("write %25 for a % that is not part of an escape", "the query has an invalid escape in %s", printable.Short(part))
		case len(rt.parameters) == 0:
			return malformed("leave it out", "there is no parameter %s; this path has none", printable.Short(name))
		case !slices.Contains(rt.parameters, name):
			return malformed("correct its name: "+strings.Join(rt.parameters, ", "), "there is no parameter %s", printable.Short(name))
		case slices.Contains(seen, name):
			return malformed("send it once", "the parameter %s was sent several times", name)
		}
		seen = append(seen, name)
	}
	return nil
}

// nothing returns the error for a request that no route matches.
func (s *Server) nothing(w *answer, r *http.Request, pattern string) error {
	var methods []string
	for _, rt := range s.routes {
		if rt.pattern == pattern {
			methods = append(methods, rt.methods()...)
		}
	}
	if methods == nil {
		return notFound("no_such_path", "see docs/openapi.yaml for all paths", "nothing is at this path")
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return newProblem(http.StatusMethodNotAllowed, "method_not_allowed", "use "+strings.Join(methods, " or "), "the path does not take %s", printable.Short(r.Method))
}

// note logs and counts a response.
func (s *Server) note(r *http.Request, w *answer, took time.Duration) {
	pattern, who := w.pattern, w.client
	s.metrics.answered(pattern, r.Method, w.status, took)
	event := s.o.Log.Info()
	if !strings.HasPrefix(pattern, "/v1") && pattern != "" {
		event = s.o.Log.Debug() // probes and scrapes
	}
	if who != nil && who.name != "" {
		event = event.Str("client", who.name)
	}
	// rule: no payload, header or token is logged.
	event.Str("method", printable.Short(r.Method)).Str("path", printable.Short(r.URL.Path)).Int("status", w.status).Int64("bytes", w.bytes).Dur("took", took).Str("from", r.RemoteAddr).Msg("request")
}

// enter registers a request in inFlight, and returns an error if the server is stopping or not ready yet. inFlight.Done ends the request.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stops:
		return stopping()
	case s.waiting != "":
		return unavailable(s.waiting)
	}
	s.inFlight.Add(1)
	return nil
}

func (s *Server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stops
}

// notStarted returns what Start is waited for, "" after it.
func (s *Server) notStarted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Stop refuses new requests, ends tails and stops reading lines. Requests in progress still get their responses: Close waits for them.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stops = true
	s.mu.Unlock()
	s.stop()
}

// Close calls Stop, waits for the requests in progress and then closes the publisher. ctx bounds both waits.
func (s *Server) Close(ctx context.Context) error {
	s.Stop()
	done := make(chan struct{})
	go func() { s.inFlight.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("requests were still in progress when the time to stop ran out: %w", context.Cause(ctx))
	}
	if s.publisher == nil {
		return err
	}
	return errors.Join(err, s.publisher.Close(ctx))
}

// place acquires one of a few places. It waits up to placeWait.
func (s *Server) place(ctx context.Context, among chan struct{}, what string) (leave func(), err error) {
	return s.placeIn(ctx, placeWait, among, what)
}

// placeIn is place with another longest wait.
func (s *Server) placeIn(ctx context.Context, longest time.Duration, among chan struct{}, what string) (leave func(), err error) {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case among <- struct{}{}:
		return sync.OnceFunc(func() { <-among }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
		return nil, busy(what)
	}
}
