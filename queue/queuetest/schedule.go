package queuetest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// delays are the delayed messages of a Memory.
type delays struct {
	list      []queue.Message // sorted by slot
	sequences map[string]*queuedriver.Sequence
	settled   map[queue.ID]bool // promoted or cancelled; kept forever
}

func bySlot(m queue.Message, s queue.ScheduleKey) int { return queue.ScheduleKeyOf(&m).Compare(s) }

// Delay implements queue.Queue.
func (m *Memory) Delay(ctx context.Context, msgs []queue.Message) error {
	msgs, err := queuedriver.CheckDelay(msgs)
	if err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return &queue.InsertError{Refused: true, Err: err}
	}
	defer m.mu.Unlock()
	for _, msg := range msgs {
		i, found := slices.BinarySearchFunc(m.delays.list, queue.ScheduleKeyOf(&msg), bySlot)
		if found || m.delays.settled[msg.ID] {
			continue
		}
		msg.Payload, msg.Headers = bytes.Clone(msg.Payload), maps.Clone(msg.Headers)
		m.delays.list = slices.Insert(m.delays.list, i, msg)
	}
	return nil
}

// Promote implements queue.Queue.
func (m *Memory) Promote(ctx context.Context, limit queue.Limit) (queue.Promotion, error) {
	if err := queuedriver.CheckPromote(limit); err != nil {
		return queue.Promotion{}, err
	}
	if err := m.enter(ctx); err != nil {
		return queue.Promotion{}, err
	}
	defer m.mu.Unlock()
	d := &m.delays
	if d.sequences == nil {
		d.sequences = map[string]*queuedriver.Sequence{}
	}
	if d.settled == nil {
		d.settled = map[queue.ID]bool{}
	}
	p := queue.Promotion{Now: time.Now()}
	moment := queuedriver.Moment{Now: p.Now} // the clock of a bubble is right
	var size int64
	for p.Messages < limit.Messages && (limit.Bytes == 0 || size < limit.Bytes) {
		i := d.next(p.Now)
		if i < 0 || d.list[i].Due.After(p.Now) {
			break
		}
		msg := d.list[i]
		if i == 0 {
			d.list = d.list[1:] // the usual case, at no cost
		} else {
			d.list = slices.Delete(d.list, i, i+1)
		}
		d.settled[msg.ID] = true
		if action, why := queuedriver.DecideDue(&msg, len(msg.Payload)); action == queuedriver.MakeDeadLetter {
			letters, err := queuedriver.CheckDeadLetters(msg.Type, []queue.DeadLetter{queuedriver.DelayedDeadLetter(msg, why.Error())}, p.Now)
			if err != nil {
				return p, err
			}
			m.bury(msg.Type, letters)
			p.DeadLetters++
			continue
		}
		s := d.sequences[msg.Type]
		if s == nil {
			s = &queuedriver.Sequence{}
			d.sequences[msg.Type] = s
		}
		id := s.Next(moment)
		msg.Headers = queuedriver.PromotedHeaders(msg.Headers, msg.ID, id)
		msg.ID, msg.Due = id, time.Time{}
		m.types[msg.Type] = true
		m.insert(msg.Type, []queue.Message{msg})
		p.Messages++
		if !slices.Contains(p.Types, msg.Type) {
			p.Types = append(p.Types, msg.Type)
		}
		size += int64(msg.Size())
	}
	if i := d.next(p.Now); i >= 0 {
		p.Next = d.list[i].Due
	}
	return p, nil
}

// next is the index of the first message that is due or can become due, or -1 if there is none.
func (d *delays) next(now time.Time) int {
	return slices.IndexFunc(d.list, func(msg queue.Message) bool {
		if msg.Due.After(now) {
			return true
		}
		action, _ := queuedriver.DecideDue(&msg, len(msg.Payload))
		return action != queuedriver.Keep
	})
}

// PlantDelayed adds a delayed message as an earlier version or another program might: only whether it was settled is checked.
func (m *Memory) PlantDelayed(msg queue.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i, found := slices.BinarySearchFunc(m.delays.list, queue.ScheduleKeyOf(&msg), bySlot); !found && !m.delays.settled[msg.ID] {
		m.delays.list = slices.Insert(m.delays.list, i, msg)
	}
}

// NextDue implements queue.Queue.
func (m *Memory) NextDue(ctx context.Context) (time.Time, bool, error) {
	if err := m.enter(ctx); err != nil {
		return time.Time{}, false, err
	}
	defer m.mu.Unlock()
	if i := m.delays.next(time.Now()); i >= 0 {
		return m.delays.list[i].Due, true, nil
	}
	return time.Time{}, false, nil
}

// Delayed implements queue.Queue.
func (m *Memory) Delayed(ctx context.Context, after queue.ScheduleKey, limit queue.Limit) ([]queue.Message, error) {
	if err := queuedriver.CheckPromote(limit); err != nil {
		return nil, err
	}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	i := 0
	if after != (queue.ScheduleKey{}) {
		var found bool
		if i, found = slices.BinarySearchFunc(m.delays.list, after, bySlot); found {
			i++
		}
	}
	var out []queue.Message
	var size int64
	for ; i < len(m.delays.list) && len(out) < limit.Messages; i++ {
		msg := m.delays.list[i]
		msg.Payload, msg.Headers = bytes.Clone(msg.Payload), maps.Clone(msg.Headers)
		out = append(out, msg)
		if size += int64(msg.Size()); limit.Bytes > 0 && size >= limit.Bytes {
			break
		}
	}
	return out, nil
}

// CancelDelayed implements queue.Queue.
func (m *Memory) CancelDelayed(ctx context.Context, slots []queue.ScheduleKey) (int, error) {
	if err := m.enter(ctx); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	n := 0
	for _, s := range slots {
		if i, found := slices.BinarySearchFunc(m.delays.list, s, bySlot); found {
			m.delays.list = slices.Delete(m.delays.list, i, i+1)
			if m.delays.settled == nil {
				m.delays.settled = map[queue.ID]bool{}
			}
			m.delays.settled[s.ID] = true
			n++
		}
	}
	return n, nil
}

// Delay implements queue.Queue. It fails as Insert does, except that a Late one is lost.
func (f *Faulty) Delay(ctx context.Context, msgs []queue.Message) error {
	defer f.around(OpDelay, "")()
	fault := f.next(OpDelay, "", len(msgs))
	keep := min(fault.Keep, len(msgs))
	unclear := &queue.InsertError{Err: ErrFault}
	switch fault.Kind {
	case LostAnswer:
		_ = f.Queue.Delay(ctx, msgs)
		return unclear
	case Partial:
		_ = f.Queue.Delay(ctx, msgs[:keep])
		return unclear
	case Lost, Late:
		return unclear
	case Hang, HangPerformed:
		if fault.Kind == HangPerformed {
			_ = f.Queue.Delay(ctx, msgs)
		}
		<-ctx.Done()
		return &queue.InsertError{Err: context.Cause(ctx)}
	case Refused:
		if err := f.Queue.Delay(ctx, msgs[:keep]); err != nil {
			return err
		}
		return &queue.InsertError{Stored: keep, Refused: true, Err: ErrFault}
	case Unreachable:
		return &queue.InsertError{Refused: true, Temporary: true, Err: ErrFault}
	}
	return f.Queue.Delay(ctx, msgs)
}

// Promote implements queue.Queue. Partial promotes the first Keep.
func (f *Faulty) Promote(ctx context.Context, limit queue.Limit) (queue.Promotion, error) {
	return disturb(ctx, f, OpPromote, "", limit.Messages, func(keep int) (queue.Promotion, error) {
		return f.Queue.Promote(ctx, queue.Limit{Messages: max(keep, 1), Bytes: limit.Bytes})
	})
}

// NextDue implements queue.Queue.
func (f *Faulty) NextDue(ctx context.Context) (due time.Time, ok bool, err error) {
	due, err = disturb(ctx, f, OpNextDue, "", 1, func(int) (due time.Time, err error) {
		due, ok, err = f.Queue.NextDue(ctx)
		return due, err
	})
	return due, ok && err == nil, err
}

// Delayed implements queue.Queue.
func (f *Faulty) Delayed(ctx context.Context, after queue.ScheduleKey, limit queue.Limit) ([]queue.Message, error) {
	return disturb(ctx, f, OpDelayed, "", limit.Messages, func(int) ([]queue.Message, error) { return f.Queue.Delayed(ctx, after, limit) })
}

// CancelDelayed implements queue.Queue.
func (f *Faulty) CancelDelayed(ctx context.Context, slots []queue.ScheduleKey) (int, error) {
	return disturb(ctx, f, OpCancelDelayed, "", len(slots), func(keep int) (int, error) { return f.Queue.CancelDelayed(ctx, slots[:keep]) })
}

// The operations on delayed messages that Faulty can disturb.
const (
	OpDelay         Op = "delay"
	OpPromote       Op = "promote"
	OpNextDue       Op = "nextDue"
	OpDelayed       Op = "delayed"
	OpCancelDelayed Op = "cancelDelayed"
)
