package metrics

import (
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/prometheus/client_golang/prometheus"
)

// Store is a prometheus.Collector of the requests to a store of files. Safe for concurrent use.
//
//	m := metrics.NewStore()
//	files.Storage.FS = slots.New(ctx, slots.Observe(store, m.Observe))
//	registry.MustRegister(m)
type Store struct {
	requests *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// storeTimes are the buckets of a request's duration, in seconds.
var storeTimes = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}

// NewStore returns a Store without any requests.
func NewStore() *Store {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &Store{
		requests: counter("fencepost_store_requests_total", "Requests to the store of the files.", "request", "answer"),
		bytes:    counter("fencepost_store_bytes_total", "Bytes of the values that were created, or read.", "request"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fencepost_store_request_duration_seconds",
			Help: "Time of one request to the store of the files.", Buckets: storeTimes}, []string{"request"}),
	}
}

// Observe is for slots.Observe.
func (s *Store) Observe(r slots.Request) {
	s.requests.WithLabelValues(r.Kind, r.Answer).Inc()
	s.seconds.WithLabelValues(r.Kind).Observe(r.Took.Seconds())
	if r.Bytes > 0 {
		s.bytes.WithLabelValues(r.Kind).Add(float64(r.Bytes))
	}
}

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	s.requests.Describe(ch)
	s.bytes.Describe(ch)
	s.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	s.requests.Collect(ch)
	s.bytes.Collect(ch)
	s.seconds.Collect(ch)
}
