package worker

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

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
)

// ErrConfig is wrapped by every error about a Config that cannot work.
var ErrConfig = errors.New("worker configuration")

// Config says what a Pool serves and how. Queue, Locker, To, and Types or AllTypes are required;
// the zero value of everything else means its default.
type Config struct {
	Queue  queue.Queue  // where messages come from
	Locker *lock.Locker // the per-type mutex; usually of the same server
	To     Target       // where messages go: Files or Handling

	// OnError says what happens to a message that fails again and again, or that the file cannot
	// take. Defaults to Block.
	OnError OnError
	// MaxAttempts is how often a message is tried, alone or blamed by name, before OnError
	// DeadLetter puts it aside. Defaults to 5.
	MaxAttempts int
	// RetryMin and RetryMax bound the pause before a message that failed is tried again: random,
	// from nothing up to a bound that doubles each time. The type waits meanwhile. Default to 1 s
	// and 1 min.
	RetryMin, RetryMax time.Duration

	// Events, if set, is called for what happens, from the pool's goroutines: it must be quick. For
	// slow consumers there is the channel of Pool.Subscribe.
	Events func(Event)

	// Observe, if set, receives each step's duration, from the pool's goroutines and
	// many times a second: it must be quick. It is for metrics, see package worker/metrics; what
	// has happened so far is in Pool.Status.
	Observe func(Observation)

	// Types are the types to serve: names, or globs such as "audit-*" that are matched against the
	// types that have messages. A new one is served at once.
	Types []string
	// AllTypes serves every type there is, as Types = {"*"} does.
	AllTypes bool
	// MaxTypes bounds how many types are held at once. An idle type is given back when another one
	// waits. Defaults to no bound.
	MaxTypes int

	// Lease is how long the lock outlives a holder that died. Defaults to 20 s, which outlives a
	// MongoDB election.
	Lease time.Duration
	// Batch and BatchBytes bound one fetch, and so one record batch of the file. Default to 1000
	// messages and 4 MiB.
	Batch      int
	BatchBytes int64
	// Prefetch is how many batches are read ahead of the one being appended. Defaults to 2.
	Prefetch int
	// Linger is how long a fetch that came back short waits before the next one, so that a trickle
	// of messages shares an fsync, or a request to a store. Messages wait in the queue meanwhile, where they
	// are safe. Defaults to 5 ms, or to what the store of the files says (slots.Costly): 20 ms in
	// MongoDB and shared directories, 1 s in S3. Nothing else waits for it: neither a full batch nor a
	// stop, a hand-over, or UntilEmpty.
	Linger time.Duration
	// GapTimeout is how long a message waits for a missing earlier one of its producer before it is
	// appended with a declared gap. Only an operator's deletion or a server that lost confirmed
	// writes can cause that. Defaults to 30 s.
	GapTimeout time.Duration
	// IdleTimeout is how long a session without messages keeps its lock. Defaults to one minute.
	IdleTimeout time.Duration
	// HandOver is how long a pool that stops, or is asked to give a type with traffic back, goes on
	// serving it until another replica has come for it: the type's service is not interrupted then.
	// Without other replicas it ends at once. Defaults to 5 s; negative for none.
	HandOver time.Duration
	// Retention is how long the file remembers a producer that has gone silent, at least, by the
	// monotonic clock of the pool. Of what a pool has not watched for so long, it forgets what is
	// that old by the queue's clock, but none of the last 2,000. It remembers loose messages, see
	// queue.LooseHeader, for as long. Defaults to 24 h.
	Retention time.Duration

	// UntilEmpty makes Run return once all types were seen empty. Delayed messages that are not due
	// are not waited for. What cannot be appended or handled is waited for until the GapTimeout is
	// over; then Run returns an *UnfitError for its type.
	UntilEmpty bool

	// NoScheduler keeps the pool from promoting delayed messages (of all types, also those that it
	// does not serve). Some pool has to, or they stay where they are.
	NoScheduler bool

	// Logger gets one line per change of state, never one per batch. Defaults to no logging.
	Logger *zerolog.Logger
}

// withDefaults returns the configuration that is in force: zero values have become defaults.
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

// validate refuses what cannot work. Every error says what to do.
func (c Config) validate() error {
	switch {
	case c.Queue == nil:
		return bad("Queue is missing")
	case c.Locker == nil:
		return bad("Locker is missing")
	case c.To == nil:
		return bad("To is missing; use Files, or Handling for your own code")
	case c.OnError != Block && c.OnError != DeadLetter:
		return bad("OnError is %d; use Block or DeadLetter", c.OnError)
	case c.MaxAttempts < 1:
		return bad("MaxAttempts is %d; use at least 1", c.MaxAttempts)
	case c.RetryMin < 0 || c.RetryMax < c.RetryMin:
		return bad("RetryMin is %v and RetryMax is %v; use 0 < RetryMin <= RetryMax", c.RetryMin, c.RetryMax)
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
	}{{"Lease", c.Lease}, {"Linger", c.Linger}, {"GapTimeout", c.GapTimeout}, {"IdleTimeout", c.IdleTimeout}, {"Retention", c.Retention}} {
		if d.d <= 0 {
			return bad("%s is %v; use a positive duration", d.name, d.d)
		}
	}
	if c.Lease < lock.MinLease {
		return bad("Lease is %v; use at least %v", c.Lease, lock.MinLease)
	}
	return errors.Join(c.To.validate(), ValidateTypes(c.Types))
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

// ValidateTypes checks the names and patterns of Config.Types, as New does.
func ValidateTypes(types []string) error {
	for _, t := range types {
		if isGlob(t) {
			if _, err := path.Match(t, ""); err != nil {
				return fmt.Errorf("%w: type pattern %q is malformed", ErrConfig, t)
			}
			continue
		}
		if err := queue.ValidateType(t); err != nil {
			return err
		}
	}
	return nil
}

func isGlob(t string) bool {
	for i := range len(t) {
		switch t[i] {
		case '*', '?', '[', '\\':
			return true
		}
	}
	return false
}

// OnError says what happens to a message that cannot be handled, or that the file cannot take.
type OnError int

const (
	// Block: it is tried for ever, and holds its type back. Nothing is lost and the order is kept;
	// somebody has to look.
	Block OnError = iota
	// DeadLetter: after MaxAttempts it becomes a dead letter (fencepost dead ls), and those behind
	// it go on.
	DeadLetter
)
