package queue_test

import (
	"context"
	"testing"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// sink accepts everything at once: the rest is the cost of the publisher itself.
type sink struct{ queue.Queue }

func (sink) Insert(context.Context, string, []queue.Message) error { return nil }
func (sink) RegisterType(context.Context, string) error            { return nil }

// The publisher's own cost per message of 256 bytes, with a queue that costs nothing.
func BenchmarkPublisher(b *testing.B) {
	publisher := func(b *testing.B) *queue.Publisher {
		p, err := queue.NewPublisher(b.Context(), sink{queuetest.NewMemory()}, queue.PublisherOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close(context.Background()) })
		b.ReportAllocs()
		b.ResetTimer()
		return p
	}
	payload := make([]byte, 256)
	b.Run("Send", func(b *testing.B) {
		p := publisher(b)
		done := make(chan struct{}, 1)
		for i := range b.N {
			last := i == b.N-1
			err := p.Send(b.Context(), queue.Message{Type: "orders", Payload: payload}, func(queue.Result) {
				if last {
					done <- struct{}{}
				}
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		<-done
	})
	b.Run("PublishAll1000", func(b *testing.B) {
		p := publisher(b)
		msgs := make([]queue.Message, 1000)
		for i := range msgs {
			msgs[i] = queue.Message{Type: "orders", Payload: payload}
		}
		for n := 0; n < b.N; n += len(msgs) {
			for _, r := range p.PublishAll(b.Context(), msgs) {
				if r.Err != nil {
					b.Fatal(r.Err)
				}
			}
		}
	})
	b.Run("Publish", func(b *testing.B) {
		p := publisher(b)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := p.Publish(b.Context(), "orders", payload, nil); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
