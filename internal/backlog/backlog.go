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

	roundTimeout = 5 * time.Second  // for querying all types once
	fresh        = 20 * time.Second // how long an answer is valid, if one round queries all types
	perRound     = time.Minute      // and how long per round, if it takes several: scrapes are up to a minute apart
	parallel     = 4                // concurrent queries to the server
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

	// Questions is the maximum number of types that one round queries; the next rounds query the others in turn. 0 means no limit.
	Questions int

	mu      sync.Mutex
	samples map[string]answer
	newest  time.Time     // when the server last answered
	began   time.Time     // when the last round began
	round   chan struct{} // closed at the end of the current round; nil: there is none
	cancel  context.CancelFunc
	closed  bool
}

// Sample is the recent backlog of a type.
type Sample struct {
	queue.Depth
	Age time.Duration // of the oldest pending message at the time of the query; 0 when there is none
	At  time.Time     // time of the query
}

// answer is the known state of a type.
type answer struct {
	Sample
	asked time.Time // last query, also without an answer
}

// Samples returns the known samples of types. A type about which the server has not answered recently is missing from the result. It
// waits for answers for at most Patience, regardless of the number of callers and of the server.
func (s *Sampler) Samples(ctx context.Context, types []string) map[string]Sample {
	known, _ := s.SamplesOf(ctx, nil, types)
	return known
}

// SamplesOf is Samples of two groups of types: each round queries the first group before the others. complete reports that every
// type was queried, so that a sum covers all types.
func (s *Sampler) SamplesOf(ctx context.Context, first, others []string) (known map[string]Sample, complete bool) {
	types := slices.Concat(first, others)
	s.mu.Lock()
	if s.round == nil && !s.closed && len(types) > 0 && (s.began.IsZero() || time.Since(s.began) >= cmp.Or(s.Every, defaultEvery)) {
		s.start(first, others)
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
	worth := s.worth(len(first), len(others))
	known, complete = make(map[string]Sample, len(types)), true
	if time.Since(s.newest) >= fresh { // the server is unreachable: its earlier answers are not the current backlog
		return known, false
	}
	for _, typ := range types {
		a := s.samples[typ]
		complete = complete && !a.asked.IsZero()
		if !a.At.IsZero() && time.Since(a.At) < worth {
			known[typ] = a.Sample
		}
	}
	return known, complete
}

// share returns how many types of each group one round queries. A quarter is reserved for the others.
func (s *Sampler) share(first, others int) (ofFirst, ofOthers int) {
	if s.Questions == 0 {
		return first, others
	}
	ofOthers = min(others, max(s.Questions-first, (s.Questions+3)/4))
	return min(first, s.Questions-ofOthers), ofOthers
}

// worth is how long an answer is valid. If one round does not query all types, that is until the next answer.
func (s *Sampler) worth(first, others int) time.Duration {
	ofFirst, ofOthers := s.share(first, others)
	if ofFirst == first && ofOthers == others {
		return fresh
	}
	rounds := max((first+ofFirst-1)/max(ofFirst, 1), (others+ofOthers-1)/max(ofOthers, 1))
	return time.Duration(rounds) * perRound
}

// start begins a round; s.mu is held. It forgets types that are no longer requested.
func (s *Sampler) start(first, others []string) {
	// The types queried longest ago come first: if a round is too short for all of them, none is left out permanently.
	inTurn := func(types []string) []string {
		types = slices.Clone(types)
		slices.SortStableFunc(types, func(a, b string) int { return s.samples[a].asked.Compare(s.samples[b].asked) })
		return types
	}
	first, others = inTurn(first), inTurn(others)
	kept := make(map[string]answer, len(first)+len(others))
	for _, typ := range slices.Concat(first, others) {
		if a, ok := s.samples[typ]; ok {
			kept[typ] = a
		}
	}
	// rule: a round queries at most Questions types, however many there are.
	ofFirst, ofOthers := s.share(len(first), len(others))
	types := slices.Concat(first[:ofFirst], others[:ofOthers])
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
			s.mu.Lock()
			defer s.mu.Unlock()
			a := s.samples[typ]
			if ctx.Err() == nil {
				a.asked = time.Now()
			}
			if err == nil { // otherwise it is unknown, and reported as such
				a.Sample = Sample{Depth: d, At: time.Now()}
				if d.Pending > 0 {
					a.Age = max(now.Add(time.Since(began)).Sub(d.Oldest.Time()), 0)
				}
				s.newest = a.At
			}
			s.samples[typ] = a
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
