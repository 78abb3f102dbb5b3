package stores

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// trickle is the cost of a message every 10 ms, and the time until each is in its file.
type trickle struct {
	*kind
	linger  time.Duration
	creates float64   // per second
	others  float64   // other requests per second
	delays  []float64 // ms, from the call of Publish to the event that reports the message as durable
}

const (
	every        = 10 * time.Millisecond
	fullTrickle  = 2000 // messages
	quickTrickle = 40
)

// measureTrickle continues with the file of the drains.
func (b *bench) measureTrickle(ctx context.Context, k *kind, linger time.Duration) (t trickle, err error) {
	t = trickle{kind: k, linger: linger}
	p, requests := b.drain.places[k], b.drain.requests[k]
	publisher, err := queue.NewPublisher(ctx, p.Backend.Queue, queue.PublisherOptions{})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
	d := &delays{begin: time.Now()}
	pool, err := worker.New(worker.Config{Queue: p.Backend.Queue, Locker: p.Backend.Locker, To: worker.Files{Dir: p.Dir, Storage: storage.Options{FS: p.FS}},
		Types: []string{oneType}, Linger: linger, Events: d.note})
	if err != nil {
		return t, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(running) }()
	n := b.sized(fullTrickle, quickTrickle)
	publish := func(n int) error {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for range n {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			case err := <-ended:
				return errors.Join(err, errors.New("the pool has ended"))
			}
			d.published()
			err := publisher.Send(ctx, queue.Message{Type: oneType, Payload: messages.Payload(p.Given[oneType])}, func(queue.Result) {})
			if err != nil {
				return err
			}
			p.Given[oneType]++
		}
		return nil
	}
	if err := publish(n / 10); err != nil { // until the file is open
		return t, err
	}
	requests.take()
	from, begin := d.sent(), time.Now()
	if err := publish(n); err != nil {
		return t, err
	}
	span := time.Since(begin).Seconds()
	for kind, n := range requests.take() {
		if kind == "create" {
			t.creates = float64(n) / span
		} else {
			t.others += float64(n) / span
		}
	}
	for d.count() < d.sent() {
		if err := server.Sleep(ctx, every); err != nil {
			return t, err
		}
	}
	pool.Stop()
	if err := <-ended; err != nil {
		return t, err
	}
	p.Drained[oneType] = p.Given[oneType]
	t.delays = d.from(from)
	return t, errors.Join(messages.Complete("what became durable", len(t.delays), n), p.Verify(ctx))
}

// delays are the times from the publication of messages to their durability. Messages of one publisher stay in order.
type delays struct {
	begin time.Time

	mu      sync.Mutex
	at      []time.Duration // when each was published
	durable []time.Duration // … and durable
}

func (d *delays) published() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = append(d.at, time.Since(d.begin))
}

func (d *delays) note(e worker.Event) {
	if e.Kind != worker.Committed {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for range e.Messages {
		d.durable = append(d.durable, time.Since(d.begin))
	}
}

// sent returns how many messages were published.
func (d *delays) sent() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.at)
}

// count returns how many messages are durable.
func (d *delays) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.durable)
}

// from returns the delays of the messages beginning with number first, in ms.
func (d *delays) from(first int) (ms []float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := first; i < len(d.durable); i++ {
		ms = append(ms, (d.durable[i]-d.at[i]).Seconds()*1000)
	}
	return ms
}
