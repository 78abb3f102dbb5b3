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

// Subscribe returns a channel of the pool's events: of these kinds, or of all. Those of one type come in order. The channel is closed
// when Run returns, or by cancel, which may be called more than once.
//
// The pool never waits for a subscriber. The channel holds buffer events, 1 at least; when it is full the oldest event in it is dropped
// for the new one, and Event.Missed counts what was dropped. So the last event always arrives, and a slow subscriber knows that it has
// gaps; what has to be complete belongs into Config.Events, and counts come from Stats.
func (p *Pool) Subscribe(buffer int, kinds ...EventKind) (events <-chan Event, cancel func()) {
	sub := &subscription{events: make(chan Event, max(buffer, 1)), kinds: slices.Clone(kinds)}
	s := &p.subscriptions
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		close(sub.events)
	} else {
		s.all = append(s.all, sub)
	}
	return sub.events, func() { s.cancel(sub) }
}

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

func (s *subscriptions) tell(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.all {
		if len(sub.kinds) == 0 || slices.Contains(sub.kinds, e.Kind) {
			sub.tell(e)
		}
	}
}

// tell is called with the lock held: nobody else sends.
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
