package lock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
)

// Store is implemented by a backend: atomic operations on one record per name. A backend does not need
// to know the protocol; each method must do exactly what its comment says, atomically. All methods
// must be safe for concurrent use. Package locktest has the conformance tests.
//
// A nil error means that the answer is certain and, for a write, that it survives every failure the
// backend is built for (MongoDB: acknowledged by a majority). Any error means that the
// outcome is unknown, unless it wraps [ErrPermanent]: then nothing was written. ok = false with a
// nil error means that the condition was not met, and nothing was written.
//
// A write with an argument v sets the version of the record (and that of the entry it changes) to v,
// and sets the dates of the record if the server can.
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
	// Read returns the record of name; found is false if there is none. The record may be stale:
	// callers use it as a hint only, and the condition of the next write decides.
	Read(ctx context.Context, name string) (r Record, found bool, err error)

	// List returns all records, sorted by name. A record that cannot be decoded has only Name and
	// Damaged, which gives the reason.
	List(ctx context.Context) ([]Record, error)
}

// GrantStore has the operations that grant a lock, or confirm that it was granted.
type GrantStore interface {
	// Create inserts a held record, with token 0, if name has no record. The caller then gets its
	// first token from Confirm.
	Create(ctx context.Context, name string, h Hold, v Version) (ok bool, err error)

	// Acquire sets the hold, and increments and returns the token. Conditions: the record exists
	// and has no Hold; it has no Shares or, for a shared hold (see [Hold]), fewer than h.Permits,
	// none of which is h.ID; no other waiter is first in its queue. h.ID is removed from the queue.
	Acquire(ctx context.Context, name string, h Hold, v Version) (token int64, ok bool, err error)

	// TakeOver is Acquire for a record with the version seen and no Shares. h replaces the record's
	// Hold, if there is one.
	TakeOver(ctx context.Context, name string, seen Version, h Hold, v Version) (token int64, ok bool, err error)

	// HandOff is Acquire for a record whose Hold has the ID from: h replaces it. Both are exclusive.
	HandOff(ctx context.Context, name string, from HoldID, h Hold, v Version) (token int64, ok bool, err error)

	// Confirm is Renew that also raises the token above floor, unless it is higher already, and
	// returns it. For a shared hold it always raises the token: the record's token may belong to
	// another share by now.
	Confirm(ctx context.Context, name string, h Hold, floor int64, v Version) (token int64, ok bool, err error)
}

// HoldStore has the operations of a holder: renew and release.
type HoldStore interface {
	// Renew sets a new version if the record is held with h.ID. asked is the reason given with a
	// request to release ([Hold].Asked). Like every operation that finds a hold by its ID, it
	// searches Shares if h is shared.
	Renew(ctx context.Context, name string, h Hold, v Version) (asked string, ok bool, err error)

	// Release removes the hold if the record is held with h.ID. The record and its token stay.
	Release(ctx context.Context, name string, h Hold, v Version) (ok bool, err error)
}

// EntryStore changes the lists in a record: its queue, and shares whose holder is dead.
type EntryStore interface {
	// Enqueue appends e to the queue of an existing record, and returns the changed record. ok is
	// false if there is no record, or if its queue is full or already contains e.ID. Operations on
	// the queue do not change the version of the record: a waiter must not make a dead holder
	// appear alive.
	Enqueue(ctx context.Context, name string, e Entry) (r Record, ok bool, err error)

	// RenewPlace sets the version of the entry e.ID in the queue to e.Version. ok is false if there
	// is no such entry.
	RenewPlace(ctx context.Context, name string, e Entry) (ok bool, err error)

	// Dequeue removes id from the queue if its entry has the version seen. A zero seen matches any
	// version.
	Dequeue(ctx context.Context, name string, id HoldID, seen Version) (ok bool, err error)

	// Expire removes the share e.ID if its version is still e.Version.
	Expire(ctx context.Context, name string, e Entry, v Version) (ok bool, err error)
}

// AdminStore has the operations of an operator on another process's hold.
type AdminStore interface {
	// Ask records a request to release, if the record is held with h.ID. It must not change any
	// version: the request does not show that the holder is alive.
	Ask(ctx context.Context, name string, h Hold, why string) (ok bool, err error)

	// Force is Release that also increments the token, so that a resource can refuse the old
	// holder, and sets Record.Forced.
	Force(ctx context.Context, name string, h Hold, why string, v Version) (ok bool, err error)
}

// Watcher is an optional interface of a [Store]: it reports which records have become free, so that
// waiters read at once instead of at their next poll. The names are hints: they may be missing, late
// or wrong.
type Watcher interface {
	// Watch sends the names of records as they become free, from now on until ctx ends or the
	// connection is lost; then it closes the channel. An error of the first call means that the
	// server does not support watching; Watch is then not called again.
	Watch(ctx context.Context) (<-chan string, error)
}

// BatchRenewer is an optional interface of a [Store]: it renews many holds with one command. With
// it, a [Locker] sends its server a few commands per fifth of a lease, however many locks it holds.
type BatchRenewer interface {
	// RenewMany performs [HoldStore.Renew] for each of at most [MaxRenewals] holds, independently: a
	// hold that is not found, or whose record is damaged, does not stop the others. found is the
	// number of holds found and renewed. After any error, each of them may or may not have been
	// renewed.
	RenewMany(ctx context.Context, renewals []Renewal) (found int, err error)

	// Requests returns the requests to release in these records, at most MaxRenewals, keyed by the ID
	// of the hold. The result is a hint and may be stale.
	Requests(ctx context.Context, names []string) (asked map[HoldID]string, err error)
}

// MaxRenewals bounds a batch of renewals.
const MaxRenewals = 2000

// Renewal is one renewal of a batch: the arguments of [HoldStore.Renew].
type Renewal struct {
	Name    string
	Hold    Hold
	Version Version
}

// Remover is an optional interface of a [Store]: it removes records that it cannot decode, which no
// other operation can change.
type Remover interface {
	// RemoveDamaged removes the record of name if Read fails with a [DamagedError].
	RemoveDamaged(ctx context.Context, name string) (ok bool, err error)
}

// Record is the state of one name in a store. It stays when the lock is released, because it holds
// the token counter.
type Record struct {
	Name    string
	Token   int64   // last granted fencing token; only ever grows, survives release; 0 = none granted yet
	Version Version // changes with every write except those of the queue and of requests to release
	Hold    *Hold   // of the exclusive holder; nil = there is none
	Shares  []Entry // the shared holders, oldest first; never together with Hold
	Queue   []Entry // the waiters in the queue, oldest first; only the first may acquire
	Forced  *Forced // the last forced release

	Damaged *DamagedError // why the record cannot be decoded; set by List only. All other fields but Name are then empty

	// Since is when the lock was last acquired, At when the record was last written, on the
	// server's clock. Writes that do not change the version do not change At. The dates are for
	// people, for garbage collection, and for estimating how long a lock is held; safety never
	// depends on them. At may be zero until the first renewal.
	Since, At time.Time
}

// Held reports whether the lock is held.
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

// Hold describes one acquisition: its owner holds the lock, or waits for it.
type Hold struct {
	ID      HoldID        // one per acquisition
	Lease   time.Duration // the holder's lease, in whole milliseconds
	Owner   Process
	Why     string // what for; may be empty
	Permits int    // at most this many share the lock; 0 = exclusive
	Asked   string // the reason given with a request to release; empty = there is none
}

// Shared reports whether the hold is shared (see WithPermits), not exclusive.
func (h Hold) Shared() bool { return h.Permits > 0 }

// Entry is a share or a place in the queue: a hold with a version of its own, so that each is
// renewed, and presumed dead, independently of the others.
type Entry struct {
	Hold
	Version Version
}

// Forced records a release by force ([Locker.ForceRelease]).
type Forced struct {
	ID  HoldID // of the hold that was removed
	Why string
}

// MaxEntries bounds the shares of a record, and the places in its queue.
const MaxEntries = 1000

// HoldID identifies one acquisition: random, never reused, the same over all its retries.
//
// rule: not the host, the process or a session: a restarted or second user of those could then renew or release a lock
// that belongs to another (ShedLock#74, etcd#22082).
type HoldID [12]byte

// Version identifies one state of a record.
//
// rule: random, never a counter: after a rollback a counter can show the same number for a different state, and an
// observer would take the record for unchanged (ABA).
type Version [12]byte

func (id HoldID) String() string { return hex.EncodeToString(id[:]) }

func (v Version) String() string { return hex.EncodeToString(v[:]) }

// MarshalText writes the id as String does.
func (id HoldID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses the output of MarshalText.
func (id *HoldID) UnmarshalText(text []byte) error { return unhex(id[:], text) }

// MarshalText writes the version as String does.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText parses the output of MarshalText.
func (v *Version) UnmarshalText(text []byte) error { return unhex(v[:], text) }

// unhex decodes text into exactly len(into) bytes.
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

// Process identifies the process that holds a lock: to people (Host, PID and Instance), and to other
// processes of the same machine, which may detect that it has ended.
type Process struct {
	Host     string // host name
	PID      int    // process id on that host
	Instance string // tells processes with the same Host and PID apart: random per start, or chosen by the application

	// Boot, PIDNamespace and Started can prove, to a process with the same Host, that a process of
	// this machine has ended: the ID of the machine's boot, the namespace that PID belongs to, and
	// the start of the process in clock ticks since boot. They are empty on systems that do not
	// provide them; then only an expired lease shows that a holder is dead.
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
