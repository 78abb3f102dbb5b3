package metrics_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/metrics"
)

// open opens a database in a temporary directory that is removed at the end of the example.
func open(ctx context.Context) (b *fencepost.Backend, remove func()) {
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	b, err = fencepost.Open(ctx, "sqlite://"+filepath.Join(dir, "fencepost.db"))
	if err != nil {
		log.Fatal(err)
	}
	return b, func() {
		_ = b.Close(ctx)
		_ = os.RemoveAll(dir)
	}
}

// show prints a metric. A program serves its registry with promhttp.HandlerFor instead.
func show(registry *prometheus.Registry, name string) {
	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			fmt.Println(name, f.Metric[0].GetGauge().GetValue()+f.Metric[0].GetCounter().GetValue())
		}
	}
}

// Metrics of a pool in the registry of the application.
func ExampleNew() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	ship := worker.Each(func(context.Context, worker.Lease, queue.Message) error { return nil })

	m := metrics.New()
	cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, Types: []string{"orders"}, To: worker.Handling{Handler: ship}, UntilEmpty: true, Observe: m.Observe}
	pool, err := worker.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	m.Attach(pool, cfg)
	defer m.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	if err := pool.Run(ctx); err != nil {
		log.Fatal(err)
	}
	show(registry, "fencepost_server_up")
	// Output: fencepost_server_up 1
}

// Two pools in one process, told apart by a label.
func ExampleMetrics_severalPools() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	ship := worker.Each(func(context.Context, worker.Lease, queue.Message) error { return nil })

	registry := prometheus.NewRegistry()
	for _, typ := range []string{"orders", "payments"} {
		m := metrics.New()
		cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, Types: []string{typ}, To: worker.Handling{Handler: ship}, Observe: m.Observe}
		pool, err := worker.New(cfg)
		if err != nil {
			log.Fatal(err)
		}
		m.Attach(pool, cfg)
		defer m.Close()
		prometheus.WrapRegistererWith(prometheus.Labels{"pool": typ}, registry).MustRegister(m)
	}
	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "fencepost_server_up" {
			for _, m := range f.Metric {
				fmt.Println(m.Label[0].GetValue(), m.Gauge.GetValue())
			}
		}
	}
	// Output:
	// orders 1
	// payments 1
}

// A service with a type per customer: 20 types have series of their own, the others are added up under type="_other".
func ExampleMaxTypes() {
	registry := prometheus.NewRegistry()
	m := metrics.New(metrics.MaxTypes(20))
	registry.MustRegister(m)
	m.Observe(worker.Observation{Type: "customer-7", Step: worker.StepSync, Took: time.Millisecond})
	fmt.Println("the others:", metrics.Other)
	// Output: the others: _other
}

// Metrics of a publisher.
func ExamplePublisher() {
	ctx := context.Background()
	b, remove := open(ctx)
	defer remove()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.Publisher(p.Stats))
	if _, err := p.Publish(ctx, "orders", []byte("chair"), nil); err != nil {
		log.Fatal(err)
	}
	show(registry, "fencepost_published_messages_total")
	// Output: fencepost_published_messages_total 1
}
