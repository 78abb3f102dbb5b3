package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/wait"
)

// Retries. A batch whose answer is lost is sent again, the same messages under the same IDs, until all
// of it is settled or RepeatFor has elapsed. The backend recognizes by the ID what is already stored. In
// the end, a message that may be stored is Unknown, never Rejected. Then the stream continues under a
// new producer number, so that the numbers of lost messages leave no gap.

// send inserts a batch, with retries, until every message of it is settled.
func (s *stream) send(batch []*item) {
	p := s.p
	msgs := make([]Message, len(batch))
	for i, it := range batch {
		msgs[i] = it.msg
	}
	defer s.settledBatch()
	// rule: time during which the machine sleeps counts. A consumer that has appended these messages may have forgotten them when it wakes up.
	began := clock.Start()
	mayHaveLanded := s.repeat > 0 // an attempt with these messages was unclear; with Resume, possibly in an earlier process
	for attempt := 1; ; attempt++ {
		err := s.attempt(msgs)
		if err == nil {
			s.settle(batch, Stored, nil)
			s.register()
			return
		}
		done := min(err.Stored, len(batch))
		s.settle(batch[:done], Stored, nil)
		batch, msgs = batch[done:], msgs[done:]
		if len(batch) == 0 {
			return
		}
		mayHaveLanded = mayHaveLanded || !err.Refused
		pause := repeatWait(attempt)
		if err.Refused && !err.Temporary || p.sending.Err() != nil || p.opt.RepeatFor-began.Elapsed() <= pause {
			s.giveUp(batch, mayHaveLanded, err)
			return
		}
		p.mu.Lock()
		p.stats.Repeats++
		p.mu.Unlock()
		if p.opt.OnRepeat != nil {
			p.opt.OnRepeat(Repeat{Type: s.typ, Attempt: attempt, Messages: len(batch), Wait: pause, Err: err})
		}
		wait.Unless(p.sending.Done(), pause)
		// rule: no attempt starts late, however long the pause took: the process may have been suspended during it.
		if began.Elapsed() >= p.opt.RepeatFor {
			s.giveUp(batch, mayHaveLanded, err)
			return
		}
		// rule: the repetition carries the same documents with the same IDs, so those that landed before are recognised
	}
}

func (s *stream) settledBatch() {
	s.p.mu.Lock()
	s.p.stats.Batches++
	s.p.mu.Unlock()
}

// attempt makes one Insert or Delay. Errors of other types become an InsertError with an unclear
// outcome.
func (s *stream) attempt(msgs []Message) *InsertError {
	if err := context.Cause(s.p.sending); err != nil {
		return &InsertError{Refused: true, Err: err}
	}
	// rule: Stop cancels no attempt: messages that were sent may have landed, and must be settled.
	ctx, cancel := context.WithTimeoutCause(s.p.sending, s.p.opt.AttemptTimeout,
		fmt.Errorf("no answer to an insert of %d messages in time", len(msgs)))
	defer cancel()
	var err error
	if s.delayed {
		err = s.p.q.Delay(ctx, msgs)
	} else {
		err = s.p.q.Insert(ctx, s.typ, msgs)
	}
	if err == nil {
		return nil
	}
	var ie *InsertError
	if !errors.As(err, &ie) {
		ie = &InsertError{Err: err} // rule: an error that is not known to be a refusal is unclear
	}
	return ie
}

// giveUp settles the rest of a batch that could not be stored, and changes the producer number.
func (s *stream) giveUp(batch []*item, mayHaveLanded bool, err *InsertError) {
	if mayHaveLanded { // rule: never Rejected for a message that may have landed, however clear the last answer was
		s.settle(batch, Unknown, unknownError(err.Err))
	} else {
		s.settle(batch, Rejected, fmt.Errorf("publish: not stored: %w", err.Err))
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.opt.Resume != nil {
		s.breakOff(err.Err) // the process that continues uses the same number
		return
	}
	// rule: after anything but "all stored" a new producer number, so that the numbers of lost messages leave no gap
	s.producer, s.n = newProducerNumber(), 0
	// rule: order across the change of numbers, see rotationPause; also, the later time makes the IDs of the new number
	// sort after those of the old one
	switch {
	case s.stored == clock.Watch{}:
	case errors.Is(err.Err, ErrReplaced): // all later messages are refused: do not wait before refusing them
	case s.delayed: // no consumer reads them before promotion: it is enough that the new IDs sort after the old ones
		s.notBefore = time.Now().Add(2 * time.Millisecond)
	default:
		s.notBefore = time.Now().Add(rotationPause - s.stored.Elapsed())
	}
	s.p.stats.Rotations++
}

// repeatWait is the pause after the given attempt: doubling, with jitter over its upper half.
func repeatWait(attempt int) time.Duration {
	d := maxRepeatWait
	if attempt < 16 {
		d = min(d, minRepeatWait<<(attempt-1))
	}
	return wait.AtLeastHalf(d)
}
