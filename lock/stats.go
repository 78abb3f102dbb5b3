package lock

import "sync/atomic"

// Stats are counters since the Locker was made.
type Stats struct {
	Acquired      int64 // leases granted, takeovers included
	TakenOver     int64 // of those: taken from a holder presumed dead
	Released      int64 // leases released
	LostExpired   int64 // leases lost at their deadline
	LostGone      int64 // leases that the store did not have any more
	Renewed       int64 // renewals acknowledged
	RenewFailed   int64 // renewals that failed or stayed without an answer
	Unclear       int64 // acquiring operations whose outcome was unknown at first
	Abandoned     int64 // attempts undone in the background
	Polls         int64 // reads while waiting
	StoreFailures int64 // errors of the store while acquiring
}

type stats struct {
	acquired, takenOver, released, lostExpired, lostGone, renewed, renewFailed, unclear, abandoned, polls,
	storeFailures atomic.Int64
}

// Stats returns the counters.
func (l *Locker) Stats() Stats {
	s := &l.stats
	return Stats{
		Acquired: s.acquired.Load(), TakenOver: s.takenOver.Load(), Released: s.released.Load(),
		LostExpired: s.lostExpired.Load(), LostGone: s.lostGone.Load(),
		Renewed: s.renewed.Load(), RenewFailed: s.renewFailed.Load(),
		Unclear: s.unclear.Load(), Abandoned: s.abandoned.Load(), Polls: s.polls.Load(),
		StoreFailures: s.storeFailures.Load(),
	}
}
