package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// told is a queue that records announcements of types.
type told struct {
	queue.Queue
	fail func(ctx context.Context) error

	mu    sync.Mutex
	calls []call
}

type call struct {
	at    time.Time
	types []string
}

func (q *told) Notify(ctx context.Context, types []string) error {
	q.mu.Lock()
	q.calls = append(q.calls, call{time.Now(), types})
	q.mu.Unlock()
	if q.fail != nil {
		return q.fail(ctx)
	}
	return q.Queue.Notify(ctx, types)
}

// times returns when a type was announced.
func (q *told) times(typ string) (at []time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range q.calls {
		for _, t := range c.types {
			if t == typ {
				at = append(at, c.at)
			}
		}
	}
	return at
}

func onTold(t *testing.T, test func(t *testing.T, q *told, p *queue.Publisher)) {
	synctest.Test(t, func(t *testing.T) {
		q := &told{Queue: queuetest.NewMemory()}
		p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(context.Background())
		test(t, q, p)
	})
}

func mustPublish(t *testing.T, p *queue.Publisher, typ string) {
	t.Helper()
	if _, err := p.Publish(t.Context(), typ, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
}

func TestAStoredTypeIsToldAtOnce(t *testing.T) {
	onTold(t, func(t *testing.T, q *told, p *queue.Publisher) {
		for range 3 {
			before := time.Now()
			mustPublish(t, p, "orders")
			time.Sleep(10 * time.Millisecond)
			if at := q.times("orders"); len(at) == 0 || at[len(at)-1].Before(before) {
				t.Fatal("not announced within 10 ms")
			}
			time.Sleep(time.Minute)
		}
		if n := len(q.times("orders")); n != 3 {
			t.Errorf("three messages in as many minutes were announced %d times", n)
		}
		if s := p.Stats(); s.Notifications != 3 || s.NotificationsFailed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A type with steady traffic is announced every second, and after its last message.
func TestSteadyTrafficIsToldSeldomAndAtTheEnd(t *testing.T) {
	onTold(t, func(t *testing.T, q *told, p *queue.Publisher) {
		var last time.Time
		for range 1000 {
			mustPublish(t, p, "orders")
			last = time.Now()
			time.Sleep(9 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		at := q.times("orders")
		if len(at) < 9 || len(at) > 11 {
			t.Errorf("announced %d times in nine seconds", len(at))
		}
		if after := at[len(at)-1].Sub(last); after < 0 || after > time.Second {
			t.Errorf("announced %v after the last message", after)
		}
	})
}

// A second message right after the first is announced, too, although its type was announced just before.
func TestAMessageBehindANotificationIsToldLater(t *testing.T) {
	onTold(t, func(t *testing.T, q *told, p *queue.Publisher) {
		mustPublish(t, p, "orders")
		time.Sleep(10 * time.Millisecond)
		mustPublish(t, p, "orders")
		last := time.Now()
		time.Sleep(time.Minute)
		if at := q.times("orders"); len(at) != 2 || at[1].Before(last) || at[1].Sub(last) > time.Second {
			t.Errorf("announced at %v, the last message was stored at %v", at, last)
		}
	})
}

// Many types share a notification.
func TestManyTypesAreToldTogether(t *testing.T) {
	onTold(t, func(t *testing.T, q *told, p *queue.Publisher) {
		var msgs []queue.Message
		for i := range 1000 {
			msgs = append(msgs, queue.Message{Type: fmt.Sprintf("type-%03d", i)})
		}
		began := time.Now()
		for range 5 {
			p.PublishAll(t.Context(), msgs)
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		for _, m := range msgs {
			if at := q.times(m.Type); len(at) == 0 || at[0].Sub(began) > 300*time.Millisecond {
				t.Fatalf("%s was announced at %v", m.Type, at)
			}
		}
		if n := p.Stats().Notifications; n > 6 {
			t.Errorf("%d writes in one second", n)
		}
	})
}

// A notification that fails or hangs blocks nothing, and is not retried.
func TestANotificationThatFailsIsDropped(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errors.New("no room") },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			onTold(t, func(t *testing.T, q *told, p *queue.Publisher) {
				q.fail = fail
				began := time.Now()
				mustPublish(t, p, "orders")
				mustPublish(t, p, "orders")
				if took := time.Since(began); took > 0 {
					t.Errorf("the confirmation took %v", took)
				}
				time.Sleep(time.Minute)
				if s := p.Stats(); s.NotificationsFailed != 1 || s.Notifications != 0 || len(q.times("orders")) != 1 {
					t.Errorf("%+v", s)
				}
				mustPublish(t, p, "orders")
				began = time.Now()
				if err := p.Close(t.Context()); err != nil || time.Since(began) > time.Second {
					t.Errorf("Close took %v: %v", time.Since(began), err)
				}
			})
		})
	}
}

// Close announces what is left, even a type that was announced just before.
func TestCloseTellsWhatIsLeft(t *testing.T) {
	onTold(t, func(t *testing.T, q *told, p *queue.Publisher) {
		mustPublish(t, p, "orders")
		time.Sleep(100 * time.Millisecond)
		mustPublish(t, p, "orders")
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(q.times("orders")); n != 2 {
			t.Errorf("announced %d times, want 2", n)
		}
	})
}

// Delayed messages are not announced: they are not pending yet.
func TestDelayedMessagesAreNotTold(t *testing.T) {
	onTold(t, func(t *testing.T, q *told, p *queue.Publisher) {
		if _, err := p.PublishAt(t.Context(), time.Now().Add(time.Hour), "orders", []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := len(q.times("orders")); n != 0 {
			t.Errorf("announced %d times", n)
		}
	})
}
