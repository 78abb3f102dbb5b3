package queue

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fencepost/fencepost/internal/clock"
)

// Status is what became of a published message.
type Status int

const (
	// Stored: durable in the queue, for certain.
	Stored Status = iota + 1
	// Unknown: it may or may not be stored, now or later. Result.ID tells under which ID.
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

// PublisherStats counts since NewPublisher, except Buffered.
type PublisherStats struct {
	Stored, Unknown, Rejected uint64 // messages whose outcome is settled; Rejected without those that were never accepted
	Batches                   uint64 // batches settled
	Repeats                   uint64 // attempts beyond the first of a batch
	Rotations                 uint64 // new producer numbers taken after a failure
	Notifications             uint64 // writes that told workers which types have new messages …
	NotificationsFailed       uint64 // … and those that failed: workers find the messages later
	Buffered                  int    // messages accepted and not settled
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
// Its guarantees: a message reported as Stored is durable; a message reported as Rejected is not in
// the queue and never will be; Stored messages of one type are in the queue in the order in which
// they were passed in, whatever failed in between; a repetition never stores a message twice. One
// batch per type is in flight at a time, types go in parallel.
//
// Before a batch is formed its type's Settings are looked at, which are read every two seconds
// while there is something to send: when publishing is paused its messages are Rejected with
// ErrPaused; when the backlog has reached its limit they wait (see BacklogWait). Several publishers
// together exceed a limit by what they send in two seconds at most.
//
// Behind a batch that is stored workers are notified of its type, see Notifier: at once if that was
// not done lately, and once more within a second after the last batch. No outcome waits for it.
//
// Payload and headers are copied, so the caller may reuse them as soon as a method returns. All
// methods are safe for concurrent use.
type Publisher struct {
	q     PublisherStore
	opt   PublisherOptions
	clock queueClock
	space *semaphore.Weighted // rule: what is accepted and not settled fits into BufferBytes

	sending   context.Context // of all attempts; ends when Close gives up
	giveUp    context.CancelCauseFunc
	accepting context.Context // ends when Close begins
	refuse    context.CancelFunc
	asking    context.Context // of requests that no outcome depends on; ends with Stop, too
	askNoMore context.CancelFunc
	streamsWG sync.WaitGroup
	announcer *announcer

	mu         sync.Mutex
	closed     bool
	stopped    bool // closed, and what was not sent is not going to be
	streams    map[string]*stream
	registered map[string]bool
	stats      PublisherStats
	controls   controls
	resumed    bool // Resume.From was handed to a stream
}

// PublisherStore is what a Publisher needs of a queue.
type PublisherStore interface {
	Clock
	Inserter
	AdmissionStore
	Notifier
}

// Inserter takes what is published, see MessageStore, DelayedStore and TypeRegistry.
type Inserter interface {
	Insert(ctx context.Context, typ string, msgs []Message) error
	Delay(ctx context.Context, msgs []Message) error
	RegisterType(ctx context.Context, typ string) error
}

// AdmissionStore tells whether a type may be published to now, see SettingsStore and MessageStore.
type AdmissionStore interface {
	AllSettings(ctx context.Context) (map[string]Settings, error)
	Depth(ctx context.Context, typ string, max int) (Depth, error)
}

// NewPublisher reads the queue's clock and returns a publisher. ctx bounds only that. The queue
// stays the caller's: close the publisher first.
func NewPublisher(ctx context.Context, q PublisherStore, opt PublisherOptions) (*Publisher, error) {
	opt = opt.withDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
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
	}
	p.sending, p.giveUp = context.WithCancelCause(context.Background())
	p.accepting, p.refuse = context.WithCancel(context.Background())
	p.asking, p.askNoMore = context.WithCancel(p.sending)
	p.announcer = newAnnouncer(p.sending, q)
	return p, nil
}

// queueClock is the queue's clock as read once, advanced by what has passed since: no wall clock of
// a producer matters.
type queueClock struct {
	base  time.Time
	since clock.Watch
}

func (c queueClock) now() time.Time { return c.base.Add(c.since.Elapsed()) }

// Publish publishes one message and waits for its outcome. A nil error means it is stored. An error
// that wraps ErrUnknown means it may be, under the returned ID; any other error means it is not and
// never will be.
//
// When ctx ends first, a message that was not yet sent is withdrawn; otherwise the outcome is
// unknown to the caller, while the publisher goes on settling it.
func (p *Publisher) Publish(ctx context.Context, typ string, payload []byte, headers map[string]string) (ID, error) {
	r := p.PublishAll(ctx, []Message{{Type: typ, Payload: payload, Headers: headers}})[0]
	return r.ID, r.Err
}

// PublishAll publishes messages, of one or several types, and waits for their outcomes. It returns
// one Result per message, in the same order. Messages of a type are stored in the order of msgs. ID
// fields of msgs are ignored. For the end of ctx see Publish.
func (p *Publisher) PublishAll(ctx context.Context, msgs []Message) []Result {
	if len(p.opt.Use) > 0 && len(msgs) > 0 {
		return p.publishThrough(ctx, msgs)
	}
	return p.publishAll(ctx, msgs)
}

func (p *Publisher) publishAll(ctx context.Context, msgs []Message) []Result {
	c := &call{results: make([]Result, len(msgs)), done: make(chan struct{})}
	items := make([]item, len(msgs))
	var accepted []*item // space is taken, not yet handed to the streams
	flush := func() {
		if err := p.push(accepted); err != nil {
			for _, it := range accepted {
				c.settle(it.index, Result{Status: Rejected, Err: err})
				p.space.Release(it.cost)
			}
		}
		accepted = accepted[:0]
	}
	for i := range msgs {
		it := &items[i]
		if err := p.prepare(ctx, it, &msgs[i]); err != nil {
			c.reject(i, err)
			continue
		}
		it.call, it.index = c, i
		if !p.space.TryAcquire(it.cost) {
			flush() // what is accepted must be on its way before we wait for space
			if err := p.waitForSpace(ctx, it.cost); err != nil {
				c.reject(i, err)
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

// Send accepts one message and returns; done is called with its outcome later, exactly once. It is
// the form for streaming millions of messages: it waits only when the buffer is full (BufferBytes),
// and only that wait ends with ctx. An error means that the message was not accepted and never will
// be stored; done is not called then.
//
// Callbacks of a type run one at a time, in the order of acceptance, on the goroutine that
// publishes the type: they must be quick, and must not call the publisher.
func (p *Publisher) Send(ctx context.Context, m Message, done func(Result)) error {
	if len(p.opt.Use) > 0 {
		return p.sendThrough(ctx, m, done)
	}
	return p.send(ctx, m, done)
}

func (p *Publisher) send(ctx context.Context, m Message, done func(Result)) error {
	it := &item{callback: done}
	if err := p.prepare(ctx, it, &m); err != nil {
		return err
	}
	if !p.space.TryAcquire(it.cost) {
		if err := p.waitForSpace(ctx, it.cost); err != nil {
			return err
		}
	}
	it.own()
	if err := p.push([]*item{it}); err != nil {
		p.space.Release(it.cost)
		return err
	}
	return nil
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

// Close accepts no more messages, publishes those it has accepted, and waits for their outcomes and
// for the publisher's goroutines. That may take as long as the queue is out of reach (RepeatFor) or
// a backlog is full (BacklogWait), and 45 s more after a failure (see rotationPause): give it a
// context with a deadline. When ctx ends first, it gives up: what was sent becomes Unknown, what
// was not becomes Rejected. The error then says how many. Closing twice is no error. Close leaves
// the queue open.
func (p *Publisher) Close(ctx context.Context) error {
	p.end(false)
	finished := make(chan struct{})
	go func() { p.streamsWG.Wait(); p.announcer.close(); close(finished) }()
	select {
	case <-finished:
		p.giveUp(ErrClosed) // nothing is left to give up: frees the context
		return nil
	case <-ctx.Done():
	}
	left := p.Stats().Buffered
	p.giveUp(fmt.Errorf("publisher %w before the batch was settled: %w", ErrClosed, context.Cause(ctx)))
	<-finished // bounded: every Insert ends with its context
	if left == 0 {
		return nil
	}
	return fmt.Errorf("publisher: closed with %d messages unsettled: %w", left, context.Cause(ctx))
}

// Stop is for who does not want to wait as long as Close may take: it accepts no more messages, and
// those that were accepted and never sent are Rejected, without waiting for what the queue was
// asked about them (how long the backlog is). What was sent may have landed, so it goes on to be
// settled: Close waits for that.
func (p *Publisher) Stop() {
	p.end(true)
	p.askNoMore()
}

// end accepts no more messages.
func (p *Publisher) end(stop bool) {
	p.mu.Lock()
	p.closed, p.stopped = true, p.stopped || stop
	for _, s := range p.streams {
		s.signal()
	}
	p.mu.Unlock()
	p.refuse()
}

// prepare validates m and fills it. Nothing is copied before there is space for it.
func (p *Publisher) prepare(ctx context.Context, it *item, m *Message) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if m.Incomplete {
		return fmt.Errorf("publish: %w", ErrIncomplete)
	}
	if err := p.opt.Resume.accepts(m); err != nil {
		return err
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

// own copies what is the caller's. rule: a repetition sends the same bytes, even after the caller has gone and reuses its
// buffer.
func (it *item) own() {
	it.msg.Payload, it.msg.Headers = bytes.Clone(it.msg.Payload), maps.Clone(it.msg.Headers)
}

// waitForSpace is the back-pressure: it waits, in order of arrival, until the buffer has room.
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

// push hands items, whose space is taken, to their streams.
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

// abandon settles what the caller of c does not want to wait for any longer.
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
			p.streams[streamKey(it.msg.Type, !it.msg.Due.IsZero())].withdraw(it)
			c.results[i] = Result{Status: Rejected, Err: fmt.Errorf("publish: withdrawn before it was sent: %w", cause)}
		case itemSettled: // the stream is about to report it
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

func (c *call) expect() { c.mu.Lock(); c.left++; c.mu.Unlock() }

func (c *call) allExpected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complete = true
	if c.left == 0 {
		close(c.done)
	}
}

// reject settles a message that no stream has seen.
func (c *call) reject(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[i] = Result{Status: Rejected, Err: err}
}

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
