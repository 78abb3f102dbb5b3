package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Messages that do not get into the file, because Config.Filter or the file refuses them. Each leaves a skip entry in the file, so
// that its number counts there, and becomes a dead letter:
//
//	skip entry ──▶ fsync ──▶ dead letter ──▶ deletion from the queue ──▶ next checkpoint
//
// Who dies before the dead letter leaves a message that the file would refuse as a copy, and so would be acknowledged: lost. So
// whoever opens the file reads the skip entries behind the last checkpoint, as it does with all entries there, and buries
// what is still in the queue; and no checkpoint is written before what was skipped is buried.

// A message whose number is in use for another one (see ledger.judge) becomes a dead letter without an entry: the file cannot hold its number
// a second time.

// reasonReused is the reason of those letters. A producer whose state file was set back has sent again what is in the file.
const reasonReused = "its number is in use: the file has an earlier message with the same number of the same producer, which happens when the " +
	"database, or a producer's --resume file, is set back to an earlier state; if the file does not have this message's content, requeue it to publish it under a new number"

const maxBury = 100 // messages that are put aside in one step

// filter asks Config.Filter.
func (s *session) filter(m *queue.Message) (err error) {
	f := s.pool.cfg.Filter
	if f == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return f(*m)
}

// refuse makes a skip entry of m's record.
func (s *session) refuse(r *storage.Record, m *queue.Message, why error) {
	reason := why.Error()
	reason = reason[:min(len(reason), queue.MaxReason)]
	skip(r, reason, false)
	s.ledger.keys.drop(m) // rule: a dead letter does not occupy its key. It may be published again.
	s.ledger.delayed.drop(m)
	s.refused = append(s.refused, queue.Letter{Message: *m, Reason: reason, Attempts: 1})
}

// write appends records, which stand for msgs, as one batch if it is not too large. What the file cannot take for good is
// refused.
func (s *session) write(records []storage.Record, msgs []*queue.Message) error {
	for {
		err := s.writer().Append(records)
		var limit *storage.LimitError
		switch {
		case !errors.As(err, &limit):
			return err
		case limit.Record < 0 && len(records) > 1: // headers may make a batch larger than the fetch could know
			mid := len(records) / 2
			if err := s.write(records[:mid], msgs[:mid]); err != nil {
				return err
			}
			records, msgs = records[mid:], msgs[mid:]
		case limit.Record < 0 || records[limit.Record].Kind == storage.KindSkipped:
			return err
		case s.pool.cfg.OnError == Block:
			return fmt.Errorf("the file cannot take message %s, which blocks its type; to put it aside as a dead letter start the worker with --on-error dead: %w",
				msgs[limit.Record].ID, err)
		default:
			s.refuse(&records[limit.Record], msgs[limit.Record], err)
		}
	}
}

// buryRefused puts aside what was refused. Its skip entries are durable.
func (s *session) buryRefused(ctx context.Context) error {
	if len(s.refused) == 0 {
		return nil
	}
	// rule: the registry knows of a skip entry before its message is buried, which takes it out of the queue as an acknowledgement does.
	if err := s.acknowledge(ctx, nil, &outage{}); err != nil {
		return err
	}
	for letters := range slices.Chunk(s.refused, maxBury) {
		if err := s.bury(ctx, letters...); err != nil {
			return err
		}
	}
	s.refused = nil
	return nil
}

// burySkipped puts aside what a session before this one has skipped in the file and left in the queue.
func (s *session) burySkipped(ctx context.Context) error {
	if s.pool.cfg.mutant.forgetSkipped {
		return nil
	}
	for id, reason := range s.skipped {
		msgs, err := s.lookUp(ctx, id)
		if err != nil {
			return fmt.Errorf("look for message %s, which the file has skipped: %w", id, err)
		}
		if len(msgs) == 0 || msgs[0].ID != id || msgs[0].Incomplete {
			continue
		}
		if err := s.bury(ctx, queue.Letter{Message: msgs[0], Reason: reason, Attempts: 1}); err != nil {
			return err
		}
	}
	return nil
}

// lookUp reads the message with the given ID or, if it is not in the queue, the one behind it.
func (s *session) lookUp(ctx context.Context, id queue.ID) ([]queue.Message, error) {
	retry := backoff{min: watchMin, max: watchMax}
	var outage outage
	for {
		msgs, err := s.pool.cfg.Queue.Fetch(ctx, s.typ, id.Prev(), queue.Limit{Messages: 1})
		if !outage.note(&s.log, err, "look for a message") || fatal(err) {
			return msgs, err
		}
		if err := sleep(ctx, retry.next()); err != nil {
			return nil, err
		}
	}
}
