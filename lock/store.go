package lock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"time"
)

// Store is what a backend provides: atomic operations on one document per name. The protocol is not its business; it
// must only do exactly what each method says. All methods are safe for concurrent use.
//
// A nil error means that the answer is certain and, for a write, that the write will survive every failure the backend
// is built for (MongoDB: acknowledged by a majority). Any error means that the outcome is unknown, unless it wraps
// [ErrPermanent]: then nothing was written. ok = false with a nil error means that the filter matched nothing, and
// nothing was written.
//
// Every write sets the version to v, and the dates of the record as far as the server can.
type Store interface {
	// Read returns the record of name; found is false when there is none. It may be stale: it is a hint.
	Read(ctx context.Context, name string) (r Record, found bool, err error)

	// Create inserts a held record, with token 0, if name has none.
	Create(ctx context.Context, name string, h Hold, v Version) (ok bool, err error)

	// Acquire sets the hold of a free record, incrementing its token, which it returns.
	Acquire(ctx context.Context, name string, h Hold, v Version) (token int64, ok bool, err error)

	// TakeOver replaces the hold (or the absence of one) of a record whose version is seen, incrementing its token,
	// which it returns.
	TakeOver(ctx context.Context, name string, seen Version, h Hold, v Version) (token int64, ok bool, err error)

	// Renew sets a new version if the record is held with id.
	Renew(ctx context.Context, name string, id HoldID, v Version) (ok bool, err error)

	// Confirm is Renew that also makes the token greater than floor, if it is not yet, and returns it.
	Confirm(ctx context.Context, name string, id HoldID, floor int64, v Version) (token int64, ok bool, err error)

	// Release removes the hold if the record is held with id. The record and its token stay.
	Release(ctx context.Context, name string, id HoldID, v Version) (ok bool, err error)

	// List returns all records, sorted by name.
	List(ctx context.Context) ([]Record, error)

	// Close frees the store's resources. No method is called during or after it.
	Close() error
}

// Record is the state of one name in a store.
type Record struct {
	Name    string
	Token   int64   // last granted fencing token; only ever grows, survives release; 0 = none granted yet
	Version Version // changes with every write
	Hold    *Hold   // nil = free

	// Since is when the lock was last acquired, At when the record was last written, on the server's clock. For people
	// and for garbage collection: no decision of the protocol looks at them. At may be zero until the first renewal.
	Since, At time.Time
}

// Hold says who holds a lock.
type Hold struct {
	ID    HoldID        // one per acquisition
	Lease time.Duration // the holder's lease, in whole milliseconds
	Owner Owner
	Why   string // what for; may be empty
}

// HoldID identifies one acquisition: random, never used again, the same over all its retries.
//
// rule: not the host, the process or a session: a restarted or second user of those could then renew or release
// somebody else's lock (ShedLock#74, etcd#22082).
type HoldID [12]byte

// Version identifies one state of a record.
//
// rule: random, never a counter: after a rollback a counter can show the same number for a different state, and a
// watcher would count on (ABA).
type Version [12]byte

func (id HoldID) String() string { return hex.EncodeToString(id[:]) }

func (v Version) String() string { return hex.EncodeToString(v[:]) }

// NewHoldID returns a random id.
func NewHoldID() (id HoldID) {
	_, _ = rand.Read(id[:]) // never fails: see crypto/rand
	return id
}

// NewVersion returns a random version.
func NewVersion() (v Version) {
	_, _ = rand.Read(v[:])
	return v
}

// Owner tells people, and processes of the same machine, who holds a lock.
type Owner struct {
	Host     string // host name
	PID      int    // process id on that host
	Instance string // random, one per process start (or whatever the application calls itself)

	// Boot, PIDNamespace and Started make it provable that a process of this machine is gone: the boot of the machine,
	// the namespace that PID belongs to, and the start of the process in clock ticks since boot. Empty where the
	// system does not tell; then a dead holder is found by its lease alone.
	Boot         string
	PIDNamespace string
	Started      string
}

func (o Owner) String() string {
	s := o.Host
	if s == "" {
		s = "unknown host"
	}
	if o.PID != 0 {
		s += "/" + strconv.Itoa(o.PID)
	}
	if o.Instance != "" {
		s += " (" + o.Instance + ")"
	}
	return s
}
