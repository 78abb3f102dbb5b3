package queue

import (
	"context"
	"time"
)

// Member is a running worker replica, as it describes itself in every heartbeat.
type Member struct {
	Instance string // identifies the replica: random, new with every start
	Host     string
	PID      int
	Version  string
	Started  time.Time // by the backend's clock, to the millisecond
	Types    []string  // the names and globs that it serves
	MaxTypes int       // the most types that it holds at once; 0 = no bound
	To       string    // where it puts messages: ToFiles or ToHandler; "" from an earlier version
	Held     []string  // the types that it holds now
	Idle     []string  // those of Held that have had no message for a while
	Leaving  []string  // those of Held that are up for handoff
	Stopping bool      // it takes no new types, and all of Held are up for handoff

	// Errors says, by type, what prevents the replica from draining the type now. For display only.
	// Heartbeat keeps at most 50, of 500 bytes each.
	Errors map[string]string

	// Beat changes with every heartbeat. A replica considers another one dead if the other's Beat has
	// not changed for several heartbeat intervals, by the monotonic clock of the replica that checks.
	// So clocks of different machines need not agree.
	Beat int64
	// Seen is the time of the last heartbeat by the backend's clock, to the millisecond. Heartbeat
	// sets it. For display only.
	Seen time.Time
}

// Values of Member.To.
const (
	ToFiles   = "files"
	ToHandler = "handler"
)

// MemberRetention is how long, at least, a member that did not leave stays listed after its last
// heartbeat. Then other members remove it, by Leave.
const MemberRetention = 10 * time.Minute

// MemberStore is the role of a Queue through which worker replicas see each other, to share the types
// among them. Only the balance depends on it: the lock decides who holds a type.
type MemberStore interface {
	// Heartbeat stores m, replacing the last heartbeat of m.Instance. It need not be durable.
	Heartbeat(ctx context.Context, m Member) error

	// Members returns members that have not left, sorted by Instance: the first ones after the instance
	// after, at most most of them, or all if most is 0. Fewer than most means that there are no more. Some
	// may be dead.
	Members(ctx context.Context, after string, most int) ([]Member, error)

	// Leave removes a member, by Instance. It is no error if there is none.
	Leave(ctx context.Context, id string) error
}
