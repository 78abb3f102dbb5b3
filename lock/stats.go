package lock

import "sync/atomic"

// Stats are counters since the Locker was made.
type Stats struct {
	Acquired      int64 // leases granted, takeovers included
	TakenOver     int64 // of those: taken from a holder presumed dead
	HandedOff     int64 // of the leases granted: handed off inside this process
	Released      int64 // leases released
	LostExpired   int64 // leases lost at their deadline
	LostGone      int64 // leases that the store did not have any more, forced releases included
	LostMaxHold   int64 // leases held too long
	Suspected     int64 // times that a lease was down to half of itself
	Renewed       int64 // renewals acknowledged
	RenewFailed   int64 // renewals that failed or stayed without an answer
	Unclear       int64 // acquiring operations whose outcome was unknown at first
	Abandoned     int64 // attempts undone in the background
	Polls         int64 // reads while waiting
	Hints         int64 // names that a Watcher sent
	StoreFailures int64 // errors of the store while acquiring
}

type stats struct {
	acquired, takenOver, released, lostExpired, lostGone, lostMaxHold, suspected, renewed, renewFailed, unclear, abandoned, polls, hints, handedOff,
	storeFailures atomic.Int64
}

// Stats returns the counters.
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
