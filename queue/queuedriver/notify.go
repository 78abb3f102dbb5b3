package queuedriver

import (
	"slices"

	"github.com/fencepost/fencepost/queue"
)

// KeptNotifications is how many notifications a log keeps, at least.
const KeptNotifications = 128

// CheckNotify is what every backend calls first in Notify.
func CheckNotify(types []string) error {
	for _, typ := range types {
		if err := queue.ValidateType(typ); err != nil {
			return err
		}
	}
	return nil
}

// NotificationReader collects what logs of notifications have behind a mark. Use
// ReadNotifications.
type NotificationReader struct {
	since queue.NotificationMark
	found map[string]bool
	out   queue.Notifications
}

// ReadNotifications begins to collect. Logs that are not added are as they were.
func ReadNotifications(since queue.NotificationMark) *NotificationReader {
	r := &NotificationReader{since: since, found: map[string]bool{}, out: queue.Notifications{Missed: since == nil, Next: queue.NotificationMark{}}}
	for log, count := range since {
		r.out.Next[log] = count
	}
	return r
}

// Log adds a log: how many notifications it ever had, and the latest of them, the last one last.
//
// rule: a count below the mark is a database that was set back: all that the log has is new, and more may be missing.
func (r *NotificationReader) Log(name string, count int64, latest []string) {
	behind, known := r.since[name]
	r.out.Next[name] = count
	fresh := int64(len(latest))
	switch {
	case !known:
		r.out.Missed = r.out.Missed || len(latest) >= KeptNotifications
	case count < behind, uint64(count-behind) > uint64(fresh): // others may have written any number
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

// Result returns what was collected.
func (r *NotificationReader) Result() queue.Notifications { return r.out }

// LatestNotifications is what a log keeps of a notification about types.
func LatestNotifications(types []string) []string {
	return slices.Clone(types[max(len(types)-KeptNotifications, 0):])
}
