package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

type ctxKey struct{}

// seal is a middleware that uses every feature: it reads the caller's context, adds a header, replaces the payload, refuses empty
// messages, and records the outcomes.
func seal(name string, log *[]string) queue.Middleware {
	return func(ctx context.Context, out *queue.Outgoing) {
		*log = append(*log, fmt.Sprintf("%s: %d messages", name, out.Len()))
		for i := range out.Len() {
			m := out.Message(i)
			if len(m.Payload) == 0 {
				out.Refuse(i, errEmpty)
				continue
			}
			who, _ := ctx.Value(ctxKey{}).(string)
			out.SetHeader(i, name, who)
			out.SetHeader(i, "last", name)
			out.SetPayload(i, append(bytes.Clone(m.Payload), '+'))
		}
		out.Settled(func(results []queue.Result) {
			var outcomes []string
			for _, r := range results {
				outcomes = append(outcomes, r.Status.String())
			}
			*log = append(*log, name+": "+strings.Join(outcomes, " "))
		})
	}
}

var errEmpty = errors.New("an order for nothing")

func TestMiddlewareAroundPublish(t *testing.T) {
	var log []string
	opt := queue.PublisherOptions{Use: []queue.Middleware{seal("a", &log), seal("b", &log)}}
	onVirtualTime(t, opt, time.Millisecond, func(t *testing.T, b *bench) {
		ctx := context.WithValue(t.Context(), ctxKey{}, "ann")
		shared := map[string]string{"k": "v"} // one map for all messages: middleware must not write to it
		results := b.PublishAll(ctx, []queue.Message{
			{Type: "orders", Payload: []byte("chair"), Headers: shared},
			{Type: "orders", Headers: shared},
			{Type: "orders", Payload: []byte("table"), Headers: shared},
			{Type: "Bad", Payload: []byte("x")},
			{Type: "orders", Payload: []byte("lamp")},
		})
		want := []queue.Status{queue.Stored, queue.Rejected, queue.Stored, queue.Rejected, queue.Stored}
		for i, r := range results {
			if r.Status != want[i] || r.Status == queue.Stored && (r.Err != nil || r.ID.IsZero()) {
				t.Errorf("message %d: %+v, want %v", i, r, want[i])
			}
		}
		if !errors.Is(results[1].Err, errEmpty) || !errors.Is(results[3].Err, queue.ErrInvalidType) {
			t.Errorf("errors %v and %v", results[1].Err, results[3].Err)
		}
		if !maps.Equal(shared, map[string]string{"k": "v"}) {
			t.Errorf("the caller's headers became %v", shared)
		}
		if want := []string{
			"a: 5 messages", "b: 5 messages",
			"b: stored rejected stored rejected stored", "a: stored rejected stored rejected stored",
		}; !slices.Equal(log, want) {
			t.Errorf("middleware saw %q, want %q", log, want)
		}
		msgs := stored(t, b.mem, "orders")
		var got []string
		for i, m := range msgs {
			got = append(got, fmt.Sprint(string(m.Payload), m.Headers))
			// rule: a refused message has no number, so there is no gap.
			if m.ID.N() != uint64(i+1) {
				t.Errorf("message %d has the number %d", i, m.ID.N())
			}
		}
		if want := []string{"chair++map[a:ann b:ann k:v last:b]", "table++map[a:ann b:ann k:v last:b]", "lamp++map[a:ann b:ann last:b]"}; !slices.Equal(got, want) {
			t.Errorf("stored %q, want %q", got, want)
		}
	})
}

func TestMiddlewareAroundSend(t *testing.T) {
	var log []string
	opt := queue.PublisherOptions{Use: []queue.Middleware{seal("a", &log)}}
	onVirtualTime(t, opt, time.Millisecond, func(t *testing.T, b *bench) {
		outcome := make(chan queue.Result, 1)
		note := func(r queue.Result) { log = append(log, "done"); outcome <- r }
		if err := b.Send(t.Context(), queue.Message{Type: "orders", Payload: []byte("chair")}, note); err != nil {
			t.Fatal(err)
		}
		if r := <-outcome; r.Status != queue.Stored {
			t.Errorf("outcome %+v", r)
		}
		if err := b.Send(t.Context(), queue.Message{Type: "orders"}, note); !errors.Is(err, errEmpty) {
			t.Errorf("got %v, want %v", err, errEmpty)
		}
		if err := b.Send(t.Context(), queue.Message{Type: "Bad", Payload: []byte("x")}, note); !errors.Is(err, queue.ErrInvalidType) {
			t.Errorf("got %v", err)
		}
		if want := []string{"a: 1 messages", "a: stored", "done", "a: 1 messages", "a: rejected", "a: 1 messages", "a: rejected"}; !slices.Equal(log, want) {
			t.Errorf("saw %q, want %q", log, want)
		}
		if n := len(stored(t, b.mem, "orders")); n != 1 {
			t.Errorf("%d messages are stored", n)
		}
	})
}

// Headers of middleware count: one that makes a message too large is refused like any other.
func TestMiddlewareCannotBreakTheLimits(t *testing.T) {
	opt := queue.PublisherOptions{Use: []queue.Middleware{func(_ context.Context, out *queue.Outgoing) {
		out.SetHeader(0, "k", strings.Repeat("x", queue.MaxHeaders))
	}}}
	onVirtualTime(t, opt, 0, func(t *testing.T, b *bench) {
		if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrTooLarge) {
			t.Errorf("got %v", err)
		}
	})
}

// A retry sends the bytes that the middleware made, under the same IDs, and does not call it again.
func TestMiddlewareSeesAMessageOnce(t *testing.T) {
	calls := 0
	opt := queue.PublisherOptions{Use: []queue.Middleware{func(_ context.Context, out *queue.Outgoing) {
		calls++
		out.SetHeader(0, "call", fmt.Sprint(calls))
	}}}
	onVirtualTime(t, opt, time.Millisecond, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{Kind: queuetest.Lost}, queuetest.Fault{Kind: queuetest.LostAnswer})
		id, err := b.Publish(t.Context(), "orders", []byte("chair"), nil)
		if err != nil {
			t.Fatal(err)
		}
		msgs := stored(t, b.mem, "orders")
		if len(msgs) != 1 || msgs[0].ID != id || msgs[0].Headers["call"] != "1" || calls != 1 {
			t.Errorf("stored %v after %d calls", msgs, calls)
		}
	})
}

func TestNilMiddlewareIsRefused(t *testing.T) {
	_, err := queue.NewPublisher(t.Context(), queuetest.NewMemory(), queue.PublisherOptions{Use: []queue.Middleware{nil}})
	if err == nil || !strings.Contains(err.Error(), "Middleware") {
		t.Errorf("got %v", err)
	}
}
