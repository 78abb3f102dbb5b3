package lock

import (
	"slices"
	"time"
)

// turns is how a lock changes hands while others wait for it. Waiters that see it go from process
// to process take a place in the record's queue: then they know how many are before them, how long
// a turn takes, and when it will be theirs. Until shortly before that they have nothing to look at.
type turns struct {
	known   bool
	since   time.Duration // the first look, on l.clock
	token   int64         // what the record had then
	last    time.Duration // the latest look
	now     int64         // … and its token
	began   time.Duration // when that was granted, at the earliest
	seen    time.Duration // when it was first seen
	by      Process       // the latest holder that was seen
	changes int           // how often it was another process than before
	queue   time.Duration // since when others have been in the queue; 0 = they are not
	evident bool          // the lock is contended, as this wait shows

	earlier time.Duration // length of a turn in an earlier wait; 0 = it was not contended then
	haste   float64       // how much earlier to look than turns of this length suggest: 1 = not at all
}

const (
	turnsMemory   = 10 * time.Second      // how long a Locker remembers that a lock was contended
	turnsPatience = time.Second           // how long a waiter without a place lets others pass that have one
	secondPoll    = 50 * time.Millisecond // longest pause of the second in the queue
	minProbe      = 4 * time.Millisecond  // pause of the first
	maxProbe      = 25 * time.Millisecond
	maxProbes     = 4 // in a row: only a look tells whether the holder is alive
)

// saw takes note of a record. own is the hold that waits.
//
// A lock that stays in a process for several turns, from hand to hand, is not contended in this
// sense: places in the queue would end that.
func (t *turns) saw(r Record, own HoldID, at time.Duration) {
	switch {
	case !t.known || r.Token < t.token: // the first one, or made anew
		*t = turns{known: true, since: at, token: r.Token, began: at, seen: at, earlier: t.earlier, haste: t.haste}
	case t.now != r.Token:
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
	passed := t.now - t.token
	t.evident = t.evident || t.changes >= 2 && 2*passed <= 3*int64(t.changes) || t.earlier > 0 && passed >= 3 || t.passedBy()
}

// passedBy tells whether others have been in the queue for so long that it may never be empty.
//
// rule: nobody waits for ever behind others that have places; then they take one, too.
func (t *turns) passedBy() bool { return t.queue > 0 && t.last-t.queue >= turnsPatience }

// again is what a wait that begins now knows from this one.
func (t turns) again(now time.Duration) turns {
	if !t.evident || now-t.last > turnsMemory {
		return turns{}
	}
	return turns{earlier: t.length(), haste: t.haste}
}

// contended tells whether to take a place in the queue.
func (t turns) contended() bool { return t.evident || t.earlier > 0 }

// length is how long a turn takes, on average; 0 = unknown. It is rather too short than too long:
// who looks too late leaves the lock unused.
func (t turns) length() time.Duration {
	if n := t.now - t.token; n >= 3 || n > 0 && t.earlier == 0 {
		return (t.seen - t.since) / time.Duration(n+1)
	}
	return t.earlier
}

// granted takes note of how a wait ended: in time, or with a lock that was free already when its
// turn was noticed. Turns that are often much shorter than others make waiters come late.
func (t *turns) granted(inTime bool) {
	if inTime {
		t.haste = max(1, t.haste/1.1)
	} else {
		t.haste = min(16, 3*max(1, t.haste)/2)
	}
}

// nextPoll is how long to wait before the next look.
func (a *attempt) nextPoll(now time.Duration) time.Duration {
	d, turn := a.poll.Next(), a.turns.length()
	if a.place != contendedPlace || turn <= 0 {
		return d
	}
	i := a.index()
	if i < 0 {
		i = len(a.last.record.Queue) // just now
	}
	turn = time.Duration(float64(turn) / max(1, a.turns.haste))
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
	return min(max(minProbe, turn/16), maxProbe)
}

// probing tells whether to acquire instead of to look. The first in the queue of a contended lock
// has nobody to compete with, so its look may as well take the lock.
func (a *attempt) probing() bool {
	return a.place == contendedPlace && a.first() && a.last.record.Hold != nil && a.ahead <= eagerPolls
}
