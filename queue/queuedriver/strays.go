package queuedriver

import (
	"maps"
	"slices"
	"sync"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/internal/shorten"
)

// StrayRecord keeps what a backend has skipped, for its Strays method. The zero value is empty. It is
// safe for concurrent use.
type StrayRecord struct {
	mu  sync.Mutex
	all map[string]queue.Strays // by where and what they are
}

// Set replaces the strays with the same In and What. A count of 0 removes them.
func (b *StrayRecord) Set(s queue.Strays) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := s.In + s.What
	if s.Count == 0 {
		delete(b.all, key)
		return
	}
	if b.all == nil {
		b.all = map[string]queue.Strays{}
	}
	b.all[key] = s
}

// All returns all strays, sorted by In and What.
func (b *StrayRecord) All() []queue.Strays {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]queue.Strays, 0, len(b.all))
	for _, key := range slices.Sorted(maps.Keys(b.all)) {
		all = append(all, b.all[key])
	}
	return all
}

// CountStray counts one more key in s; the first becomes the example.
func CountStray(s *queue.Strays, key string) {
	if s.Count++; s.Count == 1 {
		s.Example = shorten.Text(key)
	}
}
