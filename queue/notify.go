package queue

import "context"

// Notifications tells of types with new messages.
type Notifications struct {
	Types  []string // each once, in no order
	Missed bool     // there were more, or nobody knows: look at all types
	Next   NotificationMark
}

// NotificationMark is how far a reader of notifications has come: how many each log of the backend
// has had. Its zero value is before all of them. Readers keep it and do nothing else with it.
type NotificationMark map[string]int64

// Notifier tells workers that types have new messages.
type Notifier interface {
	// Notify says that each of these types has new messages. It is one small write, whatever the
	// number of types, and needs no durability.
	Notify(ctx context.Context, types []string) error
}

// NotificationStore is the part of a Queue through which publishers tell workers of new messages,
// so that workers need not look at every type all the time.
//
// A notification is a hint. It may be lost, late, doubled, or about a type that has nothing: whoever
// reads them lists the pending types besides, every 30 s at least.
//
// What is kept is bounded: each of a few logs has a count of all notifications that it ever had,
// and the latest of them. A reader that comes too late for some sees it in the count. No clock is
// used, so none can be wrong; a database that was set back shows in a count that is lower.
type NotificationStore interface {
	Notifier

	// Notifications returns what came behind a mark, in one read. When nothing is new it costs the
	// server a look at each log. A name that no type can have is left out. Before the zero mark
	// others may have been, so Missed is set.
	Notifications(ctx context.Context, since NotificationMark) (Notifications, error)

	// PendingTypes lists the types that have messages, and those that merely have foreign keys,
	// sorted by name. Its cost grows with the number of those types only. What is not ours is passed
	// over as in Types.
	PendingTypes(ctx context.Context) ([]string, error)
}
