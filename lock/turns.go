package lock

import (
	"slices"
	"time"
)

// turns holds what a waiter has observed of how a lock changes hands. A waiter that sees the lock go
// from process to process takes a place in the record's queue. From its position and the average
// length of a turn it estimates when its own turn comes, and reads rarely until shortly before. That
// saves most reads of a contended lock.
type turns struct {
	known   bool
	since   time.Duration // the first read of this wait
	token   int64         // the record's token then
	last    time.Duration // the latest read, on l.clock
	now     int64         // the record's token then
	began   time.Duration // when that token was granted, at the earliest
	seen    time.Duration // when that token was first read
	by      Process       // the last holder we have seen
	changes int           // how often the holder was a different process than before
	queue   time.Duration // since when every read has shown other waiters in the queue; 0 = the last read showed none
	evident bool          // this wait has shown that the lock is contended

	turn    time.Duration // how long the latest turns took; 0 = unknown
	earlier time.Duration // length of a turn in the wait before this one; 0 = the lock was not contended then
	haste   float64       // divides the length of a turn, to read earlier: see granted. Less than 1 counts as 1
	held    time.Duration // how long the lock was held in turns that had ended when we read; 0 = unknown
}

const (
	turnsMemory   = 10 * time.Second      // how long a Locker remembers that a lock was contended
	turnsPatience = time.Second           // how long a waiter without a place gives precedence to waiters with one
	secondPoll    = 50 * time.Millisecond // longest pause of the second in the queue
	minProbe      = 2 * time.Millisecond  // shortest pause between two tries of the first in the queue
	maxProbe      = 25 * time.Millisecond // longest
	probeForAll   = 64 * time.Millisecond // … divided by the number of waiters: a late probe delays all of them
	firstTurn     = 8                     // divides the first turn that a waiter sees end: it may be much longer than the next ones
	maxProbes     = 8                     // tries in a row; then a read, because only a read shows whether the holder is alive
)

// saw updates t from a record read at time at. own is the waiting hold.
//
// A lock that is handed off inside one process for several turns does not count as contended: places
// in the record's queue would prevent these cheap handoffs.
func (t *turns) saw(r Record, own HoldID, at time.Duration) {
	switch {
	case !t.known || r.Token < t.token: // the first read, or the record has been deleted and created again
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

// measure updates the estimate from n turns that have ended since the last read that saw one end.
//
// The latest turn makes up half of the estimate. Otherwise waiters would be late for many turns after a long one,
// which would make each of those turns longer, too.
func (t *turns) measure(at time.Duration, n int64) {
	if t.turn == 0 {
		t.turn = (at - t.seen) / time.Duration(n+1) / firstTurn
		return
	}
	latest := (at - t.seen) / time.Duration(n)
	t.turn = latest + (t.turn-latest)>>min(n, 30)
}

// passedBy reports whether other waiters have been in the queue for so long that it may never become empty.
//
// rule: no waiter waits indefinitely behind others that have places: after turnsPatience it takes one, too.
func (t *turns) passedBy() bool { return t.queue > 0 && t.last-t.queue >= turnsPatience }

// again is the initial state of a wait that begins now, derived from this one.
func (t turns) again(now time.Duration) turns {
	if !t.evident || now-t.last > turnsMemory {
		return turns{}
	}
	return turns{earlier: t.length(), haste: t.haste, held: t.held}
}

// contended reports whether to take a place in the queue.
func (t turns) contended() bool { return t.evident || t.earlier > 0 }

// length estimates how long a turn takes; 0 = unknown. It is the average of this wait, or the length of the latest
// turns, or a little more than the time the lock was held, whichever is least: a read that comes too early costs a
// command, one that comes too late leaves the lock unused.
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

// sawFree updates held from a record that is free: its dates are those of the last grant and of the release, both
// from the server's clock. A read that finds the lock free is late, and other waiters may have been late, too: then
// turns take much longer than the lock is held, and an estimate from turns alone would also make the waiters behind us late.
func (t *turns) sawFree(r Record) {
	if held := r.At.Sub(r.Since); !r.Held() && held > 0 && !r.Since.IsZero() {
		if t.held > 0 {
			held = (held + t.held) / 2
		}
		t.held = held
	}
}

// present is how long the present turn has lasted, as far as this wait has observed it.
func (t turns) present() time.Duration { return t.last - t.seen }

// granted adjusts haste at the end of a wait. If inTime is false, the waiter came too late: the lock
// had been free for a while. Waiters are late when some turns are much shorter than the average; the
// next time they read earlier.
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
	// Early is better than late: assume 9/16 of the average for the present turn, and 7/8 for each further
	// one. Too early costs a read; too late leaves the lock unused.
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

// probing reports whether to try to acquire instead of reading. The first in the queue of a contended
// lock has no competitors, so a try costs no more than a read and saves a round trip when the lock is
// free.
func (a *attempt) probing() bool {
	return a.place == contendedPlace && a.first() && a.last.record.Hold != nil && a.ahead <= eagerPolls
}
