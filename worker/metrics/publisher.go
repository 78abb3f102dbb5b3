package metrics

import (
	"github.com/fencepost/fencepost/queue"
	"github.com/prometheus/client_golang/prometheus"
)

// publisherSamples are the metrics of a queue.Publisher.
var publisherSamples = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(queue.PublisherStats) float64
}{
	{desc("fencepost_published_messages_total", "Messages stored for certain."), prometheus.CounterValue, func(s queue.PublisherStats) float64 { return float64(s.Stored) }},
	{desc("fencepost_publish_unknown_messages_total", "Messages with an unknown outcome: they may or may not be stored."), prometheus.CounterValue, func(s queue.PublisherStats) float64 { return float64(s.Unknown) }},
	{desc("fencepost_publish_rejected_messages_total", "Messages that are not stored and never will be."), prometheus.CounterValue, func(s queue.PublisherStats) float64 { return float64(s.Rejected) }},
	{desc("fencepost_publish_batches_total", "Batches whose outcome is settled."), prometheus.CounterValue, func(s queue.PublisherStats) float64 { return float64(s.Batches) }},
	{desc("fencepost_publish_repeats_total", "Attempts beyond the first of a batch."), prometheus.CounterValue, func(s queue.PublisherStats) float64 { return float64(s.Repeats) }},
	{desc("fencepost_publish_buffered_messages", "Messages accepted whose outcome is not settled."), prometheus.GaugeValue, func(s queue.PublisherStats) float64 { return float64(s.Buffered) }},
}

type publisher struct{ stats func() queue.PublisherStats }

// Publisher returns a collector of a publisher's statistics, which have no labels. Pass the publisher's
// Stats method.
//
//	registry.MustRegister(metrics.Publisher(p.Stats))
func Publisher(stats func() queue.PublisherStats) prometheus.Collector { return publisher{stats} }

func (p publisher) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range publisherSamples {
		ch <- s.desc
	}
}

func (p publisher) Collect(ch chan<- prometheus.Metric) {
	stats := p.stats()
	for _, s := range publisherSamples {
		ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(stats))
	}
}
