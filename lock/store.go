package lock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
)

// Store is what a backend provides: atomic operations on one document per name. The protocol is not
// its business; it must only do exactly what each method says. All methods are safe for concurrent
// use.
//
// A nil error means that the answer is certain and, for a write, that the write will survive every
// failure the backend is built for (MongoDB: acknowledged by a majority). Any error means that the
// outcome is unknown, unless it wraps
// [ErrPermanent]: then nothing was written. ok = false with a nil error means that the filter matched nothing, and
// nothing was written.
//
// Every write that has a v sets the version to it (also that of the entry it is about), and the
// dates of the record as far as the server can.
type Store interface {
	RecordReader
	GrantStore
	HoldStore
	EntryStore
	AdminStore

	// Close frees the store's resources. No method is called during or after it.
	Close() error
}

// RecordReader reads records.
type RecordReader interface {
	// Read returns the record of name; found is false when there is none. It may be stale: it is a
	// hint.
	Read(ctx context.Context, name string) (r Record, found bool, err error)

	// List returns all records, sorted by name. One that cannot be read has its Name, and Damaged
	// says why.
	List(ctx context.Context) ([]Record, error)
}

// GrantStore makes a hold, or finds out that it was made.
type GrantStore interface {
	// Create inserts a held record, with token 0, if name has none.
	Create(ctx context.Context, name string, h Hold, v Version) (ok bool, err error)

	// Acquire sets the hold, incrementing the token, which it returns. The record must have no
	// hold, and no entries; for a shared hold (see [Hold]) fewer entries than h.Permits. Nobody
	// else may be first in its queue, which h.ID leaves.
	Acquire(ctx context.Context, name string, h Hold, v Version) (token int64, ok bool, err error)

	// TakeOver replaces the hold (or the absence of one) of a record without entries whose version
	// is seen. Otherwise it is like Acquire.
	TakeOver(ctx context.Context, name string, seen Version, h Hold, v Version) (token int64, ok bool, err error)

	// HandOff replaces the hold of a record held with from. Otherwise it is like Acquire. Both are
	// exclusive.
	HandOff(ctx context.Context, name string, from HoldID, h Hold, v Version) (token int64, ok bool, err error)

	// Confirm is Renew that also makes the token greater than floor, if it is not yet, and returns
	// it. For a shared hold it increments the token in any case: the token of the record may be
	// that of another one by now.
	Confirm(ctx context.Context, name string, h Hold, floor int64, v Version) (token int64, ok bool, err error)
}

// HoldStore keeps a hold, and gives it back.
type HoldStore interface {
	// Renew sets a new version if the record is held with h.ID, and returns what the holder was
	// asked. Like everything that finds a hold by its ID, it looks among the entries if h is
	// shared.
	Renew(ctx context.Context, name string, h Hold, v Version) (asked string, ok bool, err error)

	// Release removes the hold if the record is held with h.ID. The record and its token stay.
	Release(ctx context.Context, name string, h Hold, v Version) (ok bool, err error)
}

// EntryStore keeps those entries of a record that do not hold the lock alone: the queue, and shares
// whose holder is dead.
type EntryStore interface {
	// Enqueue appends e to the queue of an existing record or, if e.ID is there, sets its version.
	// It may take two steps. It leaves the version of the record alone, as Dequeue does.
	Enqueue(ctx context.Context, name string, e Entry) (ok bool, err error)

	// Dequeue removes id from the queue, if its version is seen; any, if that is zero.
	Dequeue(ctx context.Context, name string, id HoldID, seen Version) (ok bool, err error)

	// Expire removes an entry, if its version is still e.Version.
	Expire(ctx context.Context, name string, e Entry, v Version) (ok bool, err error)
}

// AdminStore does what people want from a holder.
type AdminStore interface {
	// Ask notes that the holder should release, if the record is held with h.ID. It leaves the
	// versions alone.
	Ask(ctx context.Context, name string, h Hold, why string) (ok bool, err error)

	// Force is Release that also increments the token and notes what happened in Record.Forced.
	Force(ctx context.Context, name string, h Hold, why string, v Version) (ok bool, err error)
}

// Watcher is what a [Store] may be besides: it tells which records have become free, so that
// waiters look at once instead of at their next poll. It is a hint: names may be missing, late or
// wrong.
type Watcher interface {
	// Watch sends the names of records as they become free, from now on until ctx ends or the
	// connection is lost; then it closes the channel. The error of the first call means that the
	// server has no such thing; it is not asked again.
	Watch(ctx context.Context) (<-chan string, error)
}

// BatchRenewer is what a [Store] may be besides: it renews many holds with one command. A [Locker]
// that holds many locks costs its server a few commands per fifth of a lease then, whatever their
// number.
type BatchRenewer interface {
	// RenewMany does what [HoldStore.Renew] does for each of at most [MaxRenewals] holds, each by
	// itself: one that is not found, or whose record cannot be read, keeps no other one from being
	// renewed. found is how many were found and renewed. After an error, whichever it is, any of
	// them may have been.
	RenewMany(ctx context.Context, renewals []Renewal) (found int, err error)

	// Requests returns what the holders of these records, at most MaxRenewals, were asked, by the
	// IDs of the holds; those that were asked nothing are left out. It may be stale: it is a hint.
	Requests(ctx context.Context, names []string) (asked map[HoldID]string, err error)
}

// MaxRenewals bounds a batch of renewals.
const MaxRenewals = 1000

// Renewal is one of a batch: the arguments of [HoldStore.Renew].
type Renewal struct {
	Name    string
	Hold    Hold
	Version Version
}

// Remover is what a [Store] may be besides: it removes what it cannot read.
type Remover interface {
	// RemoveDamaged removes the record of name if Read fails with a [DamagedError].
	RemoveDamaged(ctx context.Context, name string) (ok bool, err error)
}

// Record is the state of one name in a store.
type Record struct {
	Name    string
	Token   int64   // last granted fencing token; only ever grows, survives release; 0 = none granted yet
	Version Version // changes with every write of a holder or taker
	Hold    *Hold   // of the exclusive holder; nil = there is none
	Shares  []Entry // the shared holders, oldest first; never together with Hold
	Queue   []Entry // who waits in the queue, oldest first; nobody but the first may acquire
	Forced  *Forced // the last forced release

	Damaged *DamagedError // why the record cannot be read; in lists only. Everything else but Name is empty then

	// Since is when the lock was last acquired, At when the record was last written, on the
	// server's clock. For people and for garbage collection: no decision of the protocol looks at
	// them. At may be zero until the first renewal.
	Since, At time.Time
}

// Held tells whether anybody holds the lock.
func (r Record) Held() bool { return r.Hold != nil || len(r.Shares) > 0 }

// Holds returns all holds, exclusive or shared.
func (r Record) Holds() []Hold {
	if r.Hold != nil {
		return []Hold{*r.Hold}
	}
	holds := make([]Hold, len(r.Shares))
	for i, e := range r.Shares {
		holds[i] = e.Hold
	}
	return holds
}

// Hold says who holds a lock, or wants to.
type Hold struct {
	ID      HoldID        // one per acquisition
	Lease   time.Duration // the holder's lease, in whole milliseconds
	Owner   Process
	Why     string // what for; may be empty
	Permits int    // at most so many share the lock; 0 = exclusive
	Asked   string // why it should be released soon, if somebody asked for that
}

// Shared tells whether the hold leaves room for others of its kind.
func (h Hold) Shared() bool { return h.Permits > 0 }

// Entry is one of several holds of a record, with a version of its own: each is renewed, and dies,
// by itself.
type Entry struct {
	Hold
	Version Version
}

// Forced tells of a release by force.
type Forced struct {
	ID  HoldID // of the hold that was removed
	Why string
}

// MaxEntries bounds the entries of a record, and its queue.
const MaxEntries = 1000

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

// MarshalText writes the id as String does.
func (id HoldID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *HoldID) UnmarshalText(text []byte) error { return unhex(id[:], text) }

// MarshalText writes the version as String does.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (v *Version) UnmarshalText(text []byte) error { return unhex(v[:], text) }

func unhex(into, text []byte) error {
	if len(text) != hex.EncodedLen(len(into)) {
		return fmt.Errorf("%d hexadecimal digits, want %d", len(text), hex.EncodedLen(len(into)))
	}
	_, err := hex.Decode(into, text)
	return err
}

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
type Process struct {
	Host     string // host name
	PID      int    // process id on that host
	Instance string // random, one per process start (or whatever the application calls itself)

	// Boot, PIDNamespace and Started make it provable that a process of this machine is gone: the
	// boot of the machine, the namespace that PID belongs to, and the start of the process in clock
	// ticks since boot. Empty where the system does not tell; then a dead holder is found by its
	// lease alone.
	Boot         string
	PIDNamespace string
	Started      string
}

func (o Process) String() string {
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
