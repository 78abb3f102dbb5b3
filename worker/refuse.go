package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// Messages that do not get into the file, because Config.Filter or the file refuses them. Each leaves a skip entry in the file, so
// that its number counts there, and becomes a dead letter:
//
//	skip entry ──▶ fsync ──▶ dead letter ──▶ deletion from the queue ──▶ next checkpoint
//
// Who dies before the dead letter leaves a message whose number is in the file, and a database that is set back brings such messages back. They are no
// copies of anything in the file: it remembers which numbers it has skipped, in the records and in the checkpoint state, and their messages become
// dead letters again.

// A message whose number is in use for another one (ledger.Reused) becomes a dead letter without an entry: the file cannot hold its number
// a second time. Only its time tells it from a copy.

// reasonReused is the reason of those letters. A producer whose state file was set back has sent again what is in the file.
const reasonReused = "its number is in use: the file has an earlier message with the same number of the same producer, which happens when the " +
	"database, or a producer's --resume file, is set back to an earlier state; if the file does not have this message's content, requeue it to publish it under a new number"

const maxBury = 100 // messages that are put aside in one step

// reasonPutAside is the reason of a message that is put aside again and whose first reason is not at hand.
const reasonPutAside = "it was put aside before, and is in the queue again: the database was set back to an earlier state, or its publisher has repeated it; " +
	"it is in the file only if that dead letter was requeued meanwhile"

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
	ledger.MakeSkipEntry(r, reason, false)
	s.ledger.Skip(m)
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
	err := s.buryAll(ctx, s.refused)
	s.refused = nil
	return err
}

// buryReused puts aside the messages whose numbers are in use.
//
// rule: before anything later of their producers is in the file. Whoever came next would compare their times with that, and take them for copies.
func (s *session) buryReused(ctx context.Context) error {
	var reused []queue.Letter
	s.refused = slices.DeleteFunc(s.refused, func(l queue.Letter) bool {
		is := l.Reason == reasonReused
		if is {
			reused = append(reused, l)
		}
		return is
	})
	if len(reused) > 0 {
		s.giveMemory() // rule: what may have to wait for an operator takes no memory from others
	}
	return s.buryAll(ctx, reused)
}

func (s *session) buryAll(ctx context.Context, letters []queue.Letter) error {
	for some := range slices.Chunk(letters, maxBury) {
		if err := s.bury(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}
