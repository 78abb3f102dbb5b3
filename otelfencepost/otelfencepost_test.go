package otelfencepost_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/otelfencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/workertest"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// traced is a program with tracing on, in memory.
type traced struct {
	*fencepost.Backend
	*otelfencepost.Tracing
	t        *testing.T
	exporter *tracetest.InMemoryExporter
	provider *sdk.TracerProvider
	pub      *queue.Publisher
}

func newTraced(t *testing.T, o ...sdk.TracerProviderOption) *traced {
	t.Helper()
	x := &traced{Backend: workertest.Backend(t), t: t, exporter: tracetest.NewInMemoryExporter()}
	x.provider = sdk.NewTracerProvider(append(o, sdk.WithSyncer(x.exporter))...)
	x.Tracing = otelfencepost.New(otelfencepost.Options{TracerProvider: x.provider})
	p, err := queue.NewPublisher(t.Context(), x.Queue, queue.PublisherOptions{Use: []queue.Middleware{x.Publish}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	x.pub = p
	return x
}

// publish publishes messages of a type in one call, in a span of the caller.
func (x *traced) publish(caller, typ string, payloads ...string) []queue.Result {
	ctx, span := x.provider.Tracer("test").Start(x.t.Context(), caller)
	defer span.End()
	var msgs []queue.Message
	for _, p := range payloads {
		msgs = append(msgs, queue.Message{Type: typ, Payload: []byte(p)})
	}
	return x.pub.PublishAll(ctx, msgs)
}

// span returns the only span of a name.
func (x *traced) span(name string) tracetest.SpanStub {
	x.t.Helper()
	found := x.spans(name)
	if len(found) != 1 {
		x.t.Fatalf("%d spans %q among %v", len(found), name, x.names())
	}
	return found[0]
}

func (x *traced) spans(name string) (found []tracetest.SpanStub) {
	for _, s := range x.exporter.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func (x *traced) names() (names []string) {
	for _, s := range x.exporter.GetSpans() {
		names = append(names, s.Name)
	}
	return names
}

func attributes(s tracetest.SpanStub) map[string]string {
	m := map[string]string{}
	for _, a := range s.Attributes {
		m[string(a.Key)] = a.Value.String()
	}
	return m
}

func expect(t *testing.T, s tracetest.SpanStub, want map[string]string) {
	t.Helper()
	got := attributes(s)
	for k, v := range want {
		if got[k] != v {
			t.Errorf("span %q: %s is %q, want %q", s.Name, k, got[k], v)
		}
	}
}

// A trace follows a message from the publish to the file.
func TestFromPublishToAppend(t *testing.T) {
	x := newTraced(t)
	dir := t.TempDir()
	id := x.publish("checkout", "orders", "chair")[0].ID
	workertest.Drain(t, x.Backend, worker.Config{To: worker.Files{Dir: dir, Storage: storage.Options{AllowOverlay: true}, Trace: x.Append}})

	caller, publish, appended := x.span("checkout"), x.span("publish orders"), x.span("append orders")
	if publish.Parent.SpanID() != caller.SpanContext.SpanID() || publish.SpanKind != trace.SpanKindProducer {
		t.Errorf("the publish is a %v below %v", publish.SpanKind, publish.Parent.SpanID())
	}
	if appended.Parent.SpanID() != publish.SpanContext.SpanID() || appended.SpanContext.TraceID() != caller.SpanContext.TraceID() ||
		appended.SpanKind != trace.SpanKindConsumer || !appended.Parent.IsRemote() {
		t.Errorf("the append is a %v below %v", appended.SpanKind, appended.Parent.SpanID())
	}
	if len(appended.Links) != 1 || appended.Links[0].SpanContext.SpanID() != publish.SpanContext.SpanID() {
		t.Errorf("links %v", appended.Links)
	}
	expect(t, publish, map[string]string{"messaging.system": "fencepost", "messaging.operation.name": "publish", "messaging.operation.type": "send",
		"messaging.destination.name": "orders", "messaging.batch.message_count": "1", "messaging.message.id": id.String()})
	expect(t, appended, map[string]string{"messaging.system": "fencepost", "messaging.operation.name": "append", "messaging.operation.type": "process",
		"messaging.destination.name": "orders", "messaging.batch.message_count": "1", "messaging.message.id": id.String()})
	if attributes(appended)["fencepost.token"] == "" {
		t.Error("the append does not tell the token")
	}

	// A reader of the file can follow the trace back.
	r, err := storage.OpenReader(filepath.Join(dir, "orders.fpl"), storage.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rec, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	m := queue.Message{Headers: map[string]string{}}
	for _, h := range rec.Headers {
		m.Headers[h.Key] = h.Value
	}
	if got := trace.SpanContextFromContext(x.Extract(t.Context(), m)); got.SpanID() != publish.SpanContext.SpanID() {
		t.Errorf("the file's record leads to %v", got)
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("more in the file: %v", err)
	}
}

// A batch with messages of several publishes belongs to none of their traces, and links to each of them once.
func TestBatchOfSeveralPublishesLinksToThem(t *testing.T) {
	x := newTraced(t)
	x.publish("a", "orders", "1", "2", "3")
	x.publish("b", "orders", "4", "5")
	workertest.Publish(t, x.Queue, "orders", "6") // a publisher without tracing
	workertest.Drain(t, x.Backend, worker.Config{To: worker.Files{Trace: x.Append}})
	s := x.span("append orders")
	if s.Parent.IsValid() || len(s.Links) != 2 {
		t.Fatalf("the append is below %v, with %d links; want no parent, 2 links", s.Parent, len(s.Links))
	}
	for i, p := range x.spans("publish orders") {
		if s.Links[i].SpanContext.SpanID() != p.SpanContext.SpanID() {
			t.Errorf("link %d leads to %v", i, s.Links[i].SpanContext.SpanID())
		}
	}
	expect(t, s, map[string]string{"messaging.batch.message_count": "6", "messaging.message.id": ""})
}

func TestLinksAreBounded(t *testing.T) {
	x := newTraced(t)
	for i := range 200 {
		x.publish("caller", "orders", fmt.Sprint(i))
	}
	workertest.Drain(t, x.Backend, worker.Config{To: worker.Files{Trace: x.Append}})
	if s := x.span("append orders"); len(s.Links) != 128 || s.DroppedLinks != 0 {
		t.Errorf("%d links, %d dropped", len(s.Links), s.DroppedLinks)
	}
}

// A handler's own spans are children of its batch's span; failed attempts and panics are spans with an error.
func TestFromPublishToHandler(t *testing.T) {
	x := newTraced(t)
	x.publish("checkout", "orders", "chair", "table")
	attempt := 0
	h := worker.HandlerFunc(func(ctx context.Context, _ worker.Lease, msgs []queue.Message) error {
		attempt++
		switch attempt {
		case 1:
			return errors.New("no ship is there")
		case 2:
			panic("ahoy")
		}
		for _, m := range msgs {
			_, span := x.provider.Tracer("test").Start(ctx, "ship "+string(m.Payload), trace.WithLinks(trace.LinkFromContext(x.Extract(ctx, m))))
			span.End()
		}
		return nil
	})
	stats := workertest.Drain(t, x.Backend, worker.Config{To: worker.Handling{Handler: h, Use: []worker.Middleware{x.Handle}}})
	if stats.Handled != 2 {
		t.Fatalf("stats %+v", stats)
	}
	publish := x.span("publish orders")
	var outcomes []string
	for _, s := range x.spans("handle orders") {
		if s.Parent.SpanID() != publish.SpanContext.SpanID() {
			t.Errorf("an attempt is below %v", s.Parent)
		}
		outcomes = append(outcomes, s.Status.Description)
	}
	if len(outcomes) < 3 || !slices.Equal(outcomes[:2], []string{"no ship is there", "panic: ahoy"}) || outcomes[len(outcomes)-1] != "" {
		t.Errorf("attempts ended with %q", outcomes)
	}
	ship := x.span("ship chair")
	parents := 0
	for _, s := range x.spans("handle orders") {
		if s.SpanContext.SpanID() == ship.Parent.SpanID() {
			parents++
		}
	}
	if parents != 1 || ship.Links[0].SpanContext.SpanID() != publish.SpanContext.SpanID() {
		t.Errorf("the handler's own span is below %v, with links %v", ship.Parent, ship.Links)
	}
}

// A message that is not stored is an error of the publish.
func TestPublishThatFails(t *testing.T) {
	x := newTraced(t)
	x.publish("checkout", "Orders", "chair", "table")
	s := x.span("publish Orders")
	if s.Status.Code != codes.Error || !strings.Contains(s.Status.Description, "invalid type name") || len(s.Events) != 1 {
		t.Errorf("status %+v, events %v", s.Status, s.Events)
	}
	expect(t, s, map[string]string{"fencepost.rejected": "2", "fencepost.unknown": ""})
}

func TestPublishOfSeveralTypesIsOneSpan(t *testing.T) {
	x := newTraced(t)
	x.pub.PublishAll(t.Context(), []queue.Message{{Type: "orders"}, {Type: "audit"}})
	expect(t, x.span("publish"), map[string]string{"messaging.destination.name": "", "messaging.batch.message_count": "2"})
	workertest.Drain(t, x.Backend, worker.Config{To: worker.Files{Trace: x.Append}})
	for _, name := range []string{"append orders", "append audit"} {
		if s := x.span(name); s.Parent.SpanID() != x.span("publish").SpanContext.SpanID() {
			t.Errorf("%s is below %v", name, s.Parent)
		}
	}
}

// A write that may have become void is not traced as durable.
func TestAppendThatFails(t *testing.T) {
	x := newTraced(t)
	m := &queue.Message{Type: "orders"}
	x.Append(t.Context(), workertest.Lease{Type: "orders", Number: 7}, []*queue.Message{m})(storage.ErrFenced)
	s := x.span("append orders")
	if s.Status.Code != codes.Error {
		t.Errorf("status %+v", s.Status)
	}
	expect(t, s, map[string]string{"fencepost.token": "7"})
}

// A trace that is not sampled in the publisher is not sampled in the worker either.
func TestNotSampledStaysNotSampled(t *testing.T) {
	x := newTraced(t, sdk.WithSampler(sdk.NeverSample()))
	x.publish("checkout", "orders", "chair")
	msgs, err := x.Queue.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1})
	if err != nil || len(msgs) != 1 || !strings.HasSuffix(msgs[0].Headers["traceparent"], "-00") {
		t.Errorf("headers %v (%v)", msgs[0].Headers, err)
	}
	// The worker samples every trace without a sampling decision.
	all := newTraced(t, sdk.WithSampler(sdk.ParentBased(sdk.AlwaysSample())))
	workertest.Drain(t, x.Backend, worker.Config{To: worker.Files{Trace: all.Append}})
	if n := all.names(); len(n) != 0 {
		t.Errorf("spans %v", n)
	}
}

// Tracing never makes a message too large.
func TestMessageWithoutRoomForHeaders(t *testing.T) {
	many := map[string]string{}
	for i := range queue.MaxHeaderCount {
		many[fmt.Sprint(i)] = ""
	}
	for what, full := range map[string]map[string]string{"large": {"k": strings.Repeat("x", queue.MaxHeaders-1)}, "many": many} {
		t.Run(what, func(t *testing.T) {
			x := newTraced(t)
			if _, err := x.pub.Publish(t.Context(), "orders", nil, full); err != nil {
				t.Error(err)
			}
			workertest.Drain(t, x.Backend, worker.Config{To: worker.Files{Trace: x.Append}})
			if s := x.span("append orders"); s.Parent.IsValid() || len(s.Links) != 0 {
				t.Errorf("below %v with links %v", s.Parent, s.Links)
			}
		})
	}
}

// Without an SDK there is nothing to record, and nothing is added to the messages.
func TestWithoutSDK(t *testing.T) {
	b := workertest.Backend(t)
	tr := otelfencepost.New(otelfencepost.Options{})
	p, err := queue.NewPublisher(t.Context(), b.Queue, queue.PublisherOptions{Use: []queue.Middleware{tr.Publish}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if _, err := p.Publish(t.Context(), "orders", []byte("chair"), nil); err != nil {
		t.Fatal(err)
	}
	msgs, err := b.Queue.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1})
	if err != nil || len(msgs) != 1 || msgs[0].Headers != nil {
		t.Errorf("got %v, %v", msgs, err)
	}
	if s := workertest.Drain(t, b, worker.Config{To: worker.Files{Trace: tr.Append}}); s.Appended != 1 {
		t.Errorf("stats %+v", s)
	}
}
