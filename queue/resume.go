package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
)

// Resume configures a publisher whose stream another process can continue if this one dies at any
// point, without storing a message twice or losing one. It is for messages of one type that are not
// delayed.
//
// Before each batch is sent, Save is called with its numbers. To continue, pass the last saved
// Checkpoint as From. Then publish the same From.InFlight messages again, in the same order and with
// the same options, and after them the rest. The first ones are sent under their old IDs, so the queue
// or the consumer's file recognizes those that were stored.
//
// After a message that is not Stored, the publisher accepts no more, because later messages must not
// overtake it. Close it, and continue from the last Checkpoint. This holds even if the message was
// never sent, because its ctx ended or it is invalid. If it is one of the first From.InFlight, it is
// then Unknown: the earlier process may have stored it.
type Resume struct {
	Type string
	From Checkpoint // where to continue; the zero value begins a new stream
	// Save makes c durable. It is called from the stream's goroutine. After an error the batch is
	// Rejected and not sent.
	Save func(c Checkpoint) error
}

// Checkpoint is the state of a stream right before a batch is sent. When all messages of the batch are
// settled, and the first k of them are stored while the others never will be, the caller may add k to N
// and set InFlight to 0.
//
// N is not a position in the input: after IdleRotate without a stored message, the next batch has
// another producer number, and N starts at 0 again. So let Save store the position, too, as a count of
// the messages stored: when it is called, everything before the batch is stored, and the callbacks of
// Send have reported it.
type Checkpoint struct {
	Producer uint64    // the producer number
	N        uint64    // its messages up to this number are stored
	InFlight int       // this many messages after N may be stored
	Time     time.Time // in the IDs of those, by the queue's clock, to the millisecond
	Sent     time.Time // when the checkpoint was saved, by the clock of that machine, to the millisecond; zero: unknown
}

// MaxCheckpointAge is how old a Checkpoint with messages in flight may be. A consumer remembers a
// producer for 24 h, so it recognizes retries until then.
const MaxCheckpointAge = 12 * time.Hour

// ErrCheckpointTooOld: if the messages in flight were published again, they could be stored twice.
var ErrCheckpointTooOld = errors.New("the checkpoint is too old")

// validate refuses a checkpoint that can never have been passed to Save.
func (r *Resume) validate() error {
	if err := ValidateType(r.Type); err != nil {
		return badOption("Resume.Type: %w", err)
	}
	c := r.From
	switch {
	case r.Save == nil:
		return badOption("Resume.Save is missing; set it to a function that makes the Checkpoint durable")
	case c.InFlight < 0 || c.InFlight > DefaultBatchMessages || c.N > MaxN-DefaultBatchMessages || c.Producer == 0 && c != Checkpoint{}:
		return badOption("Resume.From is %+v, which was never passed to Save; use the last saved Checkpoint, or the zero value to begin", c)
	}
	return nil
}

// checkAge refuses a checkpoint whose messages consumers may have forgotten. now is the queue's
// clock, here that of this machine.
//
// rule: it must be young by both clocks: one may be behind now, or have been ahead when it was saved.
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

// rested returns how long ago the messages before the checkpoint were sent. now is the queue's clock, here that of this machine.
//
// rule: the shorter time counts. After a clock was set forward, messages under a new producer number could overtake those before the checkpoint.
func (r *Resume) rested(now, here time.Time) time.Duration {
	rested := now.Sub(r.From.Time)
	if !r.From.Sent.IsZero() {
		rested = min(rested, here.Sub(r.From.Sent))
	}
	return max(rested, 0)
}

// resume refuses messages that do not belong to the stream, or that follow one that was not accepted.
// For those that are published again, it sets the ID that they had.
func (p *Publisher) resume(it *item, m *Message) error {
	r := p.opt.Resume
	if r == nil {
		return nil
	}
	if m.Type != r.Type {
		return fmt.Errorf("publish: not sent: this publisher continues type %s and takes no messages of %s", r.Type, m.Type)
	}
	if !m.Due.IsZero() {
		return errors.New("publish: not sent: a publisher with Resume delays no messages")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.offered++; p.offered <= r.From.InFlight {
		it.earlier = NewID(r.From.Time, r.From.Producer, r.From.N+uint64(p.offered))
	}
	if p.refused != nil { // rule: no message is accepted after one that was not
		return brokenError(p.refused)
	}
	return nil
}

// refuseItem returns the outcome of an item that was not accepted. With Resume, no later one is
// accepted.
func (p *Publisher) refuseItem(it *item, err error) Result {
	if p.opt.Resume != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.refused == nil {
			p.refused = err
		}
		for _, s := range p.streams {
			s.signal() // it may be waiting for this one
		}
	}
	return it.rejected(err)
}

// breakOff makes a stream accept nothing more, with Resume. p.mu is held.
func (s *stream) breakOff(err error) {
	if s.p.opt.Resume != nil && s.broken == nil {
		s.broken = err
		s.signal()
	}
}

// begin makes a new stream continue from the checkpoint. Only the first stream of a publisher does: a
// later one has nothing in flight. p.mu is held.
func (s *stream) begin() {
	r := s.p.opt.Resume
	if r == nil || s.p.resumed {
		return
	}
	s.p.resumed = true
	if c := r.From; c.Producer != 0 {
		s.producer, s.n, s.repeat, s.floor = c.Producer, c.N, c.InFlight, c.Time
		s.rest(r.rested(s.p.clock.now(), time.Now().Round(0)))
	}
}

// rest makes a stream that continues from a checkpoint take a new producer number if it has rested for long enough. p.mu is held.
//
// rule: the messages before the checkpoint may have been stored up to RepeatFor after the time in their IDs. The pause before a new number
// counts from then.
func (s *stream) rest(rested time.Duration) {
	s.stored = clock.StartAgo(rested)
	rotates := rested+rotationPause >= s.p.opt.IdleRotate // possibly before the first batch is formed
	if late := s.p.opt.RepeatFor + rotationPause - rested; rotates && late > 0 && s.repeat == 0 {
		s.notBefore = time.Now().Add(min(late, rotationPause))
	}
}

// awaitRepeat reports whether the stream must wait for more of the messages that were in flight: they
// must be sent again together.
func (s *stream) awaitRepeat() bool { return s.live < s.repeat }

// takeRepeat forms the batch that was in flight again, with the same IDs, from the messages that have
// arrived. p.mu is held.
func (s *stream) takeRepeat() []*item {
	var batch []*item
	for len(batch) < s.repeat && s.live > 0 {
		it := s.waiting[0]
		if it.state == itemWaiting {
			s.n++
			it.msg.ID = NewID(s.floor, s.producer, s.n) // rule: the same IDs, so messages that landed are recognised
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

// checkpoint saves the state of the stream before batch is sent. If that fails, it rejects batch and
// returns false.
func (s *stream) checkpoint(batch []*item) bool {
	r := s.p.opt.Resume
	if r == nil || s.repeat > 0 { // a repeated batch was saved before it was sent for the first time
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
	s.breakOff(err)
	s.p.mu.Unlock()
	return false
}

// sent records that the batch that was in flight has been sent again.
func (s *stream) sent() {
	s.p.mu.Lock()
	s.repeat = 0
	s.p.mu.Unlock()
}

// brokenError is the error of messages that follow one that was not stored.
func brokenError(cause error) error {
	return fmt.Errorf("publish: not sent: a message before it is not certain to be stored: %w", cause)
}
