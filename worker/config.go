package worker

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
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
	DefaultRetention   = 24 * time.Hour
)

// ErrConfig is wrapped by every error about a Config that cannot work.
var ErrConfig = errors.New("worker configuration")

// Config says what a Pool serves and how. Queue, Locker, Dir and Types (or AllTypes) are required; the zero value of
// everything else means its default.
type Config struct {
	Queue  queue.Queue  // where messages come from
	Locker *lock.Locker // the per-type mutex; usually of the same server
	Dir    string       // directory of the files; created if missing; the same storage for every replica

	// Types are the types to serve: names, or globs such as "audit-*" that are matched against the known types every
	// two seconds.
	Types []string
	// AllTypes serves every type there is, as Types = {"*"} does.
	AllTypes bool
	// MaxTypes bounds how many types are held at once. An idle type is given back when another one waits. Defaults to
	// no bound.
	MaxTypes int

	// Lease is how long the lock outlives a holder that died. Defaults to 20 s, which outlives a MongoDB election.
	Lease time.Duration
	// Batch and BatchBytes bound one fetch, and so one record batch of the file. Default to 1000 messages and 4 MiB.
	Batch      int
	BatchBytes int64
	// Prefetch is how many batches are read ahead of the one being appended. Defaults to 2.
	Prefetch int
	// Linger is how long a fetch that came back short waits before the next one, so that a trickle of messages shares an
	// fsync. Defaults to 5 ms.
	Linger time.Duration
	// GapTimeout is how long a message waits for a missing earlier one of its producer before it is appended with a
	// declared gap. Only an operator's deletion or a server that lost confirmed writes can cause that. Defaults to 30 s.
	GapTimeout time.Duration
	// IdleTimeout is how long a session without messages keeps its lock. Defaults to one minute.
	IdleTimeout time.Duration
	// Retention is how long the file remembers a producer that has gone silent. Defaults to 24 h.
	Retention time.Duration

	// MaxFileBytes is the size at which a file is sealed and its type goes on in a new one, "orders@0002.fpl" and so on: after
	// the batch that reached it. Defaults to no bound; at least 1 MiB, as every file begins with what is known about the
	// producers.
	MaxFileBytes int64

	// UntilEmpty makes Run return once all types were seen empty.
	UntilEmpty bool

	// Storage carries options of the files, such as the permission to use an overlay file system. Registry, Holder,
	// Restore and Replay are set by the pool.
	Storage storage.Options

	// Logger gets one line per change of state, never one per batch. Defaults to no logging.
	Logger *zerolog.Logger

	mutant mutant // test only: drops a safety rule
}

// mutant switches a safety rule off, to prove that the tests notice.
type mutant struct {
	noContiguity  bool // append whatever comes, in whatever order
	ackBeforeSync bool // acknowledge before the fsync
}

func (c Config) withDefaults() Config {
	setDefault(&c.Lease, DefaultLease)
	setDefault(&c.Batch, DefaultBatch)
	setDefault(&c.BatchBytes, int64(DefaultBatchBytes))
	setDefault(&c.Prefetch, DefaultPrefetch)
	setDefault(&c.Linger, DefaultLinger)
	setDefault(&c.GapTimeout, DefaultGapTimeout)
	setDefault(&c.IdleTimeout, DefaultIdleTimeout)
	setDefault(&c.Retention, DefaultRetention)
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

func (c Config) validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Queue == nil:
		return bad("Queue is missing")
	case c.Locker == nil:
		return bad("Locker is missing")
	case c.Dir == "":
		return bad("Dir is empty; name the directory that holds the files")
	case len(c.Types) == 0:
		return bad("no type to serve; name at least one, or serve all types")
	case c.Batch < 1 || c.Batch > 100_000:
		return bad("Batch is %d; use 1 to 100000 messages", c.Batch)
	case c.BatchBytes < 1 || c.BatchBytes > 32<<20:
		return bad("BatchBytes is %d; use 1 B to 32 MiB", c.BatchBytes)
	case c.Prefetch < 1 || c.Prefetch > 64:
		return bad("Prefetch is %d; use 1 to 64 batches", c.Prefetch)
	case c.MaxFileBytes != 0 && c.MaxFileBytes < 1<<20:
		return bad("MaxFileBytes is %d; use at least 1 MiB, or 0 for no bound", c.MaxFileBytes)
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
	for _, t := range c.Types {
		if isGlob(t) {
			if _, err := path.Match(t, ""); err != nil {
				return bad("type pattern %q is malformed", t)
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
