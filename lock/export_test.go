package lock

import (
	"context"
	"time"
)

// Standstill and Margin are the two waits of the protocol.
func Standstill(lease time.Duration) time.Duration { return standstill(lease) }
func Margin(lease time.Duration) time.Duration     { return margin(lease) }
func OpTimeout(lease time.Duration) time.Duration  { return opTimeout(lease) }

// DeadlineOf is when a lease ends or has ended if no renewal moved it, on its Locker's clock.
func DeadlineOf(le *Lease) time.Duration {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.deadline
}

// HoldOf is the id of a lease.
func HoldOf(le *Lease) HoldID { return le.hold.ID }

// PermitsOf is how many holders may share the lock of a lease; 0 = exclusive.
func PermitsOf(le *Lease) int { return le.hold.Permits }

// QueueLease is the lease of a place in the record's queue taken because of WithFair.
var QueueLease = fairPlace.lease

// PlaceLease is the lease of a place in the queue of a contended lock.
var PlaceLease = contendedPlace.lease

// OwnerOf describes the process pid as it would describe itself.
func OwnerOf(pid int) Process {
	o := ThisProcess()
	o.PID = pid
	o.Boot, o.PIDNamespace, o.Started = processIdentity(pid)
	return o
}

// ProvablyDead is the engine's check of a holder's process.
func ProvablyDead(self, holder Process) bool { return provablyDead(self, holder) }

// Limits of what a Locker remembers.
const (
	MaxObservations = maxObservations
	MaxDead         = maxDead
)

// Observations is the memory of a Locker.
type Observations struct{ o observations }

func (o *Observations) Saw(name string, r Record) { o.o.saw(name, r, true, 0) }
func (o *Observations) Bury(id HoldID)            { o.o.markDead(id) }
func (o *Observations) IsDead(id HoldID) bool     { return o.o.isDead(id) }
func (o *Observations) Names() int                { return len(o.o.names) }

// InLine is the number of goroutines that wait for name.
func InLine(l *Locker, name string) int { return l.queues.length(name) }

// MaxHandoffs bounds the handoffs in a row inside one process.
const MaxHandoffs = maxHandoffs

// EstimateTurn shows a waiter n turns of the given length, each of which ends with a free lock that was held
// for the given time, and returns the waiter's estimate of a turn.
func EstimateTurn(n int, turn, held time.Duration) time.Duration {
	var t turns
	granted := time.Now()
	for i := range n {
		t.saw(Record{Token: int64(i), Hold: &Hold{}}, HoldID{}, time.Duration(i)*turn)
		if held < turn {
			t.sawFree(Record{Since: granted, At: granted.Add(held)})
		}
	}
	return t.length()
}

// HandedOffBeforeUnpark delivers a handoff to a waiter whose pause then ends because its wait has ended. It reports whether the waiter gets
// the handoff.
func HandedOffBeforeUnpark(ctx, ended context.Context) bool {
	a := &attempt{l: &Locker{}, name: "n"}
	a.w = a.l.queues.join(ctx, "n", Hold{})
	a.l.queues.park(a.w, Hold{})
	a.l.queues.deliver(a.l.queues.choose("n"), handoff{grant: grant{ok: true}})
	g, handed := a.unpark(ended)
	return handed && g.ok
}

// HandedOffBeforeRun reports whether an attempt that got a handoff, and whose wait has ended since, must be undone.
func HandedOffBeforeRun(ended context.Context) bool {
	a := &attempt{l: &Locker{}, name: "n", begin: stepHandedOff, handoff: handoff{grant: grant{ok: true}}}
	le, err := a.run(ended, ended)
	return le == nil && err != nil && a.unclear
}
