package lock

import (
	"slices"
	"time"
)

// turns is what a waiter learns about how a lock changes hands. A waiter that sees the lock go from
// process to process takes a place in the record's queue. From its position and the average length of
// a turn it estimates when its own turn comes, and reads rarely until shortly before. That saves most
// reads of a contended lock.
type turns struct {
	known   bool
	since   time.Duration // the first read of this wait
	token   int64         // the record's token then
	last    time.Duration // the latest read, on l.clock
	now     int64         // the record's token then
	began   time.Duration // when that token was granted, at the earliest
	seen    time.Duration // when that token was first read
	by      Process       // the last holder we have seen
	changes int           // how often the holder was another process than before
	queue   time.Duration // since when others have been in the queue all the time; 0 = the last read showed none
	evident bool          // this wait has shown that the lock is contended

	turn    time.Duration // how long the latest turns took; 0 = unknown
	earlier time.Duration // length of a turn in the wait before this one; 0 = it was not contended then
	haste   float64       // divides the length of a turn, to look earlier: see granted. Less than 1 counts as 1
	held    time.Duration // how long the lock was held in turns that had ended when we looked; 0 = unknown
}

const (
	turnsMemory   = 10 * time.Second      // how long a Locker remembers that a lock was contended
	turnsPatience = time.Second           // how long a waiter without a place lets those with one go first
	secondPoll    = 50 * time.Millisecond // longest pause of the second in the queue
	minProbe      = 2 * time.Millisecond  // shortest pause between two tries of the first in the queue
	maxProbe      = 25 * time.Millisecond // longest
	probeForAll   = 64 * time.Millisecond // … divided by the number of waiters: it looks for all of them
	firstTurn     = 8                     // divides the first turn that a waiter sees end: it may be much longer than the next ones
	maxProbes     = 8                     // tries in a row; then a read, which alone shows whether the holder is alive
)

// saw learns from a record that was read at at. own is the hold that waits.
//
// A lock that is handed off inside one process for several turns does not count as contended: places
// in the record's queue would end these cheap handoffs.
func (t *turns) saw(r Record, own HoldID, at time.Duration) {
	switch {
	case !t.known || r.Token < t.token: // the first read, or the record has been deleted and made again
		*t = turns{known: true, since: at, token: r.Token, began: at, seen: at, earlier: t.earlier, turn: t.earlier, haste: t.haste, held: t.held}
	case t.now != r.Token:
		if n := r.Token - t.now; n > 0 { // a read may be older than the one before
			t.measure(at, n)
		}
		t.began, t.seen = t.last, at
	}
	t.last, t.now = at, r.Token
	if r.Hold != nil {
		if t.by != (Process{}) && t.by != r.Hold.Owner {
			t.changes++
		}
		t.by = r.Hold.Owner
	}
	switch {
	case !slices.ContainsFunc(r.Queue, func(e Entry) bool { return e.ID != own }):
		t.queue = 0
	case t.queue == 0:
		t.queue = at
	}
	// passed counts the grants during this wait. The lock counts as contended if it mostly goes from
	// process to process: at least two changes, and at most 1.5 grants for each. If the wait before
	// this one showed contention, three grants are enough.
	passed := t.now - t.token
	t.evident = t.evident || t.changes >= 2 && 2*passed <= 3*int64(t.changes) || t.earlier > 0 && passed >= 3 || t.passedBy()
}

// measure learns from n turns that have ended since the last look that saw one end.
//
// The last turn is half of the estimate. Otherwise waiters would come late for many turns after a long one,
// which would make each turn longer, too.
func (t *turns) measure(at time.Duration, n int64) {
	if t.turn == 0 {
		t.turn = (at - t.seen) / time.Duration(n+1) / firstTurn
		return
	}
	latest := (at - t.seen) / time.Duration(n)
	t.turn = latest + (t.turn-latest)>>min(n, 30)
}

// passedBy tells whether others have been in the queue for so long that it may never become empty.
//
// rule: nobody waits for ever behind others that have places; then they take one, too.
func (t *turns) passedBy() bool { return t.queue > 0 && t.last-t.queue >= turnsPatience }

// again is what a wait that begins now takes over from this one.
func (t turns) again(now time.Duration) turns {
	if !t.evident || now-t.last > turnsMemory {
		return turns{}
	}
	return turns{earlier: t.length(), haste: t.haste, held: t.held}
}

// contended tells whether to take a place in the queue.
func (t turns) contended() bool { return t.evident || t.earlier > 0 }

// length estimates how long a turn takes; 0 = unknown. It is the average of this wait, or what the latest
// turns took if that is less, or for how long the lock was held: a waiter that looks too early costs a read,
// one that looks too late leaves the lock unused.
func (t turns) length() time.Duration {
	mean := t.earlier
	if n := t.now - t.token; n >= 3 || n > 0 && t.earlier == 0 {
		mean = (t.seen - t.since) / time.Duration(n+1)
	}
	turn := min(mean, t.turn)
	if t.held > 0 {
		turn = min(turn, max(t.held+2*minProbe, turn/16))
	}
	return turn
}

// sawFree learns from a record if it is free: then it has the dates of the last grant and of the release, both
// of the server's clock. A look that sees that is late, and perhaps others were, too: then turns take much
// longer than the lock is held, and an estimate from turns alone would make those behind us late, too.
func (t *turns) sawFree(r Record) {
	if held := r.At.Sub(r.Since); !r.Held() && held > 0 && !r.Since.IsZero() {
		if t.held > 0 {
			held = (held + t.held) / 2
		}
		t.held = held
	}
}

// present is how long the present turn has lasted, as far as this wait has seen.
func (t turns) present() time.Duration { return t.last - t.seen }

// granted learns from the end of a wait: inTime, or too late, with a lock that had been free for a
// while. Waiters are late when some turns are much shorter than the average; then they look earlier
// the next time.
func (t *turns) granted(inTime bool) {
	if inTime {
		t.haste = max(1, t.haste/1.1)
	} else {
		t.haste = min(16, 3*max(1, t.haste)/2)
	}
}

// nextPoll is how long to sleep before the next read: a plain backoff without a place in a contended
// queue, otherwise until shortly before our turn is expected.
func (a *attempt) nextPoll(now time.Duration) time.Duration {
	d, turn := a.poll.Next(), a.turns.length()
	if a.place != contendedPlace || turn <= 0 {
		return d
	}
	i := a.index()
	if i < 0 {
		i = len(a.last.record.Queue) // enqueued just now, after the read
	}
	turn = time.Duration(float64(turn) / max(1, a.turns.haste))
	// Be rather early than late: take the present turn for 9/16 as long as the average, and each further
	// one for 7/8. A look that is too early costs a read; one that is too late leaves the lock unused.
	first := turn * 9 / 16
	switch i {
	case 0:
		return max(a.probePause(), first-(now-a.turns.began))
	case 1:
		return min(max(first, minProbe), secondPoll)
	}
	return min(max(first+turn*time.Duration(i-1)*7/8, minProbe), contendedPlace.every*4/5)
}

// probePause is the pause between two tries of the first in the queue.
func (a *attempt) probePause() time.Duration {
	turn := time.Duration(float64(a.turns.length()) / max(1, a.turns.haste))
	return max(minProbe, min(turn/16, maxProbe, probeForAll/time.Duration(max(1, len(a.last.record.Queue)))))
}

// probing tells whether to try to acquire instead of reading. The first in the queue of a contended
// lock has no competitors, so a try costs no more than a read and saves a round trip when the lock is
// free.
func (a *attempt) probing() bool {
	return a.place == contendedPlace && a.first() && a.last.record.Hold != nil && a.ahead <= eagerPolls
}
