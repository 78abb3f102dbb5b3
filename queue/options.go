package queue

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Bounds and defaults of PublisherOptions.
const (
	// DefaultBatchMessages is the batch size in messages, and the largest one allowed.
	DefaultBatchMessages = 1000
	// DefaultBatchBytes is the batch size in bytes, see Message.Size. A larger message gets a batch
	// of its own.
	DefaultBatchBytes = 4 << 20
	// DefaultBufferBytes bounds what a publisher holds in memory.
	DefaultBufferBytes = 64 << 20
	// DefaultRepeatFor is how long an unsettled batch is retried. A consumer remembers a producer
	// for 24 h, so it recognizes every retry.
	DefaultRepeatFor = 10 * time.Minute
	// DefaultAttemptTimeout bounds one attempt to insert a batch.
	DefaultAttemptTimeout = 30 * time.Second
	// DefaultBacklogWait is how long messages wait for room in a full backlog.
	DefaultBacklogWait = 10 * time.Minute
	// DefaultIdleRotate is how long a type may be idle before its stream, and its producer number,
	// ends.
	DefaultIdleRotate = time.Hour
	// minRepeatWait and maxRepeatWait bound the pause between two attempts, which doubles each time
	// and is jittered.
	minRepeatWait = 50 * time.Millisecond
	maxRepeatWait = 5 * time.Second
	// MaxRepeatFor, MaxBacklogWait and MaxIdleRotate are far below the 24 h for which a consumer
	// remembers a producer. MinIdleRotate is long enough for a consumer to have read everything
	// again.
	MaxRepeatFor   = 12 * time.Hour
	MaxBacklogWait = 12 * time.Hour
	MaxIdleRotate  = 12 * time.Hour
	MinIdleRotate  = time.Minute

	// rotationPause is how long after its last stored message a stream waits before it publishes
	// under a new producer number. A consumer cannot tell that messages of the old number are
	// missing before those of the new one, so it must have read the old ones first. It reads
	// everything again from the start every 30 s, which is shorter than this pause.
	rotationPause = 45 * time.Second
)

// PublisherOptions configures a [Publisher]. The zero value is ready to use.
type PublisherOptions struct {
	// AttemptTimeout bounds one attempt to insert a batch. An attempt that takes longer is unclear,
	// and is retried. At least 1 ms. Defaults to 30 s.
	AttemptTimeout time.Duration
	// BacklogWait is how long messages wait when the backlog of their type is full
	// (Settings.MaxBacklog); then they are Rejected with ErrBacklogFull. If negative, they are
	// rejected at once. At most 12 h. Defaults to 10 min. A caller can wait less by its ctx.
	BacklogWait time.Duration
	// BatchBytes closes a batch at this many bytes (Message.Size). Defaults to 4 MiB.
	BatchBytes int
	// BatchMessages closes a batch at this many messages. Defaults to, and is at most, 1000.
	BatchMessages int
	// BufferBytes bounds the messages held in memory, with an overhead of 384 bytes for each and 100
	// for each of its headers. When it is reached, publishing waits. Defaults to 64 MiB.
	BufferBytes int64
	// IdleRotate is the idle time after which a type's stream ends; the next message starts a new
	// one with a new producer number. At least 1 min, at most 12 h. Defaults to 1 h.
	IdleRotate time.Duration
	// Linger is how long the first message of a batch waits for more messages. Even at 0, the
	// default, concurrent callers share batches: one forms while the previous one is in flight.
	Linger time.Duration
	// OnBacklogFull, if set, is called when messages of a type begin to wait because its backlog is
	// full. It must not block, and is called concurrently for several types, and for the delayed
	// messages of a type and its others.
	OnBacklogFull func(typ string, limit int)
	// OnRepeat, if set, is called before every retry of a batch, for a log line or a counter. It must
	// not block, and is called concurrently as OnBacklogFull is.
	OnRepeat func(Repeat)
	// RepeatFor is how long a batch is retried before its messages are reported as Unknown, or
	// Rejected if none of them can have been stored. No attempt starts later. At most 12 h.
	// Defaults to 10 min.
	RepeatFor time.Duration
	// Resume, if set, lets another process continue the stream after this one dies.
	Resume *Resume
	// Use lists the Middlewares in the order in which they are called.
	Use []Middleware
}

// Repeat describes a failed attempt that will be retried, for PublisherOptions.OnRepeat.
type Repeat struct {
	Type     string
	Attempt  int           // number of the failed attempt, from 1
	Messages int           // messages that are not settled yet
	Wait     time.Duration // pause before the next attempt
	Err      error         // of the failed attempt
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
	case o.AttemptTimeout < time.Millisecond: // a smaller number lacks its unit, and every attempt would be unclear
		return badOption("AttemptTimeout is %v; use at least 1ms", o.AttemptTimeout)
	case o.Linger < 0:
		return badOption("Linger is %v; use a positive duration, or 0 for no wait", o.Linger)
	case o.RepeatFor < 0 || o.RepeatFor > MaxRepeatFor:
		return badOption("RepeatFor is %v; use a positive duration of at most %v", o.RepeatFor, MaxRepeatFor)
	case o.IdleRotate < MinIdleRotate || o.IdleRotate > MaxIdleRotate:
		return badOption("IdleRotate is %v; use %v to %v", o.IdleRotate, MinIdleRotate, MaxIdleRotate)
	case o.BacklogWait > MaxBacklogWait:
		return badOption("BacklogWait is %v; use at most %v", o.BacklogWait, MaxBacklogWait)
	case o.BatchMessages < 1 || o.BatchMessages > DefaultBatchMessages:
		return badOption("BatchMessages is %d; use 1 to %d", o.BatchMessages, DefaultBatchMessages)
	case o.BatchBytes < 1:
		return badOption("BatchBytes is %d; use at least 1", o.BatchBytes)
	case o.BufferBytes < 1:
		return badOption("BufferBytes is %d; use at least 1", o.BufferBytes)
	case slices.ContainsFunc(o.Use, func(m Middleware) bool { return m == nil }):
		return badOption("a Middleware of Use is nil; leave it out")
	case o.Resume != nil:
		return o.Resume.validate()
	}
	return nil
}

func badOption(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrOptions, fmt.Errorf(format, args...))
}
