package mongolock

import (
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/lock"
)

// document is a record as stored. The package comment describes the fields; their names are short
// because every document contains them.
type document struct {
	ID      string        `bson:"_id"`
	Token   int64         `bson:"token"`
	Version bson.ObjectID `bson:"v"`
	Hold    *hold         `bson:"h,omitempty"`
	Shares  []hold        `bson:"s,omitempty"`
	Queue   []hold        `bson:"q,omitempty"`
	Forced  *forced       `bson:"f,omitempty"`
	Since   time.Time     `bson:"since,omitempty"`
	At      time.Time     `bson:"at,omitempty"`
}

// hold is the exclusive holder (h), a share (an element of s) or a place in the queue (an element of q).
type hold struct {
	ID      bson.ObjectID  `bson:"id"`
	Version *bson.ObjectID `bson:"v,omitempty"` // not in h: it has the record's
	MS      int64          `bson:"ms"`
	Owner   owner          `bson:"owner"`
	Why     string         `bson:"why,omitempty"`
	Permits int            `bson:"n,omitempty"`
	Asked   string         `bson:"rq,omitempty"`
}

// forced is the last forced release, in f.
type forced struct {
	ID  bson.ObjectID `bson:"id"`
	Why string        `bson:"why"`
}

// owner is a lock.Process; both must have the same fields, because one is converted into the other.
type owner struct {
	Host         string `bson:"host,omitempty"`
	PID          int    `bson:"pid,omitempty"`
	Instance     string `bson:"instance,omitempty"`
	Boot         string `bson:"boot,omitempty"`
	PIDNamespace string `bson:"pidns,omitempty"`
	Started      string `bson:"started,omitempty"`
}

// held returns the document of an exclusive hold.
func held(h lock.Hold) *hold {
	return &hold{ID: bson.ObjectID(h.ID), MS: h.Lease.Milliseconds(), Owner: owner(h.Owner), Why: h.Why, Permits: h.Permits,
		Asked: h.Asked}
}

// entry returns the document of a share or a place in the queue, which have versions of their own.
func entry(h lock.Hold, v lock.Version) *hold {
	e := held(h)
	e.Version = (*bson.ObjectID)(&v)
	return e
}

// hold converts h to a lock.Hold.
func (h hold) hold() lock.Hold {
	return lock.Hold{ID: lock.HoldID(h.ID), Lease: time.Duration(h.MS) * time.Millisecond, Owner: lock.Process(h.Owner), Why: h.Why,
		Permits: h.Permits, Asked: h.Asked}
}

// entries converts the shares or the queue to lock entries.
func entries(list []hold) []lock.Entry {
	var es []lock.Entry
	for _, h := range list {
		e := lock.Entry{Hold: h.hold()}
		if h.Version != nil {
			e.Version = lock.Version(*h.Version)
		}
		es = append(es, e)
	}
	return es
}

// record converts d to a lock.Record.
func (d document) record() lock.Record {
	r := lock.Record{Name: d.ID, Token: d.Token, Version: lock.Version(d.Version), Since: d.Since, At: d.At,
		Shares: entries(d.Shares), Queue: entries(d.Queue)}
	if d.Hold != nil {
		h := d.Hold.hold()
		r.Hold = &h
	}
	if d.Forced != nil {
		r.Forced = &lock.Forced{ID: lock.HoldID(d.Forced.ID), Why: d.Forced.Why}
	}
	return r
}

// decode reads a document, which may have been written by another program: it refuses leases that do
// not fit a time.Duration. The error is a *lock.DamagedError.
func decode(name string, raw bson.Raw) (lock.Record, error) {
	var d document
	if err := bson.Unmarshal(raw, &d); err != nil {
		return lock.Record{}, &lock.DamagedError{Name: name, Cause: err}
	}
	holds := slices.Concat(d.Shares, d.Queue)
	if d.Hold != nil {
		holds = append(holds, *d.Hold)
	}
	for _, h := range holds {
		if h.MS < 0 || h.MS > math.MaxInt64/int64(time.Millisecond) {
			return lock.Record{}, &lock.DamagedError{Name: name, Cause: fmt.Errorf("a lease of %d ms", h.MS)}
		}
	}
	return d.record(), nil
}
