// Package otelfencepost traces messages with OpenTelemetry, from the publish to the file or the handler. It is a separate module, so
// that programs without tracing do not depend on OpenTelemetry.
//
//	t := otelfencepost.New(otelfencepost.Options{})
//	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{Use: []queue.Middleware{t.Publish}})
//	pool, err := worker.New(worker.Config{…, To: worker.Files{Dir: "data", Trace: t.Append}})                                    // into files, or
//	pool, err := worker.New(worker.Config{…, To: worker.Handling{Handler: h, Use: []worker.Middleware{t.Handle}}})                // to your code
//
// The spans for messages of the types "orders" and "audit":
//
//	your span                                      your other span
//	  └─ publish orders (100 messages)               └─ publish orders (1 message)
//	        ┊ link: traceparent in the headers              ┊ link
//	        └┄┄┄┄┄┄┄┄┄┄┄┄▶ append orders (101 messages) ◀┄┄┄┘        from the write until the batch is durable
//
// There is one span per publisher call and one per worker batch, never one per message. A batch contains messages of many publishes, so
// it has its own trace with links to theirs. If all its messages come from one publish, the batch continues that trace. In a handler,
// Extract returns the context of one message.
//
// The context travels in the messages' headers (W3C Trace Context: "traceparent", and "tracestate"), and stays there in the file.
package otelfencepost

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of the spans. They follow OpenTelemetry's semantic conventions for messaging where those define one.
const (
	attrSystem    = attribute.Key("messaging.system")              // "fencepost"
	attrOperation = attribute.Key("messaging.operation.name")      // "publish", "append", "handle"
	attrKind      = attribute.Key("messaging.operation.type")      // "send", "process"
	attrType      = attribute.Key("messaging.destination.name")    // the message type, if there is one
	attrCount     = attribute.Key("messaging.batch.message_count") // messages
	attrID        = attribute.Key("messaging.message.id")          // if there is one message
	attrToken     = attribute.Key("fencepost.token")               // fencing token of the type's lock
	attrRejected  = attribute.Key("fencepost.rejected")            // messages that were not stored
	attrUnknown   = attribute.Key("fencepost.unknown")             // messages that may or may not be stored
)

// maxLinks is how many links a span keeps by OpenTelemetry's default. More would cost time and be dropped.
const maxLinks = 128

const scope = "github.com/fencepost/fencepost/otelfencepost"

// Options configures a Tracing. The zero value is usable.
type Options struct {
	// TracerProvider defaults to the global one.
	TracerProvider trace.TracerProvider
	// Propagator writes the context into headers and reads it. Defaults to W3C Trace Context; publishers and workers must use the same.
	Propagator propagation.TextMapPropagator
}

// Tracing creates the spans. Safe for concurrent use.
type Tracing struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// New returns a Tracing.
func New(o Options) *Tracing {
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.Propagator == nil {
		o.Propagator = propagation.TraceContext{}
	}
	return &Tracing{tracer: o.TracerProvider.Tracer(scope), propagator: o.Propagator}
}

// Publish is a queue.Middleware. Its span, a child of the caller's, lasts until all messages of the call are settled, and fails if
// any of them is not stored. Its trace context headers replace those that the caller has set.
func (t *Tracing) Publish(ctx context.Context, out *queue.Outgoing) {
	typ := out.Message(0).Type
	for i := 1; i < out.Len() && typ != ""; i++ {
		if out.Message(i).Type != typ {
			typ = ""
		}
	}
	ctx, span := t.start(ctx, trace.SpanKindProducer, "publish", "send", typ, out.Len())
	// Inject the context even if the span is not recorded: readers of the messages must learn that their trace is not sampled.
	if trace.SpanContextFromContext(ctx).IsValid() {
		carrier := propagation.MapCarrier{}
		t.propagator.Inject(ctx, carrier)
		for i := range out.Len() {
			if !fits(out.Message(i), carrier) {
				continue
			}
			for k, v := range carrier {
				out.SetHeader(i, k, v)
			}
		}
	}
	out.Settled(func(results []queue.Result) {
		if span.IsRecording() {
			published(span, results)
		}
		span.End()
	})
}

// fits reports whether the message stays valid with more headers. rule: a message is never refused because it is traced.
func fits(m queue.Message, more propagation.MapCarrier) bool {
	m.Payload, m.Headers = nil, maps.Clone(m.Headers)
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	maps.Copy(m.Headers, more)
	return m.Validate() == nil
}

// published records the results of a call's messages in its span.
func published(span trace.Span, results []queue.Result) {
	counts := map[queue.Status]int{}
	var first error
	for _, r := range results {
		counts[r.Status]++
		if first == nil {
			first = r.Err
		}
	}
	for status, key := range map[queue.Status]attribute.Key{queue.Rejected: attrRejected, queue.Unknown: attrUnknown} {
		if n := counts[status]; n > 0 {
			span.SetAttributes(key.Int(n))
		}
	}
	if len(results) == 1 && !results[0].ID.IsZero() {
		span.SetAttributes(attrID.String(results[0].ID.String()))
	}
	fail(span, first)
}

// Append is a worker.Trace: one span per batch that is appended to a file, from before the write until the batch is durable.
func (t *Tracing) Append(ctx context.Context, lease worker.Lease, msgs []*queue.Message) func(error) {
	_, span := t.batch(ctx, "append", lease, len(msgs), func(i int) *queue.Message { return msgs[i] })
	if !span.IsRecording() {
		return nil
	}
	return func(err error) {
		fail(span, err)
		span.End()
	}
}

// Handle is a worker.Middleware: one span per call of the handler, including every retry. The handler's own spans are its children. As the
// outermost middleware it covers the other middleware, too.
func (t *Tracing) Handle(next worker.Handler) worker.Handler {
	return worker.HandlerFunc(func(ctx context.Context, lease worker.Lease, msgs []queue.Message) (err error) {
		ctx, span := t.batch(ctx, "handle", lease, len(msgs), func(i int) *queue.Message { return &msgs[i] })
		defer func() {
			if v := recover(); v != nil { // the pool turns it into an error, and perhaps a dead letter
				fail(span, fmt.Errorf("panic: %v", v))
				span.End()
				panic(v)
			}
			fail(span, err)
			span.End()
		}()
		return next.Handle(ctx, lease, msgs)
	})
}

// Extract returns ctx with the span that published m as its remote parent. It is for a handler that creates a span per message, and for a
// reader of a file. If m has no trace context headers, it returns ctx.
func (t *Tracing) Extract(ctx context.Context, m queue.Message) context.Context {
	return t.propagator.Extract(ctx, propagation.MapCarrier(m.Headers))
}

// batch starts the span of a batch.
func (t *Tracing) batch(ctx context.Context, operation string, lease worker.Lease, n int, msg func(i int) *queue.Message) (context.Context, trace.Span) {
	parents, one := t.publishes(n, msg)
	// rule: a batch belongs to a publish's trace only if all of it does.
	if one {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parents[0])
	}
	var links []trace.Link
	for _, p := range parents {
		if p.IsSampled() && len(links) < maxLinks { // a link to a span that was not recorded leads nowhere
			links = append(links, trace.Link{SpanContext: p})
		}
	}
	ctx, span := t.start(ctx, trace.SpanKindConsumer, operation, "process", lease.Name(), n, trace.WithLinks(links...))
	if span.IsRecording() {
		span.SetAttributes(attrToken.Int64(lease.Token()))
		if n == 1 {
			span.SetAttributes(attrID.String(msg(0).ID.String()))
		}
	}
	return ctx, span
}

// publishes returns the spans that published the messages of a batch, each once; one means that all messages come from a single span.
func (t *Tracing) publishes(n int, msg func(i int) *queue.Message) (spans []trace.SpanContext, one bool) {
	fields := t.propagator.Fields()
	seen := map[string]bool{}
	var key strings.Builder
	for i := range n {
		m := msg(i)
		// Messages of one publish have the same headers, so read them once.
		key.Reset()
		for _, f := range fields {
			key.WriteString(m.Headers[f])
			key.WriteByte(0)
		}
		if seen[key.String()] {
			continue
		}
		seen[key.String()] = true
		if p := trace.SpanContextFromContext(t.Extract(context.Background(), *m)); p.IsValid() {
			spans = append(spans, p)
		}
	}
	return spans, len(seen) == 1 && len(spans) == 1
}

func (t *Tracing) start(ctx context.Context, kind trace.SpanKind, operation, class, typ string, n int, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	name := operation
	if typ != "" {
		name += " " + typ
	}
	ctx, span := t.tracer.Start(ctx, name, append(o, trace.WithSpanKind(kind))...)
	if span.IsRecording() {
		span.SetAttributes(attrSystem.String("fencepost"), attrOperation.String(operation), attrKind.String(class), attrCount.Int(n))
		if typ != "" {
			span.SetAttributes(attrType.String(typ))
		}
	}
	return ctx, span
}

func fail(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
}
