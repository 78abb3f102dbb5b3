package queue

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
)

// item is one accepted message until it is settled. Fields below the line are guarded by Publisher.mu.
type item struct {
	msg      Message
	size     int          // Message.Size
	cost     int64        // space in the buffer that it takes
	since    time.Time    // when it was accepted
	callback func(Result) // of Send; else nil
	call     *call        // of PublishAll; else nil
	index    int          // in call
	earlier  ID           // with Resume: an earlier process may have stored it under this ID; else zero
	// ---
	state  itemState
	result Result // once settled
}

// itemState only moves forward: waiting, then withdrawn, or sent and settled; a refused item is settled without being sent.
type itemState int8

const (
	itemWaiting   itemState = iota // in stream.waiting
	itemWithdrawn                  // its caller stopped waiting before it was sent
	itemSent                       // it has an ID and is part of a batch
	itemSettled                    // result is set
)

// stream publishes the messages of one type, batch after batch, on a goroutine of its own.
type stream struct {
	p       *Publisher
	typ     string
	delayed bool          // its messages have a Due
	wake    chan struct{} // something has changed; capacity 1

	// guarded by p.mu
	waiting   []*item     // in order; may contain withdrawn items
	live      int         // number of waiting items that are not withdrawn
	liveBytes int         // their size
	producer  uint64      // rule: random, and new after every failure
	n         uint64      // last number given under producer
	notBefore time.Time   // do not send the next batch before
	stored    clock.Watch // since messages were last stored; zero: none were
	backlog   backlog
	floor     time.Time // ID times must not be before this
	repeat    int       // with Resume: size of the first batch, if an earlier process may have sent it; then 0
	broken    error     // with Resume: why the stream accepts no more messages
}

// newStream returns a stream with a new producer number, or with Resume one that continues. p.mu is held.
func newStream(p *Publisher, typ string, delayed bool) *stream {
	s := &stream{p: p, typ: typ, delayed: delayed, wake: make(chan struct{}, 1), producer: newProducerNumber()}
	s.begin()
	return s
}

// signal wakes the stream's goroutine.
func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// withdraw removes an item that was never sent. p.mu is held.
func (s *stream) withdraw(it *item, err error) {
	s.mark([]*item{it}, Rejected, err)
	it.state = itemWithdrawn
	s.live--
	s.liveBytes -= it.size
	s.p.space.Release(it.cost)
	s.breakOff(err) // rule: with Resume, messages after a withdrawn one are not sent

	if len(s.waiting) > 64 && s.live < len(s.waiting)/2 { // during an outage many callers may withdraw: free their items
		kept := make([]*item, 0, s.live)
		for _, it := range s.waiting {
			if it.state == itemWaiting {
				kept = append(kept, it)
			}
		}
		s.waiting = kept
	}
}

// run is the stream's goroutine. It ends when the publisher is closed and nothing is left, or when the
// type has been idle for IdleRotate.
func (s *stream) run() {
	for {
		batch := s.next()
		if batch == nil {
			return
		}
		if !s.checkpoint(batch) { // rule: with Resume, the numbers are saved before they are used
			continue
		}
		// rule: one batch in flight per (producer, type): the next one is not even formed before this one is settled
		s.send(batch)
		s.sent()
	}
}

// next waits for messages and forms the next batch. nil means that the stream has ended.
func (s *stream) next() []*item {
	idleSince := time.Now()
	for {
		switch d := s.decide(idleSince); {
		case d.ended || d.batch != nil:
			return d.batch
		case d.ask != nil:
			d.ask()
		case d.refused != nil:
			s.report(d.refused)
		default:
			s.sleep(d.wait)
		}
	}
}

// decision is what the stream's goroutine does next. Without another field it waits.
type decision struct {
	batch   []*item // send these
	refused []*item // report these
	ask     func()  // call this without Publisher.mu
	ended   bool    // end: the stream is removed from the publisher
	wait    time.Duration
}

func (s *stream) decide(idleSince time.Time) decision {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.live == 0 {
		return s.decideIdle(idleSince)
	}
	if wait := s.hold(); wait > 0 {
		return decision{wait: wait}
	}
	a := s.admit()
	switch {
	case a.room > 0:
		return decision{batch: s.take(a.room)}
	case a.refused != nil:
		return decision{refused: s.refuse(a.items, a.refused)}
	}
	return decision{ask: a.ask, wait: a.wait}
}

// decideIdle is decide without a message to send. p.mu is held.
func (s *stream) decideIdle(idleSince time.Time) decision {
	p := s.p
	wait := max(p.opt.IdleRotate-time.Since(idleSince), s.hold())
	switch {
	case p.closed:
	case s.broken != nil: // rule: a stream that accepts nothing more stays, so that no new one of its type begins after the lost messages
		return decision{wait: time.Hour} // until signal
	// rule: an idle stream ends, and with it its producer number, long before a consumer forgets the number
	case wait > 0:
		return decision{wait: wait}
	}
	delete(p.streams, streamKey(s.typ, s.delayed))
	return decision{ended: true}
}

// sleep waits for d, a signal, or the moment when Close gives up: then admit rejects the waiting messages.
func (s *stream) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	case <-s.p.sending.Done():
	}
}

// hold returns how long the next batch has to wait. p.mu is held.
func (s *stream) hold() time.Duration {
	if s.p.sending.Err() != nil || s.p.stopped {
		return 0
	}
	if s.awaitRepeat() && !s.p.closed && s.p.refused == nil && s.broken == nil {
		return time.Hour // until signal
	}
	pause := time.Until(s.notBefore) // after a failure; even Close must wait, because it preserves the order
	if s.live == 0 || s.p.closed || s.live >= s.p.opt.BatchMessages || s.liveBytes >= s.p.opt.BatchBytes {
		return pause
	}
	oldest := s.waiting[0].since // the item may be withdrawn: then the batch is sent a little early
	return max(pause, time.Until(oldest.Add(s.p.opt.Linger)))
}

// take forms the next batch, of up to most messages, and gives it IDs. p.mu is held and s.live > 0.
func (s *stream) take(most int) []*item {
	if s.repeat > 0 {
		return s.takeRepeat()
	}
	now := s.p.clock.now() // rule: ID time never decreases within a stream
	if now.Before(s.floor) {
		now = s.floor // another process's clock may have been ahead
	}
	s.floor = now
	// rule: a stream that could not send for long does not keep its number either, see next. No pause is needed: consumers have read
	// all that it stored.
	if s.n > 0 && s.stored.Elapsed() >= s.p.opt.IdleRotate {
		s.producer, s.n = newProducerNumber(), 0
	}
	most = min(most, s.live, s.p.opt.BatchMessages)
	s.backlog.room -= most // not used without a limit
	batch := make([]*item, 0, most)
	size := 0
	for len(s.waiting) > 0 && len(batch) < most {
		it := s.waiting[0]
		if it.state == itemWaiting {
			if len(batch) > 0 && size+it.size > s.p.opt.BatchBytes {
				break
			}
			size += it.size
			s.n++ // rule: n is dense; withdrawn items never get one
			it.msg.ID = NewID(now, s.producer, s.n)
			it.state = itemSent
			batch = append(batch, it)
		}
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
	}
	s.live -= len(batch)
	s.liveBytes -= size
	return batch
}

// settle sets and reports the outcome of messages, in order.
func (s *stream) settle(batch []*item, status Status, err error) {
	if len(batch) == 0 {
		return
	}
	s.p.mu.Lock()
	s.mark(batch, status, err)
	s.p.mu.Unlock()
	s.report(batch)
	if status != Rejected && !s.delayed {
		s.p.announcer.note(s.typ)
	}
}

// mark sets the outcome of messages. p.mu is held; the caller then calls report.
func (s *stream) mark(batch []*item, status Status, err error) {
	if status == Stored {
		s.stored = clock.Start()
	}
	st := &s.p.stats
	st.Buffered -= len(batch)
	for _, it := range batch {
		it.state = itemSettled
		it.result = Result{ID: it.msg.ID, Status: status, Err: err}
		if status == Rejected {
			it.result = it.rejected(err)
		}
		switch it.result.Status {
		case Stored:
			st.Stored++
		case Unknown:
			st.Unknown++
		case Rejected:
			st.Rejected++
		}
	}
}

// rejected is the outcome of an item that is not sent.
func (it *item) rejected(err error) Result {
	if !it.earlier.IsZero() { // rule: this process did not send it, but an earlier one may have stored it
		return Result{ID: it.earlier, Status: Unknown, Err: unknownError(err)}
	}
	return Result{Status: Rejected, Err: err}
}

// report passes the outcomes that mark has set to the callers, and frees space in the buffer.
func (s *stream) report(batch []*item) {
	var space int64
	for _, it := range batch {
		space += it.cost
	}
	s.p.space.Release(space)
	for _, it := range batch {
		if it.call != nil {
			it.call.settle(it.index, it.result)
		}
		if it.callback != nil {
			it.callback(it.result)
		}
	}
}

// register registers the type once, after the first stored batch. It only helps Types, which also
// finds unregistered types while they have messages. So a failure delays no outcome, and the next batch
// tries again.
func (s *stream) register() {
	p := s.p
	p.mu.Lock()
	known := p.registered[s.typ]
	p.mu.Unlock()
	if known {
		return
	}
	ctx, cancel := context.WithTimeout(p.asking, p.opt.AttemptTimeout)
	defer cancel()
	if err := p.q.RegisterType(ctx, s.typ); err == nil {
		p.mu.Lock()
		p.registered[s.typ] = true
		p.mu.Unlock()
	}
}
