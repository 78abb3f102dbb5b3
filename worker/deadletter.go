package worker

import (
	"context"
	"fmt"
	"slices"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// Messages that are not appended, because Files.Filter or the file refuses them. Each leaves a skip
// entry in the file, so that its number is not missing there, and becomes a dead letter:
//
//	skip entry ──▶ fsync ──▶ dead letter ──▶ deletion from the queue ──▶ next checkpoint
//
// If the worker dies before it has stored the dead letter, or the database is restored to an earlier
// state, the message is in the queue and its number is in the file. But the message is not a copy: the
// file does not have its content. So the records and the checkpoint state say which numbers were
// skipped, and such a message becomes a dead letter again.

// A message whose number the file has for another message (ledger.Reused) becomes a dead letter
// without a skip entry, because the file cannot have a number twice. Only the time in its ID
// distinguishes it from a copy.

// reasonReused is the reason of these dead letters. The message may also be one that the file has: a
// producer whose state file was rolled back publishes it again, with a later time.
const reasonReused = "its number is in use: the file has an earlier message with the same number of the same producer, which happens when the " +
	"database, or a producer's --resume file, is restored to an earlier state; if the file does not have this message's content, requeue it to publish it under a new number"

const maxBury = 100 // messages moved to the dead letters with one call

// reasonPutAside is the reason of a message that becomes a dead letter again when its first reason is
// unknown: that is in a skip entry before the last checkpoint, which is not read.
const reasonPutAside = "it was put aside before, and is in the queue again: the database was restored to an earlier state, or its publisher has repeated it; " +
	"it is in the file only if that dead letter was requeued in the meantime"

// refuse makes r, the record of m, a skip entry with the reason why, and queues m to become a dead
// letter.
func (s *session) refuse(r *storage.Record, m *queue.Message, why error) {
	reason := why.Error()
	reason = reason[:min(len(reason), queue.MaxReason)]
	ledger.MakeSkipEntry(r, reason, false)
	s.ledger.Skip(m)
	s.refused = append(s.refused, queue.DeadLetter{Message: *m, Reason: reason, Attempts: 1})
}

// buryRefused moves the refused messages to the dead letters. Their skip entries are durable by now.
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

// buryReused moves the messages with reused numbers to the dead letters.
//
// rule: this happens before anything later of their producers is in the file. The next holder would compare their times with that, and take them for copies.
func (s *session) buryReused(ctx context.Context) error {
	var reused []queue.DeadLetter
	s.refused = slices.DeleteFunc(s.refused, func(l queue.DeadLetter) bool {
		is := l.Reason == reasonReused
		if is {
			reused = append(reused, l)
		}
		return is
	})
	if len(reused) > 0 {
		s.giveMemory() // rule: a message that may have to wait for an operator takes no memory from others
	}
	return s.buryAll(ctx, reused)
}

// buryAll moves messages to the dead letters in small steps, so that a retry repeats little.
func (s *session) buryAll(ctx context.Context, letters []queue.DeadLetter) error {
	for some := range slices.Chunk(letters, maxBury) {
		if err := s.bury(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}

// bury moves messages to the dead letters, retrying until the session ends. The queue does this in one
// step, so that no message is ever missing from both places.
func (s *session) bury(ctx context.Context, letters ...queue.DeadLetter) error {
	for i := range letters {
		letters[i].Worker = s.pool.name
	}
	err := s.insist(ctx, &outage{}, "put a message aside", func() error {
		return s.pool.cfg.Queue.MoveToDeadLetters(ctx, s.typ, letters)
	})
	if err != nil {
		return fmt.Errorf("put message %s aside: %w", letters[0].ID, err)
	}
	for i := range letters {
		l := letters[i]
		s.log.Warn().Stringer("id", l.ID).Int("attempts", l.Attempts).Str("reason", l.Reason).
			Msg("put a message aside as a dead letter; see fencepost dead ls")
		s.count(func(st *Stats) { st.Dead++ })
		s.emit(Event{Kind: Dead, Letter: &l})
	}
	return nil
}
