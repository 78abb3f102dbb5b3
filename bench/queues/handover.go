package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

// patience bounds waits for events that must happen.
const patience = 2 * time.Minute

// handOver is how long a type with a steady trickle of messages was not served.
type handOver struct {
	what string
	gaps []float64 // ms, from the old holder's last commit to the new one's first
}

const trickle = 2 * time.Millisecond // a message this often

// watcher observes the commits of all replicas.
type watcher struct {
	mu   sync.Mutex
	by   int // the replica that committed last
	at   time.Time
	gap  time.Duration // at the last change of the replica
	turn chan int      // the replica that took over
}

func (w *watcher) events(replica int) func(worker.Event) {
	return func(e worker.Event) {
		if e.Kind != worker.Committed {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		now := time.Now()
		if w.by != replica {
			w.by, w.gap = replica, now.Sub(w.at)
			w.turn <- replica // there is room: one handover at a time
		}
		w.at = now
	}
}

func (w *watcher) await(ctx context.Context, replica int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case by := <-w.turn:
		if by != replica {
			return 0, fmt.Errorf("replica %d took over where %d was due", by, replica)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.gap, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for a hand-over: %w", ctx.Err())
	}
}

// replica is a pool with its own connections.
type replica struct {
	stop func() error // ends the pool, and closes what it has
}

func startReplica(ctx context.Context, p *place, events func(worker.Event)) (*replica, error) {
	b, err := fencepost.Open(ctx, p.URI)
	if err != nil {
		return nil, err
	}
	closeAll := func() error {
		end, cancel := server.Undisturbed(ctx)
		defer cancel()
		return b.Close(end)
	}
	pool, err := worker.New(worker.Config{Queue: b.Queue, Locker: b.Locker, To: worker.Files{Dir: p.Dir}, Types: []string{oneType}, Events: events})
	if err != nil {
		return nil, errors.Join(err, closeAll())
	}
	done := make(chan error, 1)
	go func() { done <- pool.Run(ctx) }()
	return &replica{func() error {
		pool.Stop()
		return errors.Join(<-done, closeAll())
	}}, nil
}

// measureHandOver runs one replica that serves a type and another on standby; the first is stopped, or requested to give the
// type back.
func (b *bench) measureHandOver(ctx context.Context) (all []handOver, err error) {
	p, err := b.newBackend(ctx, "handover")
	if err != nil {
		return nil, err
	}
	times, settle := max(b.o.Rounds, 2), time.Second
	if b.o.Quick {
		settle = 50 * time.Millisecond
	}
	publisher, err := queue.NewPublisher(ctx, p.Backend.Queue, queue.PublisherOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
	stopPublishing, published := p.trickle(ctx, publisher)
	defer stopPublishing()

	w := &watcher{by: -1, turn: make(chan int, 16)}
	running := map[int]*replica{}
	defer func() {
		for _, r := range running {
			err = errors.Join(err, r.stop())
		}
	}()
	last := -1
	start := func() (err error) {
		last++
		running[last], err = startReplica(ctx, p, w.events(last))
		if err != nil {
			delete(running, last)
		}
		return err
	}
	if err := start(); err != nil {
		return nil, err
	}
	if _, err := w.await(ctx, 0); err != nil {
		return nil, err
	}

	stopped := handOver{what: "the holder is stopped"}
	for range times {
		if err := errors.Join(start(), server.Sleep(ctx, settle+rand.N(settle))); err != nil {
			return nil, err
		}
		done := make(chan error, 1)
		old := running[last-1]
		delete(running, last-1)
		go func() { done <- old.stop() }()
		gap, err := w.await(ctx, last)
		if err = errors.Join(err, <-done); err != nil {
			return nil, err
		}
		stopped.gaps = append(stopped.gaps, gap.Seconds()*1e3)
	}

	asked := handOver{what: "the holder is asked to give it back"}
	if err := start(); err != nil {
		return nil, err
	}
	holder, other := last-1, last
	for range max(times/2, 2) {
		// A replica that has given a type back holds back for two seconds, and must be waiting again.
		if err := server.Sleep(ctx, 2500*time.Millisecond+rand.N(settle)); err != nil {
			return nil, err
		}
		if err := p.Backend.Locker.RequestRelease(ctx, oneType, "benchmark"); err != nil {
			return nil, err
		}
		gap, err := w.await(ctx, other)
		if err != nil {
			return nil, err
		}
		asked.gaps = append(asked.gaps, gap.Seconds()*1e3)
		holder, other = other, holder
	}
	stopPublishing()
	if p.Given[oneType], err = published(); err != nil {
		return nil, err
	}
	for n, r := range running {
		delete(running, n)
		if err := r.stop(); err != nil {
			return nil, err
		}
	}
	end, err := worker.New(worker.Config{Queue: p.Backend.Queue, Locker: p.Backend.Locker, To: worker.Files{Dir: p.Dir}, Types: []string{oneType}, UntilEmpty: true})
	if err == nil {
		err = end.Run(ctx)
	}
	p.Drained[oneType] = p.Given[oneType]
	return []handOver{stopped, asked}, errors.Join(err, p.Empty(ctx), p.Verify(ctx))
}

// trickle publishes until it is stopped; published then waits for the confirmations and returns the number of messages.
func (p *place) trickle(ctx context.Context, publisher *queue.Publisher) (stop func(), published func() (int, error)) {
	ctx, stop = context.WithCancel(ctx)
	done := make(chan struct{})
	var results sync.WaitGroup
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, err)
	}
	n := 0
	go func() {
		defer close(done)
		for server.Sleep(ctx, trickle) == nil {
			results.Add(1)
			err := publisher.Send(context.WithoutCancel(ctx), queue.Message{Type: oneType, Payload: messages.Payload(n)}, func(r queue.Result) {
				if r.Err != nil {
					fail(r.Err)
				}
				results.Done()
			})
			if err != nil {
				results.Done()
				fail(err)
				return
			}
			n++
		}
	}()
	return stop, func() (int, error) {
		<-done
		results.Wait()
		mu.Lock()
		defer mu.Unlock()
		return n, failed
	}
}
