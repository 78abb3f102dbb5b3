package queues

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/worker"
)

// backlog is the rate within a window, with little and with much after it.
type backlog struct {
	window      int
	small, big  int
	rates       map[string][]float64 // of each round, by contender and size
	left, taken int                  // of the big backlog
}

const (
	small = "small"
	big   = "big"
)

func (l *backlog) ratios(a, b string) []float64 {
	ratios := make([]float64, len(l.rates[a]))
	for i := range ratios {
		ratios[i] = l.rates[a][i] / l.rates[b][i]
	}
	return ratios
}

// clocked records when how many messages had been taken out.
type clocked struct {
	mu     sync.Mutex
	total  int
	window int
	first  int       // messages of the first batch, or 0 if that one filled the window
	start  time.Time // the end of the first batch, or when the clock was created
	rate   float64
	full   chan struct{}
}

func newClocked(window int) *clocked { return &clocked{window: window, full: make(chan struct{})} }

// note counts a batch. The rate is measured from the end of the first batch to the end of the one that fills the window.
func (c *clocked) note(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, before := time.Now(), c.total
	c.total += n
	switch full := c.total >= c.window; {
	case before == 0 && !full:
		c.first, c.start = n, now
	case before < c.window && full:
		c.rate = float64(c.total-c.first) / now.Sub(c.start).Seconds()
		close(c.full)
	}
}

// fencepostWindow drains at least a window and stops. It adds the number of drained messages to drained.
func (p *place) fencepostWindow(ctx context.Context, typ string, window int) (float64, error) {
	c := newClocked(window)
	pool, err := worker.New(worker.Config{Queue: p.Backend.Queue, Locker: p.Backend.Locker, To: worker.Files{Dir: p.Dir}, Types: []string{typ}, Events: func(e worker.Event) {
		if e.Kind == worker.Committed {
			c.note(e.Messages)
		}
	}})
	if err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- pool.Run(ctx) }()
	select {
	case <-c.full:
		pool.Stop()
		err = <-done
	case err = <-done:
		err = errors.Join(err, errors.New("the pool ended before its window was full"))
	}
	p.Drained[typ] += int(pool.Stats().Appended)
	return c.rate, err
}

// bareWindow is fencepostWindow for the bare loop.
func (p *place) bareWindow(ctx context.Context, typ string, window int) (float64, error) {
	c := newClocked(window)
	err := p.Bare(ctx, typ, window, c.note)
	return c.rate, err
}

// loadBatches is load with a new producer for each batch, so that taking out whole batches leaves no message without its
// predecessor. Each batch begins in its own millisecond, because producer numbers are random.
func (p *place) loadBatches(ctx context.Context, n int, typ string) error {
	for ; n > 0; n -= messages.BatchSize {
		begin := time.Now()
		if err := p.Load(ctx, min(n, messages.BatchSize), typ); err != nil {
			return err
		}
		time.Sleep(2*time.Millisecond - time.Since(begin))
	}
	return nil
}

// ahead is how many messages a small backlog has after the window: more than a pool fetches ahead, so that it does so to the end of
// each window.
const ahead = 5 * messages.BatchSize

func (b *bench) newBacklog() backlog {
	window := b.sized(10_000, 4000)
	return backlog{window: window, small: window + ahead, big: b.sized(1_000_000, 50_000), rates: map[string][]float64{}}
}

// measureBacklog lets the bare loop and Fencepost take windows from the front of the same big backlog, in turns, and of small
// backlogs.
func (b *bench) measureBacklog(ctx context.Context) (l backlog, err error) {
	l = b.newBacklog()
	bare, err := b.newPlace("small_bare")
	if err != nil {
		return l, err
	}
	ours, err := b.newBackend(ctx, "small_fencepost")
	if err != nil {
		return l, err
	}
	shared, err := b.newBackend(ctx, "big")
	if err != nil {
		return l, err
	}
	rounds := b.few()
	begin := time.Now()
	// Enough more than l.big that the drains below leave at least that many.
	if err := errors.Join(shared.Clear(ctx), shared.loadBatches(ctx, l.big+rounds*3*l.window, oneType)); err != nil {
		return l, err
	}
	b.o.Logf("backlog: loaded %d messages in %v", shared.Given[oneType], time.Since(begin).Round(time.Second))
	note := func(name, size string) func(float64, error) error {
		return func(rate float64, err error) error {
			l.rates[name+size] = append(l.rates[name+size], rate)
			if err != nil {
				err = fmt.Errorf("%s, %s backlog: %w", name, size, err)
			}
			return err
		}
	}
	for range rounds {
		if err := errors.Join(bare.Clear(ctx), bare.Load(ctx, l.small, oneType), ours.Clear(ctx), ours.Load(ctx, l.small, oneType)); err != nil {
			return l, err
		}
		for _, step := range []func() error{
			func() error { return note(nameBare, small)(bare.bareWindow(ctx, oneType, l.window)) },
			func() error { return note(nameBare, big)(shared.bareWindow(ctx, oneType, l.window)) },
			func() error { return note(nameFencepost, small)(ours.fencepostWindow(ctx, oneType, l.window)) },
			func() error { return note(nameFencepost, big)(shared.fencepostWindow(ctx, oneType, l.window)) },
		} {
			if err := step(); err != nil {
				return l, err
			}
		}
		if err := errors.Join(bare.Bare(ctx, oneType, 0, nil), ours.Drain(ctx, oneType)); err != nil {
			return l, err
		}
	}
	l.taken = shared.Drained[oneType]
	l.left = shared.Given[oneType] - l.taken
	if err := errors.Join(bare.Empty(ctx), ours.Empty(ctx), verifyAll(ctx, bare, ours)); err != nil {
		return l, err
	}
	// Together both took the first messages of the big backlog, each once.
	seen := map[int]bool{}
	if err := shared.Journals[oneType].Each(messages.AsSet(seen)); err != nil {
		return l, err
	}
	if err := shared.Visit(ctx, oneType, messages.AsSet(seen)); err != nil {
		return l, err
	}
	for i := range l.taken {
		if !seen[i] {
			return l, fmt.Errorf("message %d of the big backlog is missing", i)
		}
	}
	return l, messages.Complete("what was taken from the big backlog", len(seen), l.taken)
}
