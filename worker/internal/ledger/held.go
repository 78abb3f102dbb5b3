package ledger

import (
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Messages that wait. A message behind a missing one is held back until that arrives or the gap
// timeout is over. Others cannot be appended however long they wait, because they cannot be decoded
// or have no number: somebody has to repair or remove them. Nothing of this is persisted. The next
// holder starts the clocks again, which only makes messages wait longer.

// heldEntry remembers since when a producer's next message has been missing.
type heldEntry struct {
	since time.Time
	id    queue.ID // the first message that waits behind the gap
	seen  uint64   // the sweep in which any of them was last seen
	late  bool     // one that is not complete, or has no number, has outlasted the gap timeout

	incomplete []span // the numbers of those that are not complete

	next     queue.ID // the first one that is complete; zero: none is
	nextSeen uint64   // the sweep in which it was last seen
}

// Held is what a reader has to know of messages that wait.
type Held struct {
	First     queue.ID // read again from here …
	FromStart bool     // … or from the very start
	Overdue   bool     // all of them have outlasted the gap timeout: they cannot be appended until somebody repairs them
}

// Held returns what waits, nil if nothing does.
func (l *Ledger) Held() *Held {
	first, ok := l.firstHeld()
	if !ok {
		return nil
	}
	return &Held{First: first, FromStart: l.lookAgain(), Overdue: l.overdue()}
}

// holdBack starts (or keeps) the clock of a producer whose next message is missing, while id waits.
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

// holdIncomplete is for a message that cannot be appended however long it waits.
func (l *Ledger) holdIncomplete(producer uint64, id queue.ID) {
	h := l.holdAny(l.held, producer, id)
	h.late = l.Now().Sub(h.since) >= l.GapTimeout
	h.incomplete = with(h.incomplete, id.N())
	l.held[producer] = h
}

// holdStuck is for one that no other message waits for.
//
// rule: it starts no gap's clock. A gap that opens later waits for its own missing messages.
func (l *Ledger) holdStuck(producer uint64, id queue.ID) {
	h := l.holdAny(l.stuck, producer, id)
	h.late = l.Now().Sub(h.since) >= l.GapTimeout
	l.stuck[producer] = h
}

// holdAny returns the entry of a producer with id in it. Its clock starts with the first message
// that waits and does not start again while any of them does.
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

// firstHeld returns the smallest ID that waits; ok is false when none does.
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

// lookAgain reports whether anything that is held back waits for a full sweep.
func (l *Ledger) lookAgain() bool {
	for producer := range l.held {
		if look, ok := l.looked[producer]; ok && look.n > l.last[producer].number() {
			return true
		}
	}
	return false
}

// overdue reports, at the end of a full sweep, whether all that is held back are messages that
// never became complete, and have outlasted the gap timeout.
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
