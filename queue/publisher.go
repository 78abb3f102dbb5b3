package queue

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fencepost/fencepost/internal/clock"
)

// Bounds and defaults of PublisherOptions.
const (
	// DefaultBatchMessages is also the largest batch in messages.
	DefaultBatchMessages = 1000
	// DefaultBatchBytes is the batch size in bytes, see Message.Size. A larger message travels alone.
	DefaultBatchBytes = 4 << 20
	// DefaultBufferBytes bounds what a publisher holds in memory.
	DefaultBufferBytes = 64 << 20
	// DefaultRepeatFor is how long an unsettled batch is repeated. A consumer remembers a producer for 24 h, so a
	// repetition is always recognised.
	DefaultRepeatFor = 10 * time.Minute
	// DefaultAttemptTimeout bounds one attempt to insert a batch.
	DefaultAttemptTimeout = 30 * time.Second
	// DefaultBacklogWait is how long messages wait for room in a full backlog.
	DefaultBacklogWait = 10 * time.Minute
	// DefaultIdleRotate is how long a type may be idle before its stream ends.
	DefaultIdleRotate = time.Hour
	// minRepeatWait and maxRepeatWait bound the pause between two attempts, which doubles each time and is jittered.
	minRepeatWait = 50 * time.Millisecond
	maxRepeatWait = 5 * time.Second
	// MaxRepeatFor, MaxBacklogWait and MaxIdleRotate keep all far below the 24 h for which a consumer remembers a producer;
	// MinIdleRotate is long enough for a consumer to have read everything again.
	MaxRepeatFor   = 12 * time.Hour
	MaxBacklogWait = 12 * time.Hour
	MaxIdleRotate  = 12 * time.Hour
	MinIdleRotate  = time.Minute

	// rotationPause is how long after its last stored message a stream waits before it publishes under a new producer
	// number. A consumer that is reading right now sees the new number without the contiguity of the old one; before it
	// gets there it has read everything again from the start, as it does every 30 s.
	rotationPause = 45 * time.Second
)

// PublisherOptions adjusts a Publisher. The zero value is good.
type PublisherOptions struct {
	// AttemptTimeout bounds one attempt to insert a batch; an attempt that takes longer is unclear and repeated.
	// Defaults to 30 s.
	AttemptTimeout time.Duration
	// BacklogWait is how long messages wait for room when as many of their type are pending as its Settings.MaxBacklog allows; then they
	// are Rejected with ErrBacklogFull. A negative one refuses them at once. At most 12 h. Defaults to 10 min. Callers who do not
	// want to wait so long end their ctx.
	BacklogWait time.Duration
	// BatchBytes closes a batch at this many bytes (Message.Size). Defaults to 4 MiB.
	BatchBytes int
	// BatchMessages closes a batch at this many messages. Defaults to, and is at most, 1000.
	BatchMessages int
	// BufferBytes bounds the messages held in memory, with an overhead of 256 bytes each. When it is reached, publishing
	// waits. Defaults to 64 MiB.
	BufferBytes int64
	// IdleRotate is the idle time after which a type's stream ends; the next message starts a new one with a new producer
	// number. At least 1 min, at most 12 h. Defaults to 1 h.
	IdleRotate time.Duration
	// Linger is how long the first message of a batch waits for company. Even at 0, the default, concurrent callers share
	// batches: one forms while the previous one is on its way.
	Linger time.Duration
	// OnBacklogFull, if set, is called when messages of a type begin to wait because as many are pending as its limit allows, from the
	// stream's goroutine. It must not block.
	OnBacklogFull func(typ string, limit int)
	// OnRepeat, if set, is called after every attempt that did not settle a batch, from the stream's goroutine: for a log
	// line and a counter. It must not block.
	OnRepeat func(Repeat)
	// RepeatFor is how long a batch is repeated before its messages are reported as Unknown (or Rejected, if none of them
	// can have been stored). No attempt starts later. At most 12 h. Defaults to 10 min.
	RepeatFor time.Duration
	// Resume, if set, makes the stream one that another process can continue.
	Resume *Resume
	// Use is shown the messages of every call before they are published, in this order. Without any it costs nothing.
	Use []Middleware
}

// Repeat describes an attempt that is going to be repeated.
type Repeat struct {
	Type     string
	Attempt  int // 1 = the first one failed
	Messages int // not settled yet
	Wait     time.Duration
	Err      error
}

func (o PublisherOptions) withDefaults() PublisherOptions {
	o.AttemptTimeout = cmp.Or(o.AttemptTimeout, DefaultAttemptTimeout)
	o.BacklogWait = cmp.Or(o.BacklogWait, DefaultBacklogWait)
	o.BatchBytes = cmp.Or(o.BatchBytes, DefaultBatchBytes)
	o.BatchMessages = cmp.Or(o.BatchMessages, DefaultBatchMessages)
	o.BufferBytes = cmp.Or(o.BufferBytes, DefaultBufferBytes)
	o.IdleRotate = cmp.Or(o.IdleRotate, DefaultIdleRotate)
	o.RepeatFor = cmp.Or(o.RepeatFor, DefaultRepeatFor)
	o.Use = slices.Clone(o.Use)
	return o
}

func (o PublisherOptions) validate() error {
	switch {
	case o.AttemptTimeout < 0 || o.Linger < 0 || o.RepeatFor < 0:
		return errors.New("publisher options: durations must not be negative")
	case o.IdleRotate < MinIdleRotate || o.IdleRotate > MaxIdleRotate:
		return fmt.Errorf("publisher options: IdleRotate is %v, want %v to %v", o.IdleRotate, MinIdleRotate, MaxIdleRotate)
	case o.BacklogWait > MaxBacklogWait:
		return fmt.Errorf("publisher options: BacklogWait is %v, at most %v", o.BacklogWait, MaxBacklogWait)
	case o.RepeatFor > MaxRepeatFor:
		return fmt.Errorf("publisher options: RepeatFor is %v, at most %v", o.RepeatFor, MaxRepeatFor)
	case o.BatchMessages < 1 || o.BatchMessages > DefaultBatchMessages:
		return fmt.Errorf("publisher options: BatchMessages is %d, want 1 to %d", o.BatchMessages, DefaultBatchMessages)
	case o.BatchBytes < 1 || o.BufferBytes < 1:
		return errors.New("publisher options: BatchBytes and BufferBytes must be positive")
	case slices.ContainsFunc(o.Use, func(m Middleware) bool { return m == nil }):
		return errors.New("publisher options: a Middleware of Use is nil")
	case o.Resume != nil:
		return o.Resume.validate()
	}
	return nil
}

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
	Buffered                  int    // messages accepted and not settled
}

// Publisher publishes messages to a Queue. There is one stream per type, and one goroutine per stream:
//
//	callers ──▶ buffer (bounded) ──▶ batch ──▶ Insert ──▶ all stored ──▶ next batch, same producer number
//	                                   ▲          │
//	                                   │          ├─ unclear ──▶ same documents again, with jittered pauses
//	                                   │          │                    │ for RepeatFor
//	                                   │          ▼                    ▼
//	                                   └── new producer number ◀── rest Rejected or Unknown
//
// Its guarantees: a message reported as Stored is durable; a message reported as Rejected is not in the queue and never
// will be; Stored messages of one type are in the queue in the order in which they were passed in, whatever failed in
// between; a repetition never stores a message twice. One batch per type is in flight at a time, types go in parallel.
//
// Before a batch is formed its type's Settings are looked at, which are read every two seconds while there is something to send: when
// publishing is paused its messages are Rejected with ErrPaused; when the backlog has reached its limit they wait (see
// BacklogWait). Several publishers together exceed a limit by what they send in two seconds at most.
//
// Payload and headers are copied, so the caller may reuse them as soon as a method returns. All methods are safe for
// concurrent use.
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

// NewPublisher reads the queue's clock and returns a publisher. ctx bounds only that. The queue stays the caller's: close
// the publisher first.
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
	return p, nil
}

// queueClock is the queue's clock as read once, advanced by what has passed since: no wall clock of a producer matters.
type queueClock struct {
	base  time.Time
	since clock.Watch
}

func (c queueClock) now() time.Time { return c.base.Add(c.since.Elapsed()) }

// Publish publishes one message and waits for its outcome. A nil error means it is stored. An error that wraps ErrUnknown
// means it may be, under the returned ID; any other error means it is not and never will be.
//
// When ctx ends first, a message that was not yet sent is withdrawn; otherwise the outcome is unknown to the caller, while
// the publisher goes on settling it.
func (p *Publisher) Publish(ctx context.Context, typ string, payload []byte, headers map[string]string) (ID, error) {
	r := p.PublishAll(ctx, []Message{{Type: typ, Payload: payload, Headers: headers}})[0]
	return r.ID, r.Err
}

// PublishAll publishes messages, of one or several types, and waits for their outcomes. It returns one Result per message,
// in the same order. Messages of a type are stored in the order of msgs. ID fields of msgs are ignored. For the end of
// ctx see Publish.
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

// Send accepts one message and returns; done is called with its outcome later, exactly once. It is the form for streaming
// millions of messages: it waits only when the buffer is full (BufferBytes), and only that wait ends with ctx. An
// error means that the message was not accepted and never will be stored; done is not called then.
//
// Callbacks of a type run one at a time, in the order of acceptance, on the goroutine that publishes the type: they must
// be quick, and must not call the publisher.
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
	return p.stats
}

// Close accepts no more messages, publishes those it has accepted, and waits for their outcomes and for the publisher's
// goroutines. That may take as long as the queue is out of reach (RepeatFor) or a backlog is full (BacklogWait), and 45 s more after a failure (see
// rotationPause): give it a context with a deadline. When ctx ends first, it gives up: what was sent becomes Unknown, what
// was not becomes Rejected. The error then says how many. Closing twice is no error. Close leaves the queue open.
func (p *Publisher) Close(ctx context.Context) error {
	p.end(false)
	finished := make(chan struct{})
	go func() { p.streamsWG.Wait(); close(finished) }()
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

// Stop is for who does not want to wait as long as Close may take: it accepts no more messages, and those that were accepted and never sent are
// Rejected, without waiting for what the queue was asked about them (how long the backlog is). What was sent may have landed, so it goes on
// to be settled: Close waits for that.
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
