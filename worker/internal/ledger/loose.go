package ledger

import (
	"slices"

	"github.com/fencepost/fencepost/queue"
)

// Loose messages (queue.LooseHeader) were published in a transaction. Each has its own producer number
// and the number 0, so it has no order. The file remembers them by ID, like producers with one message:
// in the records after the last checkpoint and, for earlier ones, among the producers in the
// checkpoint's state. Versions that do not support loose messages keep these entries, and leave
// pending loose messages in the queue.
//
//	unknown                                 Append
//	in the file                             Duplicate, or PutAside if the file has a skip entry in its place
//	another message has its producer number Reused

// looseEntry describes one loose message in the file.
type looseEntry struct {
	at      int64  // time in its ID, in ms; 0: unknown, because an earlier version read its record
	skipped bool   // the file has a skip entry in its place
	life           // when it was last pending, see forget.go
	walk    uint64 // the full sweep in which it was
}

// admitLoose returns the verdict on a message whose number is 0.
func (l *Ledger) admitLoose(m *queue.Message) Verdict {
	producer := m.ID.Producer()
	e := l.loose[producer]
	known := e != nil && (e.at == 0 || e.at == ms(m.ID))
	switch {
	case known && !e.skipped:
		l.hearLoose(e)
		return Duplicate
	case m.Unfit() != "":
		// Its number is 0, but it is not a valid loose message. Its order and copies are unknown, so
		// it stays in the queue.
		l.holdStuck(producer, m.ID)
		return Hold
	case known:
		l.hearLoose(e)
		return PutAside
	case e != nil || l.last[producer] != nil:
		// rule: a producer number belongs either to one loose message or to numbered messages. Another message under it is not in the file, so it is
		// never acknowledged as a copy.
		return Reused
	}
	l.recordLoose(m.ID)
	return Append
}

// recordLoose counts a loose message as appended.
func (l *Ledger) recordLoose(id queue.ID) {
	if l.last[id.Producer()] != nil {
		return // only in a file that no worker has written
	}
	e := l.loose[id.Producer()]
	if e == nil {
		e = &looseEntry{}
		l.loose[id.Producer()] = e
		l.grown++
	}
	e.at = ms(id)
	l.hearLoose(e)
}

// hearLoose records that a loose message was pending.
func (l *Ledger) hearLoose(e *looseEntry) {
	e.heard(l.clock)
	e.walk = l.Sweep()
}

// TrimLoose forgets a tenth of the loose messages, those last pending longest ago, if there are too
// many. full means that there are still too many: the others may be pending, and only another full
// sweep can show that they are not.
func (l *Ledger) TrimLoose() (forgotten int, full bool) {
	if len(l.loose) <= l.mostLoose {
		return 0, false
	}
	type entry struct {
		number uint64
		*looseEntry
	}
	var gone []entry
	for number, e := range l.loose {
		// rule: no loose message that may be pending is forgotten. A full sweep that began after it was last seen must have passed its position
		// without meeting it.
		if e.walk < l.walk && e.at > 0 && e.at < l.walked {
			gone = append(gone, entry{number, e})
		}
	}
	slices.SortFunc(gone, func(a, b entry) int { return a.compare(&b.life) })
	forgotten = min(len(gone), len(l.loose)-l.mostLoose*9/10)
	for _, e := range gone[:forgotten] {
		delete(l.loose, e.number)
	}
	return forgotten, len(l.loose) > l.mostLoose
}
