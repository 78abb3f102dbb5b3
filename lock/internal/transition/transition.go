// Package transition implements the operations of [lock.Store] as functions on one record, for
// stores that read and write a record in one transaction (sqlitelock, locktest.Memory). Each function
// reports whether its condition was met; if not, the record is unchanged.
//
// A transition copies every slice and hold before changing it, so the old and the new record share no
// modified data.
package transition

import (
	"slices"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// Func changes a record, and reports whether its condition was met. If exists is false, there is no
// record yet, and r has only its name.
type Func func(r *lock.Record, exists bool) bool

// Create creates a held record without a token.
func Create(h lock.Hold, v lock.Version, now time.Time) Func {
	return func(r *lock.Record, exists bool) bool {
		if exists {
			return false
		}
		hold(r, h, v, now)
		return true
	}
}

// Acquire takes a record that no hold, share or earlier waiter blocks.
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

// TakeOver replaces the hold of a record that still has the version seen.
func TakeOver(seen lock.Version, h lock.Hold, v lock.Version, now time.Time) Func {
	return func(r *lock.Record, exists bool) bool {
		if !exists || r.Version != seen || len(r.Shares) > 0 || !turn(r, h.ID) {
			return false
		}
		take(r, h, v, now)
		return true
	}
}

// HandOff replaces the hold with the ID from.
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

// Asked returns the reason of a request to release h, or "".
func Asked(r lock.Record, h lock.Hold) string {
	if mine := find(&r, h); mine != nil {
		return mine.Asked
	}
	return ""
}

// Confirm renews, and raises the token above floor unless it is higher already. For a share it always
// raises the token: the record's token may belong to another share.
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

// Expire removes a share that still has the version of e.
func Expire(e lock.Entry, v lock.Version) Func {
	return func(r *lock.Record, _ bool) bool {
		i := slices.IndexFunc(r.Shares, is(e.ID))
		return i >= 0 && r.Shares[i].Version == e.Version && remove(r, e.Hold, v)
	}
}

// Ask records a request to release. It does not change the version, because a new version means that
// the holder is alive.
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

// Force removes the hold, records the forced release, and raises the token.
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

// Enqueue joins the queue.
func Enqueue(e lock.Entry) Func {
	return func(r *lock.Record, exists bool) bool {
		if !exists || len(r.Queue) >= lock.MaxEntries || slices.ContainsFunc(r.Queue, is(e.ID)) {
			return false
		}
		r.Queue = append(slices.Clone(r.Queue), e)
		return true
	}
}

// RenewPlace renews the place of e.ID in the queue.
func RenewPlace(e lock.Entry) Func {
	return func(r *lock.Record, _ bool) bool {
		i := slices.IndexFunc(r.Queue, is(e.ID))
		if i < 0 {
			return false
		}
		r.Queue = slices.Clone(r.Queue)
		r.Queue[i].Version = e.Version
		return true
	}
}

// Dequeue removes id from the queue, if seen is zero or the version of its place.
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

// most is the largest number of shares a record may have for h to be granted.
func most(h lock.Hold) int {
	if h.Shared() {
		return h.Permits - 1
	}
	return 0
}

// turn reports whether the queue is empty or id is first in it.
func turn(r *lock.Record, id lock.HoldID) bool { return len(r.Queue) == 0 || r.Queue[0].ID == id }

func is(id lock.HoldID) func(lock.Entry) bool { return func(e lock.Entry) bool { return e.ID == id } }

// take grants the record to h: it increments the token, and removes h from the queue.
func take(r *lock.Record, h lock.Hold, v lock.Version, now time.Time) {
	r.Token++
	r.Queue = slices.DeleteFunc(slices.Clone(r.Queue), is(h.ID))
	hold(r, h, v, now)
}

// hold makes h the exclusive holder, or one more share.
func hold(r *lock.Record, h lock.Hold, v lock.Version, now time.Time) {
	r.Version, r.Since = v, now
	if h.Shared() {
		r.Hold, r.Shares = nil, append(slices.Clone(r.Shares), lock.Entry{Hold: h, Version: v})
	} else {
		r.Hold = &h
	}
}

// find returns the hold or share with the ID of h, or nil. The result is a copy within r and can be
// modified.
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

// touch gives the hold h, and the record, a new version, which shows that the holder is alive. It does nothing if h is
// not in the record.
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

// remove removes the hold h. The new version shows other processes that the record has changed.
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

// Token is the result of a granting operation of a store: the record's token, if the condition was met.
func Token(ok bool, r lock.Record, err error) (int64, bool, error) {
	if !ok {
		return 0, false, err
	}
	return r.Token, true, err
}
