package lock

import "sync/atomic"

// Stats are counters of one [Locker] since [New]. They only grow.
type Stats struct {
	Acquired      int64 // leases granted, takeovers included
	TakenOver     int64 // leases granted by a takeover from a holder presumed dead; also in Acquired
	HandedOff     int64 // leases granted by a handoff inside this process; also in Acquired
	Released      int64 // leases released
	LostExpired   int64 // leases lost at their deadline
	LostGone      int64 // leases that were no longer in the store, forced releases included
	LostMaxHold   int64 // leases lost because of WithMaxHold
	Suspected     int64 // times that half of a lease passed without a renewal
	Renewed       int64 // renewals acknowledged
	RenewFailed   int64 // renewals that failed or got no answer
	Unclear       int64 // acquiring operations whose outcome was unknown at first
	Abandoned     int64 // attempts and lost leases undone in the background
	Polls         int64 // reads while waiting
	Hints         int64 // names that a Watcher sent
	StoreFailures int64 // errors of the store while acquiring
}

// stats has the counters; see Stats.
type stats struct {
	acquired, takenOver, released, lostExpired, lostGone, lostMaxHold, suspected, renewed, renewFailed, unclear, abandoned, polls, hints, handedOff,
	storeFailures atomic.Int64
}

// Stats returns the current counters. They are read one by one, so they may not match exactly.
func (l *Locker) Stats() Stats {
	s := &l.stats
	return Stats{
		Acquired: s.acquired.Load(), TakenOver: s.takenOver.Load(), HandedOff: s.handedOff.Load(), Released: s.released.Load(),
		LostExpired: s.lostExpired.Load(), LostGone: s.lostGone.Load(),
		LostMaxHold: s.lostMaxHold.Load(), Suspected: s.suspected.Load(),
		Renewed: s.renewed.Load(), RenewFailed: s.renewFailed.Load(),
		Unclear: s.unclear.Load(), Abandoned: s.abandoned.Load(), Polls: s.polls.Load(), Hints: s.hints.Load(),
		StoreFailures: s.storeFailures.Load(),
	}
}
