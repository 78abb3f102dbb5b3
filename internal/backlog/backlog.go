// Package backlog samples the backlogs of many types, at a bounded cost for the server and a bounded wait for the caller: an
// unreachable server must not block a status request.
package backlog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
	"golang.org/x/sync/errgroup"
)

// Defaults of Sampler.
const (
	DefaultMax      = 10_000
	defaultEvery    = 5 * time.Second
	defaultPatience = time.Second

	roundTimeout = 5 * time.Second  // of asking about all types once
	fresh        = 20 * time.Second // how long an answer is worth telling
	parallel     = 4                // questions to the server at a time
)

// Source is the queue that a Sampler queries.
type Source interface {
	queue.Clock
	Depth(ctx context.Context, typ string, max int) (queue.Depth, error)
}

// Sampler queries a queue about its types. Do not change its fields after the first use. Safe for concurrent
// use.
type Sampler struct {
	Queue    Source
	Max      int           // messages counted per type, at most. Defaults to 10,000
	Every    time.Duration // interval between two queries about a type. Defaults to 5 s
	Patience time.Duration // how long Samples waits for answers. Defaults to 1 s

	mu      sync.Mutex
	samples map[string]Sample
	began   time.Time     // when the last round began
	round   chan struct{} // closed at the end of the round under way; nil: there is none
	cancel  context.CancelFunc
	closed  bool
}

// Sample is the recent backlog of a type.
type Sample struct {
	queue.Depth
	Age time.Duration // of the oldest pending message at the time of the query; 0 when there is none
	At  time.Time     // time of the query
}

// Samples returns the known samples of types. A type about which the server has not answered recently is missing from the result. It
// waits for answers for at most Patience, regardless of the number of callers and of the server.
func (s *Sampler) Samples(ctx context.Context, types []string) map[string]Sample {
	s.mu.Lock()
	if s.round == nil && !s.closed && len(types) > 0 && (s.began.IsZero() || time.Since(s.began) >= cmp.Or(s.Every, defaultEvery)) {
		s.start(slices.Clone(types))
	}
	round := s.round
	s.mu.Unlock()
	if round != nil {
		patience := time.NewTimer(cmp.Or(s.Patience, defaultPatience))
		defer patience.Stop()
		select {
		case <-round:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make(map[string]Sample, len(types))
	for _, typ := range types {
		if sample, ok := s.samples[typ]; ok && time.Since(sample.At) < fresh {
			known[typ] = sample
		}
	}
	return known
}

// start begins a round; s.mu is held. It forgets types that are not asked about any more.
func (s *Sampler) start(types []string) {
	// Those asked about longest ago come first: where a round is too short for all of them, none is left out for ever.
	slices.SortStableFunc(types, func(a, b string) int { return s.samples[a].At.Compare(s.samples[b].At) })
	kept := make(map[string]Sample, len(types))
	for _, typ := range types {
		if sample, ok := s.samples[typ]; ok {
			kept[typ] = sample
		}
	}
	s.samples, s.began = kept, time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), roundTimeout)
	done := make(chan struct{})
	s.round, s.cancel = done, cancel
	go func() {
		defer cancel()
		s.ask(ctx, types)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.round, s.cancel = nil, nil
		close(done)
	}()
}

func (s *Sampler) ask(ctx context.Context, types []string) {
	now, err := s.Queue.Now(ctx)
	if err != nil {
		return
	}
	began := time.Now()
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, typ := range types {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			d, err := s.Queue.Depth(ctx, typ, cmp.Or(s.Max, DefaultMax))
			if err != nil {
				return nil // unknown, and so told
			}
			sample := Sample{Depth: d, At: time.Now()}
			if d.Pending > 0 {
				sample.Age = max(now.Add(time.Since(began)).Sub(d.Oldest.Time()), 0)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.samples[typ] = sample
			return nil
		})
	}
	g.Wait()
}

// Close cancels the round in progress and waits until the queue has returned. It starts no more queries.
func (s *Sampler) Close() {
	s.mu.Lock()
	s.closed = true
	round, cancel := s.round, s.cancel
	s.mu.Unlock()
	if round != nil {
		cancel()
		<-round
	}
}
