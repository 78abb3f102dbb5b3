package queue

import "context"

// Notifications is the result of [NotificationStore].Notifications: types with new messages.
type Notifications struct {
	Types  []string // each once, in no order
	Missed bool     // there were more, or may have been: check all types
	Next   NotificationMark
}

// NotificationMark is the position of a reader of notifications. It is opaque to readers, and holds
// the count of each of the backend's logs. The zero value precedes everything.
type NotificationMark map[string]int64

// Notifier tells workers that types have new messages.
type Notifier interface {
	// Notify says that each of these types has new messages. It is one small write for any number of
	// types, and need not be durable.
	Notify(ctx context.Context, types []string) error
}

// NotificationStore is the role of a Queue through which publishers notify workers of new messages, so
// that workers need not poll every type.
//
// A notification is a hint. It may be lost, late, duplicated, or about a type without messages. So a
// reader must also list the pending types, at least every 30 s.
//
// The store is bounded: each of a few logs keeps the latest notifications, and a count of all that it
// ever had. A reader that comes too late for some sees that in the count. No clocks are involved. If
// the database is restored to an earlier state, a count is lower than the reader's.
type NotificationStore interface {
	Notifier

	// Notifications returns what is new since a mark, in one read. If nothing is new, the server
	// reads only one entry of each log. Invalid type names are omitted. For the zero mark Missed is
	// set, because there may have been any number of notifications before.
	Notifications(ctx context.Context, since NotificationMark) (Notifications, error)

	// PendingTypes lists, sorted by name, the types that have messages or foreign keys. Its cost
	// grows only with the number of those types. It skips foreign keys like Types. If ctx has a
	// deadline, it may end before that without having seen all types; the next call continues there.
	PendingTypes(ctx context.Context) ([]string, error)

	// Pending returns, sorted by name, up to most of the given types: only types that have messages or
	// foreign keys. If it returns fewer than most, each of the others had none at some moment during
	// the call. Its cost grows with what it returns, not with the number of types that have none.
	Pending(ctx context.Context, types []string, most int) ([]string, error)
}
