package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// Delayed chooses delayed messages. The zero value chooses all.
type Delayed struct {
	Types  []string // of these types only; none: of all
	IDs    []queue.ID
	Before time.Time          // only those published before this time by the server's clock; zero: no bound
	Slot   *queue.ScheduleKey // only the message with this key; it is found directly, however many are delayed
}

// DelayedReader lists delayed messages.
type DelayedReader interface {
	Delayed(ctx context.Context, after queue.ScheduleKey, limit queue.Limit) ([]queue.Message, error)
}

// Each calls f with every chosen message, in the order of their due times, until f returns false.
func (s Delayed) Each(ctx context.Context, q DelayedReader, f func(queue.Message) bool) error {
	page := queue.Limit{Messages: 500, Bytes: 8 << 20}
	ids := make(map[queue.ID]bool, len(s.IDs))
	for _, id := range s.IDs {
		ids[id] = true
	}
	after := queue.ScheduleKey{}
	if s.Slot != nil {
		after, page.Messages = *s.Slot, 1
		after.ID = after.ID.Prev()
	}
	for {
		msgs, err := q.Delayed(ctx, after, page)
		if err != nil || len(msgs) == 0 {
			return err
		}
		for _, m := range msgs {
			if s.Slot != nil && queue.ScheduleKeyOf(&m).Compare(*s.Slot) != 0 {
				return nil
			}
			if !s.Before.IsZero() && !m.ID.Time().Before(s.Before) {
				continue
			}
			if (len(s.Types) == 0 || slices.Contains(s.Types, m.Type)) && (len(s.IDs) == 0 || ids[m.ID]) && !f(m) {
				return nil
			}
		}
		after = queue.ScheduleKeyOf(&msgs[len(msgs)-1])
	}
}

// Remove permanently removes the chosen messages, type by type. If workers promote some of them in the meantime, those stay, and the error is a
// PartialError.
func (s Delayed) Remove(ctx context.Context, b *fencepost.Backend, turn Turn, tell Progress) (o Outcome, err error) {
	slots := map[string][]queue.ScheduleKey{} // by type
	missing := map[queue.ID]bool{}
	for _, id := range s.IDs {
		missing[id] = true
	}
	err = s.Each(ctx, b.Queue, func(m queue.Message) bool {
		slots[m.Type] = append(slots[m.Type], queue.ScheduleKeyOf(&m))
		o.Chosen++
		delete(missing, m.ID)
		return true
	})
	if err != nil {
		return Outcome{}, err // nothing was begun
	}
	o.Missing = slices.SortedFunc(maps.Keys(missing), queue.ID.Compare)
	for _, typ := range slices.Sorted(maps.Keys(slots)) {
		err := turn.Take(ctx, b, typ, func(ctx context.Context) error {
			for some := range slices.Chunk(slots[typ], 500) {
				n, err := b.Queue.CancelDelayed(ctx, some)
				if o.Done += n; err != nil {
					return err
				}
				tell(o)
			}
			return nil
		})
		switch {
		case o.Done > 0 && errors.Is(err, lock.ErrHeld):
			return o, &PartialError{fmt.Errorf("the other messages stay: %w", err)}
		case err != nil:
			return o, err
		}
	}
	if gone := o.Chosen - o.Done; gone > 0 {
		return o, &PartialError{fmt.Errorf("%d of the messages were already gone: promoted, or removed by another program", gone)}
	}
	return o, nil
}
