package api

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const maxScrapers = 10

func (s *Server) alive(w *answer, _ *http.Request, _ *client) error { return plain(w, nil) }

// isReady reports whether a message sent now can be stored. It checks only that the queue's clock can be read.
func (s *Server) isReady(w *answer, _ *http.Request, _ *client) error {
	if s.isStopping() {
		return plain(w, errors.New("stopping"))
	}
	if reason := s.notStarted(); reason != "" {
		return plain(w, errors.New(reason))
	}
	if err := s.ready.Check(s.backend.Queue); err != nil {
		return plain(w, errors.New(strings.Join(strings.Fields("the queue is unusable: "+s.clean(err)), " ")))
	}
	return plain(w, nil)
}

// plain responds with 200 and ok, or with 503 and the reason, in one line.
func plain(w *answer, err error) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, err = printable.Fprintf(w, "%s\n", err.Error())
		return err
	}
	_, err = printable.Fprintf(w, "ok\n")
	return err
}

// metrics count requests and messages.
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	messages *prometheus.CounterVec
	bytes    prometheus.Counter
	tails    prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fencepost_http_requests_total", Help: "Requests answered, by path, method and status."}, []string{"path", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fencepost_http_request_seconds", Help: "Time from the head of a request to the end of its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"path"}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fencepost_http_messages_total", Help: "Messages received, by outcome: stored, unknown or rejected. Those refused before they reached the queue are not counted."}, []string{"outcome"}),
		bytes:    prometheus.NewCounter(prometheus.CounterOpts{Name: "fencepost_http_stored_bytes_total", Help: "Payload bytes of the messages that were stored."}),
		tails:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "fencepost_http_tails", Help: "Open tails."}),
	}
	m.registry.MustRegister(m.requests, m.seconds, m.messages, m.bytes, m.tails, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapers})
	return m
}

func (m *metrics) serve(w *answer, r *http.Request, _ *client) error {
	m.handler.ServeHTTP(w, r)
	return nil
}

// answered counts a request. Its labels have few values, whatever clients send.
func (m *metrics) answered(pattern, method string, status int, took time.Duration) {
	if pattern == "" {
		pattern = "other"
	}
	if method != http.MethodGet && method != http.MethodHead && method != http.MethodPost {
		method = "other"
	}
	m.requests.WithLabelValues(pattern, method, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(pattern).Observe(took.Seconds())
}

// published counts messages with the same outcome.
func (m *metrics) published(status queue.Status, messages, bytes int) {
	m.messages.WithLabelValues(status.String()).Add(float64(messages))
	if status == queue.Stored {
		m.bytes.Add(float64(bytes))
	}
}
