// Package transition has the operations of [lock.Store] as functions on one record, for stores that
// can read and write a record in one transaction. Each reports whether its condition was met; if
// not, the record is as it was.
//
// Records share nothing after a transition: what it changes it copies first.
package transition

import (
	"slices"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// A Func changes a record; exists is false, and the record empty but for its name, when there is
// none.
type Func func(r *lock.Record, exists bool) bool

// Create makes a held record without a token.
func Create(h lock.Hold, v lock.Version, now time.Time) Func {
	return func(r *lock.Record, exists bool) bool {
		if exists {
			return false
		}
		hold(r, h, v, now)
		return true
	}
}

// Acquire takes a record that nobody is in the way of.
func Acquire(h lock.Hold, v lock.Version, now time.Time) Func {
	return func(r *lock.Record, exists bool) bool {
		if !exists || r.Hold != nil || !turn(r, h.ID) || len(r.Shares) > most(h) ||
			slices.ContainsFunc(r.Shares, is(h.ID)) {
			return false
		}
		take(r, h, v, now)
		return true
	}
}

// TakeOver replaces the hold of a record that stood still.
func TakeOver(seen lock.Version, h lock.Hold, v lock.Version, now time.Time) Func {
	return func(r *lock.Record, exists bool) bool {
		if !exists || r.Version != seen || len(r.Shares) > 0 || !turn(r, h.ID) {
			return false
		}
		take(r, h, v, now)
		return true
	}
}

// HandOff replaces the hold from.
func HandOff(from lock.HoldID, h lock.Hold, v lock.Version, now time.Time) Func {
	return func(r *lock.Record, _ bool) bool {
		if r.Hold == nil || r.Hold.ID != from || !turn(r, h.ID) {
			return false
		}
		take(r, h, v, now)
		return true
	}
}

// Renew writes a new version.
func Renew(h lock.Hold, v lock.Version) Func {
	return func(r *lock.Record, _ bool) bool { return touch(r, h, v) }
}

// Asked is what the holder was asked.
func Asked(r lock.Record, h lock.Hold) string {
	if mine := find(&r, h); mine != nil {
		return mine.Asked
	}
	return ""
}

// Confirm renews and raises the token: to more than floor and, for an entry, always.
func Confirm(h lock.Hold, floor int64, v lock.Version) Func {
	return func(r *lock.Record, _ bool) bool {
		if !touch(r, h, v) {
			return false
		}
		if h.Shared() {
			floor = max(floor, r.Token)
		}
		r.Token = max(r.Token, floor+1)
		return true
	}
}

// Release removes the hold.
func Release(h lock.Hold, v lock.Version) Func {
	return func(r *lock.Record, _ bool) bool { return remove(r, h, v) }
}

// Expire removes an entry that stood still.
func Expire(e lock.Entry, v lock.Version) Func {
	return func(r *lock.Record, _ bool) bool {
		i := slices.IndexFunc(r.Shares, is(e.ID))
		return i >= 0 && r.Shares[i].Version == e.Version && remove(r, e.Hold, v)
	}
}

// Ask notes a request to release.
func Ask(h lock.Hold, why string) Func {
	return func(r *lock.Record, _ bool) bool {
		mine := find(r, h)
		if mine == nil {
			return false
		}
		mine.Asked = why
		return true
	}
}

// Force removes the hold, notes that, and raises the token.
func Force(h lock.Hold, why string, v lock.Version) Func {
	return func(r *lock.Record, _ bool) bool {
		if !remove(r, h, v) {
			return false
		}
		r.Token++
		r.Forced = &lock.Forced{ID: h.ID, Why: why}
		return true
	}
}

// Enqueue joins the queue or renews the place in it.
func Enqueue(e lock.Entry) Func {
	return func(r *lock.Record, exists bool) bool {
		if !exists {
			return false
		}
		r.Queue = slices.Clone(r.Queue)
		if i := slices.IndexFunc(r.Queue, is(e.ID)); i >= 0 {
			r.Queue[i].Version = e.Version
			return true
		}
		if len(r.Queue) >= lock.MaxEntries {
			return false
		}
		r.Queue = append(r.Queue, e)
		return true
	}
}

// Dequeue leaves the queue, or removes from it what stood still.
func Dequeue(id lock.HoldID, seen lock.Version) Func {
	return func(r *lock.Record, _ bool) bool {
		i := slices.IndexFunc(r.Queue, is(id))
		if i < 0 || seen != (lock.Version{}) && seen != r.Queue[i].Version {
			return false
		}
		r.Queue = slices.Delete(slices.Clone(r.Queue), i, i+1)
		return true
	}
}

// most is the number of entries that h can come on top of.
func most(h lock.Hold) int {
	if h.Shared() {
		return h.Permits - 1
	}
	return 0
}

// turn tells whether nobody else is first in the queue.
func turn(r *lock.Record, id lock.HoldID) bool { return len(r.Queue) == 0 || r.Queue[0].ID == id }

func is(id lock.HoldID) func(lock.Entry) bool { return func(e lock.Entry) bool { return e.ID == id } }

func take(r *lock.Record, h lock.Hold, v lock.Version, now time.Time) {
	r.Token++
	r.Queue = slices.DeleteFunc(slices.Clone(r.Queue), is(h.ID))
	hold(r, h, v, now)
}

func hold(r *lock.Record, h lock.Hold, v lock.Version, now time.Time) {
	r.Version, r.Since = v, now
	if h.Shared() {
		r.Hold, r.Shares = nil, append(slices.Clone(r.Shares), lock.Entry{Hold: h, Version: v})
	} else {
		r.Hold = &h
	}
}

// find returns a copy of the hold or entry h that is in the record, or nil.
func find(r *lock.Record, h lock.Hold) *lock.Hold {
	if !h.Shared() {
		if r.Hold == nil || r.Hold.ID != h.ID {
			return nil
		}
		mine := *r.Hold
		r.Hold = &mine
		return r.Hold
	}
	i := slices.IndexFunc(r.Shares, is(h.ID))
	if i < 0 {
		return nil
	}
	r.Shares = slices.Clone(r.Shares)
	return &r.Shares[i].Hold
}

func touch(r *lock.Record, h lock.Hold, v lock.Version) bool {
	if find(r, h) == nil {
		return false
	}
	r.Version = v
	if h.Shared() {
		r.Shares[slices.IndexFunc(r.Shares, is(h.ID))].Version = v
	}
	return true
}

func remove(r *lock.Record, h lock.Hold, v lock.Version) bool {
	if find(r, h) == nil {
		return false
	}
	r.Version = v
	if h.Shared() {
		r.Shares = slices.DeleteFunc(slices.Clone(r.Shares), is(h.ID))
	} else {
		r.Hold = nil
	}
	return true
}
