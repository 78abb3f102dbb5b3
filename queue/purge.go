package queue

import (
	"context"
	"fmt"
	"time"
)

// purgePage bounds one page of Purge.
var purgePage = Limit{Messages: 1000, Bytes: 8 << 20}

// Fetcher is what [Purge] needs of a queue: to read and remove pending messages, see [MessageStore].
type Fetcher interface {
	Fetch(ctx context.Context, typ string, after ID, limit Limit) ([]Message, error)
	Ack(ctx context.Context, typ string, ids []ID) error
}

// Purged counts what [Purge] has removed, or would remove.
type Purged struct {
	Messages    int64
	Bytes       int64 // of payloads
	First, Last ID    // of the messages; zero if there were none
}

// Purge removes the messages of a type that are pending when it begins, oldest first; if before is not
// the zero time, only those published before it, by the queue's clock. With dryRun it only counts.
// After an error, more messages than it returns may be removed.
//
// No record of purged messages is kept. When their producer publishes more, the worker waits for the
// missing ones until its gap timeout, then declares a gap. A worker may still append messages that it
// fetched before the purge: pause draining first, and give workers a moment.
func Purge(ctx context.Context, q Fetcher, typ string, before time.Time, dryRun bool) (p Purged, err error) {
	end, err := pendingEnd(ctx, q, typ)
	if err != nil {
		return p, fmt.Errorf("purge: %w", err)
	}
	if bound := NewID(before, 0, 0); !before.IsZero() && bound.Compare(end) < 0 {
		end = bound
	}
	for after := (ID{}); ; {
		msgs, err := q.Fetch(ctx, typ, after, purgePage)
		if err != nil {
			return p, fmt.Errorf("purge: %w", err)
		}
		size := int64(0)
		ids := make([]ID, 0, len(msgs))
		for i := range msgs {
			if msgs[i].ID.Compare(end) >= 0 {
				break
			}
			ids = append(ids, msgs[i].ID)
			size += int64(len(msgs[i].Payload))
		}
		if len(ids) == 0 {
			return p, nil
		}
		if !dryRun {
			if err := q.Ack(ctx, typ, ids); err != nil {
				return p, fmt.Errorf("purge: %d more messages may be removed: %w", len(ids), err)
			}
		}
		if p.Messages == 0 {
			p.First = ids[0]
		}
		after = ids[len(ids)-1]
		p.Last = after
		p.Messages += int64(len(ids))
		p.Bytes += size
	}
}

// pendingEnd returns an ID after all messages that are pending now. It is a binary search over the
// millisecond in the ID, which reads one message per step.
func pendingEnd(ctx context.Context, q Fetcher, typ string) (ID, error) {
	low, high := int64(-1), int64(1)<<48-1 // the time of the last message is in (low, high]
	for low+1 < high {
		middle := low + (high-low)/2
		msgs, err := q.Fetch(ctx, typ, NewID(time.UnixMilli(middle+1), 0, 0).Prev(), Limit{Messages: 1})
		if err != nil {
			return ID{}, err
		}
		if len(msgs) > 0 {
			low = middle
		} else {
			high = middle
		}
	}
	return NewID(time.UnixMilli(high+1), 0, 0), nil
}
