package queue

import (
	"errors"
	"fmt"
	"time"
)

// Resume makes a publisher whose stream another process can continue when this one has died at any
// point, without storing a message twice or leaving one out. It publishes messages of one type,
// none of them delayed.
//
// Before each batch is sent Save is told its numbers. Who continues passes the last Checkpoint that
// was saved as From, and publishes first the very same From.InFlight messages in the same order,
// with the same options, and then those behind them: the first ones are sent under the IDs that
// they had, so what landed of them is recognised, by the queue or by the consumer's file.
//
// Every message counts: after one that is not Stored the publisher takes no more, as what is behind
// it must not overtake it. Close it, and continue from the last Checkpoint.
type Resume struct {
	Type string
	From Checkpoint // the zero value begins a new stream
	// Save makes c durable. It is called from the stream's goroutine. After an error the batch is
	// Rejected and not sent.
	Save func(c Checkpoint) error
}

// Checkpoint is where a stream stands right before a batch is sent. Who knows that all messages of
// the batch are stored may add InFlight to N and set it to 0; who knows that some are stored and
// the others are not and never will be does the same with their number.
type Checkpoint struct {
	Producer uint64    // the producer number
	N        uint64    // all up to this one are stored
	InFlight int       // so many behind it may be stored
	Time     time.Time // of their IDs, by the queue's clock, to the millisecond
	Sent     time.Time // when it was saved before they were sent, by the clock of that machine, to the millisecond; zero: unknown
}

// MaxCheckpointAge is how old a Checkpoint with messages in flight may be. A consumer remembers a
// producer for 24 h, so until then a repetition is recognised.
const MaxCheckpointAge = 12 * time.Hour

// ErrCheckpointTooOld: the messages in flight cannot be published again without the risk that they
// are stored twice.
var ErrCheckpointTooOld = errors.New("the checkpoint is too old")

func (r *Resume) validate() error {
	if err := ValidateType(r.Type); err != nil {
		return fmt.Errorf("publisher options: Resume: %w", err)
	}
	c := r.From
	switch {
	case r.Save == nil:
		return errors.New("publisher options: Resume without Save")
	case c.InFlight < 0 || c.InFlight > DefaultBatchMessages || c.N > MaxN-DefaultBatchMessages || c.Producer == 0 && c != Checkpoint{}:
		return fmt.Errorf("publisher options: Resume: checkpoint %+v was never saved", c)
	}
	return nil
}

// checkAge refuses a checkpoint whose messages consumers may have forgotten. now is the queue's
// clock, here that of this machine.
//
// rule: both clocks have to say that it is young: one may be behind now, or have been ahead when it was saved.
func (r *Resume) checkAge(now, here time.Time) error {
	age := now.Sub(r.From.Time)
	if !r.From.Sent.IsZero() {
		age = max(age, here.Sub(r.From.Sent))
	}
	if r.From.InFlight > 0 && age > MaxCheckpointAge {
		return fmt.Errorf("publisher: %w: %d messages were sent %v ago and may be stored, and copies are recognised for %v only", ErrCheckpointTooOld,
			r.From.InFlight, age.Round(time.Second), MaxCheckpointAge)
	}
	return nil
}

// accepts tells whether a message belongs to the stream.
func (r *Resume) accepts(m *Message) error {
	if r == nil {
		return nil
	}
	if m.Type != r.Type {
		return fmt.Errorf("publish: not sent: this publisher continues type %s and takes no messages of %s", r.Type, m.Type)
	}
	if !m.Due.IsZero() {
		return errors.New("publish: not sent: a publisher with Resume delays no messages")
	}
	return nil
}

// begin lets a new stream go on where the checkpoint ends. Only the first stream of a publisher
// does: a later one has nothing in flight. Called with p.mu held.
func (s *stream) begin() {
	r := s.p.opt.Resume
	if r == nil || s.p.resumed {
		return
	}
	s.p.resumed = true
	if c := r.From; c.Producer != 0 {
		s.producer, s.n, s.repeat, s.floor = c.Producer, c.N, c.InFlight, c.Time
		s.stored = time.Now().Add(-max(s.p.clock.now().Sub(c.Time), 0))
	}
}

// awaitRepeat tells whether messages that have to be sent together again are not here yet.
func (s *stream) awaitRepeat() bool { return s.live < s.repeat }

// takeRepeat forms the batch that is sent again, as it was, as far as it is here. Called with p.mu
// held.
func (s *stream) takeRepeat() []*item {
	var batch []*item
	for len(batch) < s.repeat && s.live > 0 {
		it := s.waiting[0]
		if it.state == itemWaiting {
			s.n++
			it.msg.ID = NewID(s.floor, s.producer, s.n) // rule: the same IDs, so what landed is recognised
			it.state = itemSent
			s.live--
			s.liveBytes -= it.size
			batch = append(batch, it)
		}
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
	}
	return batch
}

// checkpoint saves where the stream stands before batch is sent. false: it could not, and batch is
// rejected.
func (s *stream) checkpoint(batch []*item) bool {
	r := s.p.opt.Resume
	if r == nil || s.repeat > 0 { // what is repeated was saved before it was sent the first time
		return true
	}
	first := batch[0].msg.ID
	err := r.Save(Checkpoint{Producer: first.Producer(), N: first.N() - 1, InFlight: len(batch), Time: first.Time(),
		Sent: time.Now().Round(0).Truncate(time.Millisecond)})
	if err == nil {
		return true
	}
	err = fmt.Errorf("publish: not sent, the checkpoint cannot be saved: %w", err)
	s.settle(batch, Rejected, err)
	s.p.mu.Lock()
	s.broken = err
	s.p.mu.Unlock()
	return false
}

// sent ends the repetition.
func (s *stream) sent() {
	s.p.mu.Lock()
	s.repeat = 0
	s.p.mu.Unlock()
}

// brokenError is what messages behind a lost one get.
func brokenError(cause error) error {
	return fmt.Errorf("publish: not sent: a message before it was not stored for certain: %w", cause)
}
