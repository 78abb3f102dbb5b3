package ledger

import (
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Waiting messages. A message after a missing one is held back until the missing one arrives or the gap
// timeout expires. Other messages cannot be appended at all, because they cannot be decoded or have no
// number: an operator has to repair or remove them. None of this is stored. The next holder restarts
// the timeouts, which only makes messages wait longer.

// heldEntry describes the waiting messages of one producer.
type heldEntry struct {
	since time.Time // when the first of them was seen
	id    queue.ID  // the smallest ID that waits
	seen  uint64    // the sweep in which any of them was last seen
	late  bool      // one that cannot be appended has waited for longer than the gap timeout

	incomplete []span // the numbers of the incomplete ones

	next     queue.ID // the first complete one, which ends the gap when the timeout expires; zero: none
	nextSeen uint64   // the sweep in which next was last seen
}

// Held tells the fetch stage about waiting messages.
type Held struct {
	First     queue.ID // read again from here …
	FromStart bool     // … or from the very start
	Overdue   bool     // none of them can be appended until it is repaired, and all have waited for the gap timeout
}

// Held returns nil if no message waits.
func (l *Ledger) Held() *Held {
	first, ok := l.firstHeld()
	if !ok {
		return nil
	}
	return &Held{First: first, FromStart: l.lookAgain(), Overdue: l.overdue()}
}

// holdBack records that id waits for a missing message of its producer, and starts the gap timeout
// unless it is already running.
func (l *Ledger) holdBack(producer uint64, id queue.ID) heldEntry {
	h := l.holdAny(l.held, producer, id)
	h.incomplete = without(h.incomplete, id.N()) // it was repaired
	// A full sweep that has reached id without meeting next shows that next is gone.
	if h.next.IsZero() || id.Compare(h.next) <= 0 || h.nextSeen != h.seen {
		h.next, h.nextSeen = id, h.seen
	}
	l.held[producer] = h
	return h
}

// holdIncomplete records that id, which is incomplete, waits to be repaired. Messages after it wait for it.
func (l *Ledger) holdIncomplete(producer uint64, id queue.ID) {
	h := l.holdAny(l.held, producer, id)
	h.late = l.Now().Sub(h.since) >= l.GapTimeout
	h.incomplete = With(h.incomplete, id.N())
	l.held[producer] = h
}

// holdStuck records that id cannot be appended, but that no other message waits for it.
//
// rule: it starts no gap timeout. A gap that opens later waits for its own missing messages.
func (l *Ledger) holdStuck(producer uint64, id queue.ID) {
	h := l.holdAny(l.stuck, producer, id)
	h.late = l.Now().Sub(h.since) >= l.GapTimeout
	l.stuck[producer] = h
}

// holdAny returns the entry of a producer with id added. Its timeout starts with the first waiting
// message, and does not restart while any of them waits.
func (l *Ledger) holdAny(held map[uint64]heldEntry, producer uint64, id queue.ID) heldEntry {
	h, ok := held[producer]
	if !ok {
		h = heldEntry{since: l.Now(), id: id}
	} else if id.Compare(h.id) < 0 {
		h.id = id
	}
	h.seen = l.Sweep()
	return h
}

// firstHeld returns the smallest waiting ID; ok is false if there is none.
func (l *Ledger) firstHeld() (id queue.ID, ok bool) {
	for _, h := range l.held {
		if !ok || h.id.Compare(id) < 0 {
			id, ok = h.id, true
		}
	}
	for producer, h := range l.stuck {
		if h.seen+1 < l.Sweep() { // gone, or appended after a repair
			delete(l.stuck, producer)
		} else if !ok || h.id.Compare(id) < 0 {
			id, ok = h.id, true
		}
	}
	return id, ok
}

// SweepEnded forgets waiting messages that are gone. Call it when a full sweep has reached the end of the queue and
// everything it read is settled, so that it has seen every message that is still pending. If later messages of these
// producers have to wait, the timeout starts anew for their own missing messages.
func (l *Ledger) SweepEnded() {
	sweep := l.Sweep()
	for producer, h := range l.held {
		if h.seen != sweep {
			delete(l.held, producer)
		}
	}
}

// lookAgain reports whether any message waits for a full sweep: see admitUnheard.
func (l *Ledger) lookAgain() bool {
	for producer := range l.held {
		if look, ok := l.looked[producer]; ok && look.n > l.last[producer].number() {
			return true
		}
	}
	return false
}

// overdue reports, at the end of a full sweep, whether all waiting messages are incomplete ones that
// have waited for longer than the gap timeout.
func (l *Ledger) overdue() bool {
	sweep := l.Sweep()
	for _, h := range l.held {
		if h.seen == sweep && (!h.late || !h.next.IsZero() && h.nextSeen == sweep) {
			return false
		}
	}
	for _, h := range l.stuck {
		if h.seen == sweep && !h.late {
			return false
		}
	}
	return true
}
