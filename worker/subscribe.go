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

// subscription is one channel. subscriptions.mu guards missed, and is held for every send.
type subscription struct {
	events chan Event
	kinds  []EventKind
	missed uint64
}

// cancel ends one subscription. It may be called after close, or twice: it closes the channel once.
func (s *subscriptions) cancel(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, sub); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
		close(sub.events)
	}
}

// close ends all subscriptions. Later ones are closed from the start.
func (s *subscriptions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, sub := range s.all {
		close(sub.events)
	}
	s.all = nil
}

// tell sends an event to each subscriber of its kind, without waiting.
func (s *subscriptions) tell(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.all {
		if len(sub.kinds) == 0 || slices.Contains(sub.kinds, e.Kind) {
			sub.tell(e)
		}
	}
}

// tell sends an event, and makes room for it if necessary. subscriptions.mu is held, so no other
// goroutine sends.
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
