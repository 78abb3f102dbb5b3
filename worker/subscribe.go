package worker

import (
	"slices"
	"sync"
)

// subscriptions are the channels that a pool's events go to.
type subscriptions struct {
	mu   sync.Mutex
	all  []*subscription
	over bool // the pool has stopped
}

type subscription struct {
	events chan Event
	kinds  []EventKind
	missed uint64
}

// cancel may come after close, or a second time: a channel is closed once.
func (s *subscriptions) cancel(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, sub); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
		close(sub.events)
	}
}

// close ends all subscriptions, and those that come later.
func (s *subscriptions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, sub := range s.all {
		close(sub.events)
	}
	s.all = nil
}

// tell hands an event to each subscriber that wants its kind, and waits for none.
func (s *subscriptions) tell(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.all {
		if len(sub.kinds) == 0 || slices.Contains(sub.kinds, e.Kind) {
			sub.tell(e)
		}
	}
}

// tell is called with the lock held: no other goroutine sends.
func (sub *subscription) tell(e Event) {
	for {
		e.Missed = sub.missed
		select {
		case sub.events <- e:
			return
		default:
		}
		// rule: full, so the oldest goes, unless the subscriber has just taken it; the pool does not wait.
		select {
		case <-sub.events:
			sub.missed++
		default:
		}
	}
}
