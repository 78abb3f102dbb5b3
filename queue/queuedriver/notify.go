package queuedriver

import (
	"slices"

	"github.com/fencepost/fencepost/queue"
)

// KeptNotifications is how many notifications a log keeps, at least.
const KeptNotifications = 128

// CheckNotify checks the arguments of Notify; every backend calls it first.
func CheckNotify(types []string) error {
	for _, typ := range types {
		if err := queue.ValidateType(typ); err != nil {
			return err
		}
	}
	return nil
}

// NotificationReader computes the result of Notifications from the logs that a backend has read. Make
// one with [ReadNotifications].
type NotificationReader struct {
	since queue.NotificationMark
	found map[string]bool
	out   queue.Notifications
}

// ReadNotifications returns a reader for what is new since a mark. Call Log for each log; logs without
// a call count as unchanged.
func ReadNotifications(since queue.NotificationMark) *NotificationReader {
	r := &NotificationReader{since: since, found: map[string]bool{}, out: queue.Notifications{Missed: since == nil, Next: queue.NotificationMark{}}}
	for log, count := range since {
		r.out.Next[log] = count
	}
	return r
}

// Log adds a log: how many notifications it ever had, and the latest of them, in order.
//
// rule: a count below the mark means that the database was restored: all that the log has is new, and more may be missing.
func (r *NotificationReader) Log(name string, count int64, latest []string) {
	behind, known := r.since[name]
	r.out.Next[name] = count
	fresh := int64(len(latest))
	switch {
	case !known:
		r.out.Missed = r.out.Missed || len(latest) >= KeptNotifications
	case count < behind, uint64(count-behind) > uint64(fresh): // another program may have written any number
		r.out.Missed = true
	default:
		fresh = count - behind
	}
	for _, typ := range latest[len(latest)-int(fresh):] {
		if !r.found[typ] && queue.ValidateType(typ) == nil {
			r.found[typ] = true
			r.out.Types = append(r.out.Types, typ)
		}
	}
}

// Result returns the result of Notifications.
func (r *NotificationReader) Result() queue.Notifications { return r.out }

// LatestNotifications returns the types of a notification that a log must keep.
func LatestNotifications(types []string) []string {
	return slices.Clone(types[max(len(types)-KeptNotifications, 0):])
}
