package worker

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func kinds(events <-chan Event) (kinds []string) {
	for e := range events {
		kinds = append(kinds, fmt.Sprintf("%s %v %d", e.Type, e.Kind, e.Messages))
	}
	return kinds
}

// Two subscribers with room for all events get every event of their kinds, in order, and then the end.
func TestSubscribersGetEventsInOrder(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		all, _ := p.Subscribe(100)
		some, _ := p.Subscribe(100, Acquired, Released)
		r.publish(typ, 10)
		time.Sleep(time.Second)
		p.stop()
		if got := kinds(all); !slices.Equal(got, []string{"orders acquired 0", "orders committed 10", "orders released 0"}) {
			t.Errorf("one got %q", got)
		}
		if got := kinds(some); !slices.Equal(got, []string{"orders acquired 0", "orders released 0"}) {
			t.Errorf("the other got %q", got)
		}
		late, cancel := p.Subscribe(1)
		cancel()
		if got := kinds(late); got != nil {
			t.Errorf("after the end: %q", got)
		}
	})
}

// A subscriber that reads nothing does not delay the pool. It has the newest events, and knows how many it missed.
func TestSlowSubscriberMissesTheOldestEvents(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		slow, _ := p.Subscribe(2)
		least, _ := p.Subscribe(0)
		for range 5 {
			r.publish(typ, 10)
			time.Sleep(time.Second)
		}
		p.stop() // acquired, 5 × committed, released
		r.complete(typ)
		var got []string
		for e := range slow {
			got = append(got, fmt.Sprintf("%v, missed %d", e.Kind, e.Missed))
		}
		if !slices.Equal(got, []string{"committed, missed 4", "released, missed 5"}) {
			t.Errorf("got %q", got)
		}
		if e, more := <-least; !more || e.Kind != Released || e.Missed != 6 {
			t.Errorf("got %+v, %t", e, more)
		}
	})
}

func TestCancelledSubscriptionEnds(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		events, cancel := p.Subscribe(10)
		r.publish(typ, 10)
		time.Sleep(time.Second)
		cancel()
		cancel()
		r.publish(typ, 10)
		time.Sleep(time.Second)
		p.stop()
		if got := kinds(events); !slices.Equal(got, []string{"orders acquired 0", "orders committed 10"}) {
			t.Errorf("got %q", got)
		}
	})
}
