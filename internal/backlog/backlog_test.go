package backlog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// slow is a queue whose Depth takes a while, or until its context ends.
type slow struct {
	queue.Queue
	takes time.Duration
	asked atomic.Int32

	mu               sync.Mutex
	now, mostAtATime int
}

func (s *slow) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	s.asked.Add(1)
	s.enter(1)
	defer s.enter(-1)
	select {
	case <-time.After(s.takes):
		return s.Queue.Depth(ctx, typ, most)
	case <-ctx.Done():
		return queue.Depth{}, ctx.Err()
	}
}

func (s *slow) enter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += n
	s.mostAtATime = max(s.mostAtATime, s.now)
}

func names(n int) (types []string) {
	for i := range n {
		types = append(types, fmt.Sprint("t", i))
	}
	return types
}

func TestSamplerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &slow{Queue: queuetest.NewMemory(), takes: 100 * time.Millisecond}
		s := &Sampler{Queue: q}
		defer s.Close()
		for range 3 { // callers during a round share it, and its result for 5 s
			if got := s.Samples(t.Context(), names(20)); len(got) != 20 {
				t.Errorf("%d samples of 20", len(got))
			}
		}
		if q.asked.Load() != 20 || q.mostAtATime != parallel { // the round has ended
			t.Errorf("asked %d times, %d at a time", q.asked.Load(), q.mostAtATime)
		}
		time.Sleep(defaultEvery)
		s.Samples(t.Context(), names(20))
		if q.asked.Load() != 40 {
			t.Errorf("asked %d times in two rounds", q.asked.Load())
		}
	})
}

// Types that did not fit into a round come first in the next one.
func TestSamplerLeavesNoneOutForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Sampler{Queue: &slow{Queue: queuetest.NewMemory(), takes: time.Second}}
		defer s.Close()
		began := time.Now()
		if got := s.Samples(t.Context(), names(30)); len(got) >= 30 || time.Since(began) > defaultPatience {
			t.Errorf("%d samples after %v", len(got), time.Since(began))
		}
		seen := map[string]bool{}
		for range 4 {
			time.Sleep(roundTimeout + time.Second)
			for typ := range s.Samples(t.Context(), names(30)) {
				seen[typ] = true
			}
		}
		if len(seen) != 30 {
			t.Errorf("%d of 30 types were ever seen", len(seen))
		}
	})
}

// Close ends a round whose queries are never answered; no query follows it.
func TestSamplerCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &slow{Queue: queuetest.NewMemory(), takes: time.Hour}
		s := &Sampler{Queue: q}
		if got := s.Samples(t.Context(), names(2)); len(got) != 0 {
			t.Errorf("samples without an answer: %v", got)
		}
		began := time.Now()
		s.Close()
		if time.Since(began) > 0 {
			t.Errorf("Close took %v", time.Since(began))
		}
		time.Sleep(time.Minute)
		asked := q.asked.Load()
		if got := s.Samples(t.Context(), names(2)); len(got) != 0 || q.asked.Load() != asked {
			t.Errorf("asked after Close: %v", got)
		}
	})
}

// If a round does not query all types, the first group is queried in each round and the others in turn; a sum is complete once all were
// queried, and nothing is reported while the server is unreachable.
func TestSamplerAsksAboutManyTypesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &slow{Queue: queuetest.NewMemory(), takes: time.Millisecond}
		s := &Sampler{Queue: q, Questions: 20}
		defer s.Close()
		all := names(1000)
		first, others := all[:10], all[10:] // 99 rounds
		for round := 1; round <= 120; round++ {
			before := q.asked.Load()
			known, complete := s.SamplesOf(t.Context(), first, others)
			if n := q.asked.Load() - before; n > 20 {
				t.Fatalf("%d questions in a round", n)
			}
			for _, typ := range first {
				if time.Since(known[typ].At) > time.Second {
					t.Fatalf("round %d: %s of the first group is unknown, or old", round, typ)
				}
			}
			if want := min(10+round*10, 1000); len(known) != want || complete != (want == 1000) {
				t.Fatalf("round %d: %d types known, complete %v; want %d", round, len(known), complete, want)
			}
			time.Sleep(15 * time.Second)
		}
		q.takes = time.Hour // unreachable
		s.SamplesOf(t.Context(), first, others)
		time.Sleep(fresh)
		if known, complete := s.SamplesOf(t.Context(), first, others); len(known) > 0 || complete {
			t.Errorf("the server is unreachable: %d types reported, complete %v", len(known), complete)
		}
	})
}
