package queue

import (
	"context"
	"time"
)

// item is one accepted message on its way. Fields below the line are guarded by Publisher.mu.
type item struct {
	msg      Message
	size     int   // Message.Size
	cost     int64 // space taken
	since    time.Time
	callback func(Result) // Send
	call     *call        // PublishAll
	index    int          // in call
	// ---
	state  itemState
	result Result // once settled
}

type itemState int8

const (
	itemWaiting   itemState = iota
	itemWithdrawn           // its caller gave up before it was sent
	itemSent                // has an ID, is part of a batch
	itemSettled
)

// stream publishes the messages of one type, batch after batch.
type stream struct {
	p       *Publisher
	typ     string
	delayed bool          // of messages with a Due
	wake    chan struct{} // capacity 1

	// guarded by p.mu
	waiting   []*item // may contain withdrawn items
	live      int     // waiting and not withdrawn
	liveBytes int
	producer  uint64    // rule: random, and new after every failure
	n         uint64    // last counter given out under producer
	notBefore time.Time // earliest next batch
	stored    time.Time // when messages were last stored
	backlog   backlog
	floor     time.Time // ID time must not be before this
	repeat    int       // the first batch, and its size: it was sent before, see Resume
	broken    error     // why a stream with Resume takes no more messages
}

func newStream(p *Publisher, typ string, delayed bool) *stream {
	s := &stream{p: p, typ: typ, delayed: delayed, wake: make(chan struct{}, 1), producer: newProducerNumber()}
	s.begin()
	return s
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// withdraw takes an item back that was never sent. Called with p.mu held.
func (s *stream) withdraw(it *item) {
	it.state = itemWithdrawn
	s.live--
	s.liveBytes -= it.size
	s.p.stats.Buffered--
	s.p.stats.Rejected++
	s.p.space.Release(it.cost)
	if len(s.waiting) > 64 && s.live < len(s.waiting)/2 { // during an outage, callers come and go
		kept := make([]*item, 0, s.live)
		for _, it := range s.waiting {
			if it.state == itemWaiting {
				kept = append(kept, it)
			}
		}
		s.waiting = kept
	}
}

// run is the stream's goroutine. It ends when the publisher is closed and nothing is left, or when
// the type was idle.
func (s *stream) run() {
	for {
		batch := s.next()
		if batch == nil {
			return
		}
		if !s.checkpoint(batch) { // rule: the numbers are known before they are used
			continue
		}
		// rule: one batch in flight per (producer, type): the next one is not even formed before this one is settled
		s.send(batch)
		s.sent()
	}
}

// next waits for messages and forms a batch. nil means: the stream is over.
func (s *stream) next() []*item {
	p := s.p
	idleSince := time.Now()
	for {
		p.mu.Lock()
		var wait time.Duration
		switch {
		case s.live > 0:
			if wait = s.hold(); wait > 0 {
				break
			}
			a := s.admit()
			switch {
			case a.room > 0:
				batch := s.take(a.room)
				p.mu.Unlock()
				return batch
			case a.refused != nil:
				refused := s.refuse(a.items, a.refused)
				p.mu.Unlock()
				s.report(refused)
				continue
			case a.unsent != nil:
				batch := s.takeRepeat()
				s.repeat, s.broken = 0, a.unsent
				p.mu.Unlock()
				s.settle(batch, Unknown, unknownError(a.unsent))
				continue
			case a.ask != nil:
				p.mu.Unlock()
				a.ask()
				continue
			}
			wait = a.wait
		case p.closed:
			delete(p.streams, streamKey(s.typ, s.delayed))
			p.mu.Unlock()
			return nil
		default:
			// rule: an idle stream ends, and with it its producer number, long before a consumer forgets the number
			if wait = max(p.opt.IdleRotate-time.Since(idleSince), s.hold()); wait <= 0 {
				delete(p.streams, streamKey(s.typ, s.delayed))
				p.mu.Unlock()
				return nil
			}
		}
		p.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-p.sending.Done(): // Close gave up: send rejects what waits
		}
		timer.Stop()
	}
}

// hold tells how long the next batch has to wait. Called with p.mu held.
func (s *stream) hold() time.Duration {
	if s.p.sending.Err() != nil || s.p.stopped {
		return 0
	}
	if s.awaitRepeat() && !s.p.closed {
		return time.Hour // until they come
	}
	pause := time.Until(s.notBefore) // after a failure: not even Close shortens it, for the sake of order
	if s.live == 0 || s.p.closed || s.live >= s.p.opt.BatchMessages || s.liveBytes >= s.p.opt.BatchBytes {
		return pause
	}
	oldest := s.waiting[0].since // of a withdrawn item perhaps: then the batch leaves a little early
	return max(pause, time.Until(oldest.Add(s.p.opt.Linger)))
}

// take forms the next batch, of at most so many messages, and gives it IDs. Called with p.mu held
// and s.live > 0.
func (s *stream) take(most int) []*item {
	if s.repeat > 0 {
		return s.takeRepeat()
	}
	now := s.p.clock.now() // rule: ID time never decreases within a stream
	if now.Before(s.floor) {
		now = s.floor // another process's clock may have been ahead
	}
	s.floor = now
	// rule: nor does a stream that could not send for long keep its number, see next. No pause is needed: everybody has read
	// what it stored.
	if s.n > 0 && time.Since(s.stored) >= s.p.opt.IdleRotate {
		s.producer, s.n = newProducerNumber(), 0
	}
	most = min(most, s.live, s.p.opt.BatchMessages)
	s.backlog.room -= most // one without a limit has none
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

// settle reports the outcome of messages, in order.
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

// mark settles messages. Called with p.mu held; report follows.
func (s *stream) mark(batch []*item, status Status, err error) {
	if status == Stored {
		s.stored = time.Now()
	}
	for _, it := range batch {
		it.state = itemSettled
		it.result = Result{Status: status, Err: err}
		if status != Rejected {
			it.result.ID = it.msg.ID
		}
	}
	st := &s.p.stats
	st.Buffered -= len(batch)
	switch status {
	case Stored:
		st.Stored += uint64(len(batch))
	case Unknown:
		st.Unknown += uint64(len(batch))
	case Rejected:
		st.Rejected += uint64(len(batch))
	}
}

// report tells callers the outcomes that mark has noted.
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

// register makes the type known, once, after the first stored batch. It is a convenience for Types,
// which finds types that merely have messages too: a failure is tried again after the next batch
// and never delays an outcome.
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
