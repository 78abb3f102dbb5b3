package otelfencepost_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/otelfencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/workertest"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A trace from the span of a request, through the publish, to the file.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b, err := fencepost.Open(ctx, "sqlite://"+filepath.Join(dir, "queue.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close(ctx)

	spans := tracetest.NewInMemoryExporter() // in production, an exporter that sends them to a collector
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	t := otelfencepost.New(otelfencepost.Options{TracerProvider: provider})

	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{Use: []queue.Middleware{t.Publish}})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	request, span := provider.Tracer("shop").Start(ctx, "POST /orders")
	if _, err := p.Publish(request, "orders", []byte("chair"), nil); err != nil {
		log.Fatal(err)
	}
	span.End()

	pool, err := worker.New(worker.Config{
		Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: dir, Trace: t.Append, Storage: storage.Options{AllowOverlay: true}}, Types: []string{"orders"},
		UntilEmpty: true, // so that the example ends
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := pool.Run(ctx); err != nil {
		log.Fatal(err)
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, "of the request:", s.SpanContext.TraceID() == span.SpanContext().TraceID())
	}
	// Output:
	// publish orders of the request: true
	// POST /orders of the request: true
	// append orders of the request: true
}

// One span per call of a handler, and one of your own for each message, in the trace of the message's publish.
func ExampleTracing_Handle() {
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	t := otelfencepost.New(otelfencepost.Options{TracerProvider: provider})

	handler := t.Handle(worker.Each(func(ctx context.Context, _ worker.Lease, m queue.Message) error {
		_, span := provider.Tracer("shop").Start(t.Extract(ctx, m), "ship "+string(m.Payload))
		defer span.End()
		return nil
	}))
	published := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} // by t.Publish
	msgs := []queue.Message{{Type: "orders", Payload: []byte("chair"), Headers: published}}
	if err := handler.Handle(context.Background(), workertest.Lease{Type: "orders", Number: 1}, msgs); err != nil {
		log.Fatal(err)
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, s.SpanContext.TraceID())
	}
	// Output:
	// ship chair 0af7651916cd43dd8448eb211c80319c
	// handle orders 0af7651916cd43dd8448eb211c80319c
}
