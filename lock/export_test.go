package lock

import "time"

// Mutants for the removal tests.
const (
	MutantEarlyTakeover     = mutantEarlyTakeover
	MutantOwnLease          = mutantOwnLease
	MutantDeadlineFromReply = mutantDeadlineFromReply
	MutantNoLossTimer       = mutantNoLossTimer
	MutantNoConfirm         = mutantNoConfirm
)

type Mutant = mutant

// Mutate returns o with the rule removed.
func Mutate(o Options, m Mutant) Options {
	o.mutant = m
	return o
}

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
