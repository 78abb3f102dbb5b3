package simulation

import (
	"bytes"
	"context"
	"errors"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

// sink is the destination of a type's handlers. It keeps the greatest token and the IDs of its messages, as Handler requires. It is guarded
// by world.mu.
type sink struct {
	token    int64
	has      map[queue.ID]bool
	payloads []string
}

var errNoAnswer = errors.New("simulation: the sink has not answered")

// handler stores messages of any type in their sinks.
func (p *process) handler() worker.Handler {
	return worker.HandlerFunc(func(ctx context.Context, lease worker.Lease, msgs []queue.Message) error {
		done := p.around("handle", lease.Name())
		err := p.store(lease, msgs)
		done()
		return err
	})
}

// store does the work of a destination's transaction in one step.
func (p *process) store(lease worker.Lease, msgs []queue.Message) error {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	d := newDice(w.seed, p.id, number("fault"), number("handle"), p.counts["handle"])
	lost := !w.calm && d.chance(2*w.lost)
	switch {
	case p.dead:
		return errKilled
	case lost && d.chance(5000):
		w.seen.Lost++
		return errNoAnswer
	}
	s := w.sinks[lease.Name()]
	if s == nil {
		s = &sink{has: map[queue.ID]bool{}}
		w.sinks[lease.Name()] = s
	}
	if lease.Token() < s.token {
		w.tellLocked(p.name + " is refused by the sink of " + lease.Name())
		return worker.FencedAbove(s.token)
	}
	for i := range msgs {
		if bytes.HasPrefix(msgs[i].Payload, []byte("bad ")) {
			return worker.Permanent(errBad)
		}
	}
	s.token = lease.Token()
	for i := range msgs {
		if m := &msgs[i]; !s.has[m.ID] {
			s.has[m.ID] = true
			s.payloads = append(s.payloads, string(m.Payload))
			w.seen.Handled++
		}
	}
	if lost {
		w.seen.Lost++
		return errNoAnswer
	}
	return nil
}

// readSink adds the messages that the handlers of a type have stored.
func (w *world) readSink(typ string, c *contents) {
	if s := w.sinks[typ]; s != nil {
		for i, payload := range s.payloads {
			c.payloads[payload] = append(c.payloads[payload], place{index: uint64(i)})
		}
	}
}
