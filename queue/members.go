package queue

import (
	"context"
	"time"
)

// Member is a running worker replica, as it describes itself in every heartbeat.
type Member struct {
	Instance string // the replica's instance
	Host     string
	PID      int
	Version  string
	Started  time.Time // by the backend's clock, to the millisecond
	Types    []string  // the names and globs that it serves
	MaxTypes int       // the most types that it holds at once; 0 = no bound
	Held     []string  // the types that it holds now
	Idle     []string  // those of Held that have had no message for a while
	Leaving  []string  // those of Held that it gives back to whoever comes for them
	Stopping bool      // it takes no new types, and leaves all that it holds

	// Errors is what keeps it from draining types now, by type: for people. At most 50 of at most
	// 500 bytes; Heartbeat leaves out the rest.
	Errors map[string]string

	// Beat is another number with every heartbeat. Who watches members counts one as gone when its
	// Beat has stood still for some heartbeats by the watcher's own monotonic clock: no clocks are
	// compared.
	Beat int64
	// Seen is when the last heartbeat came, by the backend's clock, to the millisecond, set by
	// Heartbeat. It is for people.
	Seen time.Time
}

// MemberRetention is how long after its last heartbeat a member that did not leave is listed, at
// least. Other members remove it then, by Leave.
const MemberRetention = 10 * time.Minute

// MemberStore is the part of a Queue through which worker replicas see each other, to share the
// types among them. Nothing rests on it but how evenly types are spread: the lock decides who holds
// one.
type MemberStore interface {
	// Heartbeat stores m in the place of what m.ID has stored before. It needs no durability.
	Heartbeat(ctx context.Context, m Member) error

	// Members returns those that have not left, sorted by ID: the first ones behind the ID after, at
	// most so many, or all if most is 0. Fewer than most are all that there are. Some may have died.
	Members(ctx context.Context, after string, most int) ([]Member, error)

	// Leave removes a member. One that is gone already is no error.
	Leave(ctx context.Context, id string) error
}
