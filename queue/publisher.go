package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fencepost/fencepost/internal/clock"
)

// Status is the outcome of a published message.
type Status int

const (
	// Stored: durable in the queue, for certain.
	Stored Status = iota + 1
	// Unknown: it may or may not be stored, now or later. If it is, then under Result.ID.
	Unknown
	// Rejected: not stored and never will be.
	Rejected
)

func (s Status) String() string {
	switch s {
	case Stored:
		return "stored"
	case Unknown:
		return "unknown"
	case Rejected:
		return "rejected"
	}
	return fmt.Sprintf("Status(%d)", int(s))
}

// Result is the outcome of one message.
type Result struct {
	ID     ID // zero when Rejected
	Status Status
	Err    error // nil when Stored; wraps ErrUnknown when Unknown
}

// PublisherStats are counters since [NewPublisher], except Buffered.
type PublisherStats struct {
	Stored, Unknown, Rejected uint64 // accepted messages, by outcome
	Batches                   uint64 // batches settled
	Repeats                   uint64 // attempts beyond the first of a batch
	Rotations                 uint64 // new producer numbers taken after a failure
	Notifications             uint64 // notifications of workers that succeeded …
	NotificationsFailed       uint64 // … and that failed: workers find the messages later
	Buffered                  int    // messages that are accepted and not settled, now
}

// Publisher publishes messages to a Queue. There is one stream per type, and one goroutine per
// stream:
//
//	callers ──▶ buffer (bounded) ──▶ batch ──▶ Insert ──▶ all stored ──▶ next batch, same producer number
//	                                   ▲          │
//	                                   │          ├─ unclear ──▶ same documents again, with jittered pauses
//	                                   │          │                    │ for RepeatFor
//	                                   │          ▼                    ▼
//	                                   └── new producer number ◀── rest Rejected or Unknown
//
// Guarantees:
//
//   - A message reported as Stored is durable.
//   - A message reported as Rejected is not in the queue and never will be.
//   - Stored messages of one type are in the queue in the order in which they were passed in,
//     whatever failed in between.
//   - A retry never stores a message twice.
//
// One batch per type is in flight at a time, and one of its delayed messages; types are independent.
//
// Before each batch the publisher checks the type's [Settings], which it reads every two seconds while
// there is something to send. If publishing is paused, the messages are Rejected with ErrPaused. If the
// backlog is full, they wait (see BacklogWait). Several publishers together may exceed a limit by what
// they send in two seconds.
//
// After a batch is stored, the publisher notifies workers of the type, see [Notifier]: at once if it
// has not done so recently, and within a second after the last batch. No outcome waits for that.
//
// Payload and headers are copied, so the caller may reuse them as soon as a method returns. All
// methods are safe for concurrent use.
type Publisher struct {
	q     PublisherStore
	opt   PublisherOptions
	clock queueClock
	space *semaphore.Weighted // rule: accepted, unsettled messages fit into BufferBytes

	sending   context.Context // of all attempts; ends when Close gives up
	giveUp    context.CancelCauseFunc
	accepting context.Context // ends when Close begins
	refuse    context.CancelFunc
	asking    context.Context    // of requests that no outcome depends on; ends with Stop, too
	askNoMore context.CancelFunc // ends asking
	streamsWG sync.WaitGroup
	announcer *announcer

	closeOnce sync.Once
	closeDone chan struct{}
	closeErr  error // set before closeDone is closed

	mu         sync.Mutex
	closed     bool
	stopped    bool               // closed, and messages that were not sent are rejected
	streams    map[string]*stream // by streamKey
	registered map[string]bool    // types that this publisher has registered
	stats      PublisherStats
	controls   controls
	resumed    bool  // Resume.From was handed to a stream
	offered    int   // with Resume: messages that callers wanted to publish
	refused    error // with Resume: why one of them was not accepted, and so no later one is
}

// PublisherStore is what a Publisher needs from a queue.
type PublisherStore interface {
	Clock
	Inserter
	AdmissionStore
	Notifier
}

// Inserter stores published messages, see [MessageStore], [DelayedStore] and [TypeRegistry].
type Inserter interface {
	Insert(ctx context.Context, typ string, msgs []Message) error
	Delay(ctx context.Context, msgs []Message) error
	RegisterType(ctx context.Context, typ string) error
}

// AdmissionStore says whether messages of a type may be published now, see [SettingsStore] and
// [MessageStore].
type AdmissionStore interface {
	AllSettings(ctx context.Context) (map[string]Settings, error)
	Depth(ctx context.Context, typ string, max int) (Depth, error)
}

// NewPublisher reads the queue's clock, which ctx bounds, and returns a publisher. It does not take
// ownership of q: close the publisher, then the queue. If opt is invalid, the error wraps [ErrOptions].
func NewPublisher(ctx context.Context, q PublisherStore, opt PublisherOptions) (*Publisher, error) {
	opt = opt.withDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	if q == nil {
		return nil, errors.New("publisher: there is no queue to publish to (nil); pass one, such as the Queue of a fencepost.Backend")
	}
	now, err := q.Now(ctx)
	if err != nil {
		return nil, fmt.Errorf("publisher: read the queue's clock: %w", err)
	}
	if opt.Resume != nil {
		if err := opt.Resume.checkAge(now, time.Now().Round(0)); err != nil {
			return nil, err
		}
	}
	p := &Publisher{
		q: q, opt: opt,
		clock:      queueClock{base: now, since: clock.Start()},
		space:      semaphore.NewWeighted(opt.BufferBytes),
		streams:    map[string]*stream{},
		registered: map[string]bool{},
		closeDone:  make(chan struct{}),
	}
	p.sending, p.giveUp = context.WithCancelCause(context.Background())
	p.accepting, p.refuse = context.WithCancel(context.Background())
	p.asking, p.askNoMore = context.WithCancel(p.sending)
	p.announcer = newAnnouncer(p.sending, q)
	return p, nil
}

// queueClock is the queue's clock as read once, advanced by the time that has passed since. So a
// producer's wall clock does not matter.
type queueClock struct {
	base  time.Time
	since clock.Watch
}

func (c queueClock) now() time.Time { return c.base.Add(c.since.Elapsed()) }

// Publish publishes one message and waits for its outcome. A nil error means that it is stored. An
// error that wraps ErrUnknown means that it may be, under the returned ID. Any other error means that
// it is not and never will be.
//
// If ctx ends first, a message that was not sent yet is withdrawn. Otherwise the outcome is unknown to
// the caller, while the publisher continues to retry it.
func (p *Publisher) Publish(ctx context.Context, typ string, payload []byte, headers map[string]string) (ID, error) {
	r := p.PublishAll(ctx, []Message{{Type: typ, Payload: payload, Headers: headers}})[0]
	return r.ID, r.Err
}

// PublishAll publishes messages, of one or several types, and waits for their outcomes. It returns one
// Result per message, in the same order. Messages of a type are stored in the order of msgs. Their ID
// fields are ignored. The end of ctx has the same effect as for Publish.
func (p *Publisher) PublishAll(ctx context.Context, msgs []Message) []Result {
	if len(p.opt.Use) > 0 && len(msgs) > 0 {
		return p.publishThrough(ctx, msgs)
	}
	return p.publishAll(ctx, msgs, nil)
}

// publishAll is PublishAll after the middleware has run; out is nil without middleware.
func (p *Publisher) publishAll(ctx context.Context, msgs []Message, out *Outgoing) []Result {
	c := &call{results: make([]Result, len(msgs)), done: make(chan struct{})}
	items := make([]item, len(msgs))
	var accepted []*item // have space in the buffer, and are not yet in the streams
	flush := func() {
		if err := p.push(accepted); err != nil {
			for _, it := range accepted {
				c.settle(it.index, it.rejected(err))
				p.space.Release(it.cost)
			}
		}
		accepted = accepted[:0]
	}
	for i := range msgs {
		it := &items[i]
		if err := p.prepare(ctx, it, &msgs[i], out.refusal(i)); err != nil {
			c.reject(i, p.refuseItem(it, err))
			continue
		}
		it.call, it.index = c, i
		if !p.space.TryAcquire(it.cost) {
			flush() // send accepted messages before waiting for space, which they may free
			if err := p.waitForSpace(ctx, it.cost); err != nil {
				c.reject(i, p.refuseItem(it, err))
				continue
			}
		}
		it.own()
		c.expect()
		accepted = append(accepted, it)
	}
	flush()
	c.allExpected()
	select {
	case <-c.done:
	case <-ctx.Done():
		p.abandon(ctx, c, items)
	}
	return c.results
}

// Send accepts one message and returns; done is called later with its outcome, exactly once. Use it to
// stream many messages: it blocks only while the buffer is full (BufferBytes), and ctx bounds only
// that. An error means that the message was not accepted and will never be stored, unless it wraps
// ErrUnknown: see [Resume]. Then done is not called.
//
// The callbacks of a type run one at a time, in the order of acceptance, on the goroutine that
// publishes the type: they must be quick, and must not call the publisher. Delayed messages, those with
// a Due, are published by another goroutine: their callbacks run concurrently with the type's others.
func (p *Publisher) Send(ctx context.Context, m Message, done func(Result)) error {
	if len(p.opt.Use) > 0 {
		return p.sendThrough(ctx, m, done)
	}
	return p.send(ctx, m, nil, done).Err
}

// send is Send after the middleware has run; out is nil without middleware. It returns the outcome of
// a message that was not accepted.
func (p *Publisher) send(ctx context.Context, m Message, out *Outgoing, done func(Result)) Result {
	it := &item{callback: done}
	if err := p.prepare(ctx, it, &m, out.refusal(0)); err != nil {
		return p.refuseItem(it, err)
	}
	if !p.space.TryAcquire(it.cost) {
		if err := p.waitForSpace(ctx, it.cost); err != nil {
			return p.refuseItem(it, err)
		}
	}
	it.own()
	if err := p.push([]*item{it}); err != nil {
		p.space.Release(it.cost)
		return it.rejected(err)
	}
	return Result{}
}

// Stats returns the counters.
func (p *Publisher) Stats() PublisherStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, a := p.stats, p.announcer
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Notifications, s.NotificationsFailed = a.sent, a.failed
	return s
}

// closeGrace is how long Close waits, after the end of its context, for attempts that it has cancelled and for callbacks.
const closeGrace = 2 * time.Second

// Close accepts no more messages, publishes those it has accepted, and waits for their outcomes and for
// the publisher's goroutines. That can take as long as the queue is unreachable (RepeatFor) or a
// backlog is full (BacklogWait), and 45 s more after a failure: pass a context with a deadline. If ctx
// ends first, messages that were sent become Unknown, others Rejected, and the error says how many.
// A callback (of Send, OnRepeat, Resume.Save) or a request to the queue that then does not return within
// 2 s may still run after Close, and so may the callbacks of the messages behind it: the error says so.
//
// The first call decides: later ones wait, until their own ctx ends, for its result and return it.
// Close does not close the queue.
func (p *Publisher) Close(ctx context.Context) error {
	first := false
	p.closeOnce.Do(func() { first = true })
	if first {
		p.closeErr = p.shutdown(ctx)
		close(p.closeDone)
	}
	select {
	case <-p.closeDone:
		return p.closeErr
	default:
	}
	select {
	case <-p.closeDone:
		return p.closeErr
	case <-ctx.Done():
		return fmt.Errorf("publisher: an earlier call of Close has not ended: %w", context.Cause(ctx))
	}
}

// shutdown is the first Close.
func (p *Publisher) shutdown(ctx context.Context) error {
	p.end(false)
	finished := make(chan struct{})
	go func() { p.streamsWG.Wait(); p.announcer.close(); close(finished) }()
	select {
	case <-finished:
		p.giveUp(ErrClosed) // nothing is in flight: this only frees the context
		return nil
	case <-ctx.Done():
	}
	left := p.Stats().Buffered
	p.giveUp(fmt.Errorf("publisher %w before the batch was settled: %w", ErrClosed, context.Cause(ctx)))
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-finished: // usually at once: every Insert ends with its context
	case <-grace.C:
		return fmt.Errorf("publisher: closed with %d messages unsettled, while a callback, which must be quick, or a request to the queue has not returned: %w", left, context.Cause(ctx))
	}
	if left == 0 {
		return nil
	}
	return fmt.Errorf("publisher: closed with %d messages unsettled: %w", left, context.Cause(ctx))
}

// Stop shortens Close: it accepts no more messages, and rejects those that were accepted and not yet
// sent, without waiting for settings or room in a backlog. Messages that were sent may be stored, so
// the publisher continues to retry them: call Close to wait for that.
func (p *Publisher) Stop() {
	p.end(true)
	p.askNoMore()
}

// end makes the publisher accept no more messages; with stop, it also rejects what was not sent.
func (p *Publisher) end(stop bool) {
	p.mu.Lock()
	p.closed, p.stopped = true, p.stopped || stop
	for _, s := range p.streams {
		s.signal()
	}
	p.mu.Unlock()
	p.refuse()
}

// prepare validates m and fills the item it. If a middleware has refused m, refused is its error.
// Nothing is copied yet: the buffer must have space first.
func (p *Publisher) prepare(ctx context.Context, it *item, m *Message, refused error) error {
	if err := p.resume(it, m); err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	if err := m.Validate(); err != nil {
		return err
	}
	if m.Incomplete {
		return fmt.Errorf("publish: %w", ErrIncomplete)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish: not sent: %w", context.Cause(ctx))
	}
	if !m.Due.IsZero() {
		if err := ValidateDue(m.Due); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	it.msg = Message{Type: m.Type, Payload: m.Payload, Headers: m.Headers, Due: p.delayUntil(m.Due)}
	it.size = m.Size()
	it.cost = min(int64(it.size), p.opt.BufferBytes)
	return nil
}

// own copies the caller's payload and headers.
//
// rule: a retry sends the same bytes, even if the caller has returned and reuses its buffers.
func (it *item) own() {
	it.msg.Payload, it.msg.Headers = bytes.Clone(it.msg.Payload), maps.Clone(it.msg.Headers)
}

// waitForSpace makes callers wait, in order of arrival, while the buffer is full.
func (p *Publisher) waitForSpace(ctx context.Context, cost int64) error {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.accepting, cancel)()
	if err := p.space.Acquire(both, cost); err != nil {
		if ctx.Err() == nil {
			return fmt.Errorf("publish: not sent: publisher %w", ErrClosed)
		}
		return fmt.Errorf("publish: not sent, the publisher's buffer is full: %w", context.Cause(ctx))
	}
	return nil
}

// push passes items, which have space in the buffer, to their streams.
func (p *Publisher) push(items []*item) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("publish: not sent: publisher %w", ErrClosed)
	}
	now := time.Now()
	for _, it := range items {
		key := streamKey(it.msg.Type, !it.msg.Due.IsZero())
		s := p.streams[key]
		if s == nil {
			s = newStream(p, it.msg.Type, !it.msg.Due.IsZero())
			p.streams[key] = s
			p.streamsWG.Go(s.run)
		}
		it.since = now
		s.waiting = append(s.waiting, it)
		s.live++
		s.liveBytes += it.size
		p.stats.Buffered++
		s.signal()
	}
	return nil
}

// abandon settles the unsettled messages of c for its caller, who stops waiting because ctx has ended.
func (p *Publisher) abandon(ctx context.Context, c *call, items []item) {
	cause := context.Cause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detached = true
	for i := range items {
		it := &items[i]
		if c.results[i].Status != 0 {
			continue
		}
		switch it.state {
		case itemWaiting:
			p.streams[streamKey(it.msg.Type, !it.msg.Due.IsZero())].withdraw(it, fmt.Errorf("publish: withdrawn before it was sent: %w", cause))
			c.results[i] = it.result
		case itemSettled: // the stream has the outcome, and is about to report it
			c.results[i] = it.result
		case itemSent:
			c.results[i] = Result{ID: it.msg.ID, Status: Unknown, Err: unknownError(cause)}
		}
	}
}

func unknownError(cause error) error { return fmt.Errorf("%w: %w", ErrUnknown, cause) }

// call collects the outcomes of one PublishAll.
type call struct {
	mu       sync.Mutex
	results  []Result // guarded by mu until done is closed or detached is set
	left     int
	complete bool // all messages are counted in left
	detached bool // the caller has returned
	done     chan struct{}
}

// expect counts one more message whose outcome a stream will report.
func (c *call) expect() { c.mu.Lock(); c.left++; c.mu.Unlock() }

// allExpected marks that expect will not be called again: from now on the last outcome ends the call.
func (c *call) allExpected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complete = true
	if c.left == 0 {
		close(c.done)
	}
}

// reject settles a message that is not passed to a stream.
func (c *call) reject(i int, r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[i] = r
}

// settle records an outcome, unless the caller has returned: then its results must not be written to.
func (c *call) settle(i int, r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached {
		return
	}
	c.results[i] = r
	if c.left--; c.left == 0 && c.complete {
		close(c.done)
	}
}
