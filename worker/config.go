package worker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// Defaults of Config.
const (
	DefaultLease       = 20 * time.Second
	DefaultBatch       = 1000
	DefaultBatchBytes  = 4 << 20
	DefaultPrefetch    = 2
	DefaultLinger      = 5 * time.Millisecond
	DefaultGapTimeout  = 30 * time.Second
	DefaultIdleTimeout = time.Minute
	DefaultHandOver    = 5 * time.Second
	DefaultRetention   = 24 * time.Hour
	DefaultDedupe      = time.Hour
	DefaultMaxAttempts = 5
	DefaultRetryMin    = time.Second
	DefaultRetryMax    = time.Minute
)

// Bounds of Config.
const (
	MaxBatch      = 100_000
	MaxBatchBytes = 32 << 20
	MaxPrefetch   = 64
	MaxPause      = 24 * time.Hour // of RetryMax and Linger
)

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("worker configuration")

// Config configures a [Pool]. Queue, Locker, To, and Types or AllTypes are required; the zero value
// of every other field means its default.
type Config struct {
	Queue  queue.Queue  // where messages come from
	Locker *lock.Locker // the per-type mutex, whose name is the type's; usually of the same server
	To     Target       // where messages go: Files or Handling, without &

	// OnError decides what happens to a message that keeps failing, or that the file cannot take.
	// Defaults to Block.
	OnError OnError
	// MaxAttempts is how often a message may fail by itself, or be named in a BatchError, before it
	// becomes a dead letter (OnError DeadLetter). Defaults to 5.
	MaxAttempts int
	// RetryMin and RetryMax bound the pause before a failed message is retried. The pause is random,
	// between 0 and a bound that starts at RetryMin and doubles up to RetryMax. The type waits
	// meanwhile. They default to 1 s and 1 min; at most a day.
	RetryMin, RetryMax time.Duration

	// Events, if set, is called for every event, from the pool's goroutines: it must return quickly, and
	// a panic in it ends the process.
	// Slow consumers should use Pool.Subscribe.
	Events func(Event)

	// Observe, if set, receives each step's duration. It is called from the pool's goroutines,
	// concurrently and many times a second: it must return quickly, and a panic in it ends the process.
	// It is for metrics, see package worker/metrics; Pool.Status has the current state.
	Observe func(Observation)

	// Types are the types to serve: names, or globs such as "audit-*" (path.Match), which also match
	// types that appear later.
	Types []string
	// AllTypes serves every type, like Types = {"*"}.
	AllTypes bool
	// MaxTypes bounds how many types are held at once. An idle type is released when another one is
	// waiting. Defaults to no bound.
	MaxTypes int

	// Lease is how long a lock stays held after its holder died. Defaults to 20 s, which is longer
	// than a MongoDB election.
	Lease time.Duration
	// Batch and BatchBytes bound one fetch, and so one record batch of the file. Default to 1000
	// messages and 4 MiB.
	Batch      int
	BatchBytes int64
	// Prefetch is how many batches are read ahead of the one being appended. Defaults to 2.
	Prefetch int
	// Linger is the pause after a fetch that returned less than a full batch, so that messages of
	// a slow stream share an fsync, or a request to a store. Meanwhile messages wait in the queue, where they
	// are safe. Defaults to 5 ms, or to what the store of the files recommends (slots.Costly): 20 ms
	// in MongoDB and shared directories, 1 s in S3. A full batch, a stop, a handoff and UntilEmpty do
	// not wait for it. At most a day.
	Linger time.Duration
	// GapTimeout is how long a message waits for a missing earlier one of its producer before it is
	// appended with a declared gap. Messages are missing only if an operator deleted them or the
	// server lost confirmed writes. Defaults to 30 s.
	GapTimeout time.Duration
	// IdleTimeout is how long a session without messages keeps its lock. Defaults to one minute.
	IdleTimeout time.Duration
	// HandOver is how long a pool that stops, or is asked to release a type with traffic, continues
	// to serve it until a successor waits for its lock, so that service is not interrupted. Without
	// other replicas the session ends at once. Defaults to 5 s; negative for no wait.
	HandOver time.Duration
	// Retention is how long, at least, the file remembers a silent producer, and so the window of
	// exactly once: a copy of a message that arrives later is appended again. It is measured by the
	// monotonic clock of the pool. A pool that has not run for that long uses the queue's clock
	// instead, and then always keeps the latest 2,000 producers. Loose messages (see
	// queue.LooseHeader) are remembered as long. Defaults to 24 h; at least queue.MaxRepeatFor (12 h),
	// for which a publisher may repeat a message.
	Retention time.Duration

	// UntilEmpty makes Run return once all types have been seen empty. It does not wait for delayed
	// messages that are not due. It waits for messages that cannot be appended or handled until
	// GapTimeout has passed; then Run returns an *UnfitError for their type.
	UntilEmpty bool

	// NoScheduler stops the pool from promoting delayed messages. A scheduler promotes the messages of
	// all types, even types that its pool does not serve; without any scheduler, delayed messages stay
	// delayed.
	NoScheduler bool

	// Logger gets one line per change of state, never one per batch. Defaults to no logging.
	Logger *zerolog.Logger
}

// withDefaults returns c with zero values replaced by defaults, and Types sorted.
func (c Config) withDefaults() Config {
	setDefault(&c.Lease, DefaultLease)
	setDefault(&c.Batch, DefaultBatch)
	setDefault(&c.BatchBytes, int64(DefaultBatchBytes))
	setDefault(&c.Prefetch, DefaultPrefetch)
	if f, ok := c.To.(Files); ok {
		if fsys, ok := f.Storage.FS.(interface{ Linger() time.Duration }); ok {
			setDefault(&c.Linger, fsys.Linger())
		}
		setDefault(&f.DedupeWindow, DefaultDedupe)
		c.To = f
	}
	setDefault(&c.Linger, DefaultLinger)
	setDefault(&c.GapTimeout, DefaultGapTimeout)
	setDefault(&c.IdleTimeout, DefaultIdleTimeout)
	setDefault(&c.HandOver, DefaultHandOver)
	setDefault(&c.Retention, DefaultRetention)
	setDefault(&c.MaxAttempts, DefaultMaxAttempts)
	setDefault(&c.RetryMin, DefaultRetryMin)
	setDefault(&c.RetryMax, max(DefaultRetryMax, c.RetryMin))
	if c.AllTypes {
		c.Types = []string{"*"}
	}
	if c.Logger == nil {
		nop := zerolog.Nop()
		c.Logger = &nop
	}
	c.Types = slices.Clone(c.Types)
	slices.Sort(c.Types)
	c.Types = slices.Compact(c.Types)
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// validate refuses invalid values. Every error says what to change.
func (c Config) validate() error {
	switch {
	case c.Queue == nil:
		return bad("Queue is missing")
	case c.Locker == nil:
		return bad("Locker is missing")
	case c.To == nil:
		return bad("To is missing; use Files, or Handling for your own code")
	case !isTarget(c.To):
		return bad("To is a %T; use worker.Files{…} or worker.Handling{…}, without &", c.To)
	case c.OnError != Block && c.OnError != DeadLetter:
		return bad("OnError is %d; use Block or DeadLetter", c.OnError)
	case c.MaxAttempts < 1:
		return bad("MaxAttempts is %d; use at least 1", c.MaxAttempts)
	case c.RetryMin < 0 || c.RetryMax < c.RetryMin || c.RetryMax > MaxPause:
		return bad("RetryMin is %v and RetryMax is %v; use 0 < RetryMin <= RetryMax <= %v", c.RetryMin, c.RetryMax, MaxPause)
	case c.Linger > MaxPause:
		return bad("Linger is %v; use at most %v", c.Linger, MaxPause)
	case len(c.Types) == 0:
		return bad("no type to serve; name at least one, or serve all types")
	case c.Batch < 1 || c.Batch > MaxBatch:
		return bad("Batch is %d; use 1 to %d messages", c.Batch, MaxBatch)
	case c.BatchBytes < 1 || c.BatchBytes > MaxBatchBytes:
		return bad("BatchBytes is %d; use 1 B to 32 MiB", c.BatchBytes)
	case c.Prefetch < 1 || c.Prefetch > MaxPrefetch:
		return bad("Prefetch is %d; use 1 to %d batches", c.Prefetch, MaxPrefetch)
	case c.MaxTypes < 0:
		return bad("MaxTypes is %d; use 0 for no bound", c.MaxTypes)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"Lease", c.Lease}, {"Linger", c.Linger}, {"GapTimeout", c.GapTimeout}, {"IdleTimeout", c.IdleTimeout}} {
		if d.d <= 0 {
			return bad("%s is %v; use a positive duration", d.name, d.d)
		}
	}
	if c.Lease < lock.MinLease || c.Lease > lock.MaxLease {
		return bad("Lease is %v; use %v to %v", c.Lease, lock.MinLease, lock.MaxLease)
	}
	if c.Retention < queue.MaxRepeatFor {
		return bad("Retention is %v; use at least %v, for which a publisher may repeat a message", c.Retention, queue.MaxRepeatFor)
	}
	return errors.Join(c.To.validate(), ValidateTypes(c.Types))
}

// isTarget reports whether t is one of the targets. A pointer to one has their method, too.
func isTarget(t Target) bool {
	switch t.(type) {
	case Files, Handling:
		return true
	default:
		return false
	}
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

// ValidateTypes checks the names and patterns of Config.Types, as New does. It refuses a pattern that no
// type can match, such as "Orders-*".
func ValidateTypes(types []string) error {
	for _, t := range types {
		check := queue.ValidateType
		if globs.Is(t) {
			check = validatePattern
		}
		if err := check(t); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	return nil
}

func validatePattern(glob string) error {
	if globs.Check(glob) != nil {
		return fmt.Errorf(`type pattern %q is malformed; use *, ? and classes such as [a-c], for example "audit-*"`, glob)
	}
	for _, c := range globs.Literals(glob) {
		var err *queue.TypeError
		if errors.As(queue.ValidateType("a"+string(c)), &err) {
			return &queue.TypeError{Type: glob, Reason: err.Reason + ", so no type matches it"}
		}
	}
	return nil
}

// OnError decides what happens to a message that cannot be handled, or that the file cannot take.
type OnError int

const (
	// Block retries it indefinitely; its type waits. Nothing is lost and the order is kept, but an
	// operator has to find the cause.
	Block OnError = iota
	// DeadLetter makes it a dead letter after MaxAttempts (fencepost dead ls), and continues with
	// the messages after it.
	DeadLetter
)
