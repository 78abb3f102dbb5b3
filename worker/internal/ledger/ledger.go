// Package ledger decides what becomes of each fetched message: whether it is the next one of its
// producer, a copy of what the file has, or one that has to wait. It makes delivery that may repeat
// and reorder into a file with every message once and each producer's messages in order.
//
// A publisher numbers its messages 1, 2, 3 … under a producer number of its own. For each producer
// the ledger holds the last number in the file, so most messages take one comparison:
//
//	n == last+1   Append
//	n <= last     Duplicate, unless the file does not have n: it was missing (AppendLate), it was put aside (PutAside),
//	              or the number was given out twice (Reused)
//	n > last+1    Hold, until the messages before it arrive or the gap timeout is over (AppendAfterGap)
//
// A loose message, which was published in a transaction, is numbered 0 and by itself (loose.go).
//
// Two more indexes catch copies that come under other IDs: idempotency keys (keys.go) and delayed
// messages that were promoted twice (delayed.go).
//
// A ledger is rebuilt from the file alone: from the state in the last checkpoint (state.go) and the
// records behind it (replay.go). So it is exactly as durable as the messages it knows. It reads no
// clock but those it is given, and does no I/O. All that it remembers is bounded (bounds.go,
// forget.go).
package ledger

import (
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Verdict is the ledger's decision about one fetched message.
type Verdict uint8

// Verdicts. The first three count the message as appended.
const (
	Append         Verdict = iota // the next one of its producer
	AppendAfterGap                // follows a gap that outlasted the gap timeout
	AppendLate                    // was inside a declared gap and arrived after all
	Duplicate                     // is in the file already: acknowledge, do not append
	Reused                        // its number is in the file for another message: put aside, never acknowledge as a copy
	PutAside                      // the file has a skip entry in its place: put aside again
	Hold                          // an earlier one of its producer is missing, or it cannot be appended as it is: read again later
)

// Ledger is the contiguity check: for each producer, the last number that is in the file. It makes
// the file refuse second copies and keep each producer's order. Not safe for concurrent use.
type Ledger struct {
	Options
	clock int64 // the queue's, ms, as read last

	last    map[uint64]*producerEntry // by producer number
	held    map[uint64]heldEntry      // by producer number; never persisted
	stuck   map[uint64]heldEntry      // the same for messages that no others wait for, but that cannot be appended as they are
	loose   map[uint64]*looseEntry    // by producer number; none of these is in last
	keys    keys                      // of the messages in the file
	delayed Delayed                   // of the messages in the file

	skipped     int // spans of all producers
	mostSkipped int

	missing       int // spans of all producers
	mostProducers int // and missing spans
	mostLoose     int
	grown         int    // what was added since the last checkpoint: producers, missing and skipped spans
	walked        int64  // the latest time of an ID that was fetched in the full sweep …
	walk          uint64 // … of this number, ms

	gap    span   // the numbers that the last declared gap has skipped …
	inGap  uint64 // … and how many of them are pending, but incomplete
	looked map[uint64]sight
}

// Options of a Ledger.
type Options struct {
	GapTimeout   time.Duration    // how long a message waits for missing earlier ones
	DedupeWindow time.Duration    // of idempotency keys; 0: none is a copy
	Now          func() time.Time // monotonic, for the gap timeout
	Sweep        func() uint64    // numbers the full sweeps over what is pending; defaults to one endless sweep

	// NoFile: no file tells what came before, so missing messages may have been settled by an
	// earlier session.
	NoFile bool
}

// producerEntry is what the file knows of one producer.
type producerEntry struct {
	n       uint64 // highest number in the file
	at      int64  // time in that message's ID, ms; 0: unknown, the state is from an earlier version
	missing []span // declared gaps below n: numbers that were never appended
	skipped []span // numbers up to n with skip entries: their messages were put aside
	life           // of its last append or duplicate; only ages entries, see forget.go
	walk    uint64 // the full sweep in which that was
}

// sight is the highest number of a producer that was seen in a full sweep behind missing ones.
type sight struct{ n, sweep uint64 }

// New returns an empty ledger.
func New(o Options) *Ledger {
	if o.Sweep == nil {
		o.Sweep = func() uint64 { return 0 }
	}
	return &Ledger{
		Options: o,
		last:    make(map[uint64]*producerEntry),
		held:    make(map[uint64]heldEntry),
		stuck:   make(map[uint64]heldEntry),
		looked:  make(map[uint64]sight),
		loose:   make(map[uint64]*looseEntry),
		keys:    keys{window: o.DedupeWindow, most: MaxKeys},
		delayed: Delayed{most: MaxDelayed},

		mostSkipped:   MaxSkipped,
		mostProducers: maxProducers,
		mostLoose:     MaxLoose,
	}
}

// SetClock tells the ledger the queue's clock, in ms since 1970, before each batch.
func (l *Ledger) SetClock(ms int64) { l.clock, l.keys.now = ms, ms }

// Admit decides about a fetched message. For the three append verdicts the ledger has counted the
// message as appended when Admit returns: a session whose append fails afterwards never uses the
// ledger again.
func (l *Ledger) Admit(m *queue.Message) Verdict {
	producer, n := m.ID.Producer(), m.ID.N()
	if now := l.Sweep(); l.walk != now {
		l.walk, l.walked = now, 0
	}
	l.walked = max(l.walked, ms(m.ID))
	entry := l.last[producer]
	last := entry.number()
	switch {
	case n == 0:
		return l.admitLoose(m)
	case l.loose[producer] != nil: // rule: a producer number is that of one loose message, or of numbered ones
		if m.Incomplete {
			l.holdStuck(producer, m.ID)
			return Hold
		}
		return Reused
	case n <= last:
		return l.admitPassed(m, entry)
	case m.Incomplete:
		// rule: an incomplete message is not here yet, and what is not here is never appended, not even as a gap's end.
		l.holdIncomplete(producer, m.ID)
		return Hold
	case n == last+1:
		l.record(m.ID)
		return Append
	case l.NoFile && covered(l.held[producer].incomplete, n) == 0: // with those before it pending and incomplete, it waits as with a file
		return l.admitUnheard(m)
	}
	// rule: only the first message that waits ends a gap. Those behind it may be read just when the timeout is over, and would overtake it.
	if h := l.holdBack(producer, m.ID); l.Now().Sub(h.since) < l.GapTimeout || h.next != m.ID {
		return Hold
	}
	l.record(m.ID)
	return AppendAfterGap
}

// admitPassed decides about a message whose number is not above the last one in the file.
func (l *Ledger) admitPassed(m *queue.Message, entry *producerEntry) Verdict {
	producer, n := m.ID.Producer(), m.ID.N()
	l.hear(entry)
	switch missing := entry.isMissing(n); {
	case m.Incomplete && (missing || entry.isSkipped(n)):
		// rule: a number inside a declared gap, or that was skipped, is not in the file, so its message is never acknowledged as a copy, whatever it
		// looks like.
		l.holdStuck(producer, m.ID)
		return Hold
	case missing:
		// rule: a number inside a declared gap was never appended, so it is not a copy. Better late than lost.
		l.fillGap(entry, n)
		return AppendLate
	// rule: a number that was skipped has no message in the file. Its message is back in the queue if the database was set back, or if the worker
	// that was to put it aside has died.
	case entry.isSkipped(n):
		return PutAside
	case entry.at == 0, ms(m.ID) <= entry.at, l.delayed.copied(m):
		return Duplicate
	}
	// rule: ID times never decrease within a producer, so a message that is younger than the last one in the file is no copy. A database
	// that was set back has given its number a second time.
	if m.Incomplete {
		l.holdStuck(producer, m.ID)
		return Hold
	}
	return Reused
}

// admitUnheard decides, without a file, about a message behind missing ones: they may be on their
// way, or settled long ago.
//
// rule: a reader may pass the place of n-1 right before that is stored, and then find n. A full sweep that began after n
// was seen does see n-1, if it is pending, before n. What is not pending was settled by an earlier
// session, or is lost.
func (l *Ledger) admitUnheard(m *queue.Message) Verdict {
	producer, n := m.ID.Producer(), m.ID.N()
	now, look := l.Sweep(), l.looked[producer]
	if look.sweep == now || n > look.n {
		if look.sweep == now {
			n = max(n, look.n)
		}
		l.looked[producer] = sight{n, now}
		l.holdBack(producer, m.ID)
		return Hold
	}
	l.record(m.ID) // those before count as missing: one that arrives after all is handled late and not refused
	return Append
}

// record counts id as appended; a jump over last+1 is recorded as missing.
func (l *Ledger) record(id queue.ID) {
	producer, n := id.Producer(), id.N()
	if n == 0 {
		l.recordLoose(id)
		return
	}
	delete(l.loose, producer) // in a file that no worker has written
	h := l.held[producer]
	if l.inGap = covered(h.incomplete, n); l.inGap > 0 { // no message waits for them any more, but their own time goes on
		if _, ok := l.stuck[producer]; !ok {
			h.next, h.incomplete = queue.ID{}, nil
			l.stuck[producer] = h
		}
	}
	delete(l.held, producer)
	entry := l.last[producer]
	if entry == nil {
		entry = &producerEntry{}
		l.last[producer] = entry
		l.grown++
	}
	l.hear(entry)
	switch {
	case n <= entry.n:
		l.fillGap(entry, n)
		return
	case n > entry.n+1:
		l.gap = span{entry.n + 1, n - 1}
		entry.missing = append(entry.missing, l.gap)
		l.missing++
		l.grown++
	}
	entry.n, entry.at = n, ms(id)
}

// fillGap takes n out of the missing ranges.
func (l *Ledger) fillGap(e *producerEntry, n uint64) {
	l.missing -= len(e.missing)
	e.missing = without(e.missing, n)
	l.missing += len(e.missing)
}

// recordSkipped remembers that the file has a skip entry for a message that was put aside. record
// has counted it.
func (l *Ledger) recordSkipped(id queue.ID) {
	if e := l.loose[id.Producer()]; id.N() == 0 && e != nil {
		e.skipped = true
	}
	e := l.last[id.Producer()]
	if e == nil || id.N() == 0 {
		return
	}
	l.skipped -= len(e.skipped)
	e.skipped = with(e.skipped, id.N())
	l.skipped += len(e.skipped)
	l.grown++
}

// hear records a sign of life of a producer.
func (l *Ledger) hear(e *producerEntry) {
	e.heard(l.clock)
	e.walk = l.Sweep()
}

// isMissing tells whether n is inside a declared gap: no message with it is in the file.
func (e *producerEntry) isMissing(n uint64) bool {
	_, missing := find(e.missing, n)
	return missing
}

// isSkipped tells whether the file has a skip entry for n, and so no message.
func (e *producerEntry) isSkipped(n uint64) bool {
	_, skipped := find(e.skipped, n)
	return skipped
}

// number is the highest one in the file, 0 if nothing is known.
func (e *producerEntry) number() uint64 {
	if e == nil {
		return 0
	}
	return e.n
}

// KeyCopy reports whether the file has a message with m's idempotency key that was published within
// the window.
func (l *Ledger) KeyCopy(m *queue.Message) bool { return l.keys.copied(m) }

// DelayedCopy reports whether the file has the delayed message that became m, and which that is.
//
// rule: a delayed message that is promoted once more, by a database that was set back, is a copy
func (l *Ledger) DelayedCopy(m *queue.Message) (delayed queue.ID, copied bool) {
	delayed, _ = delayedID(m)
	return delayed, l.delayed.copied(m)
}

// Remember records what m's headers say: its idempotency key, and the delayed message that became
// m. Admit has admitted it.
func (l *Ledger) Remember(m *queue.Message) {
	if key, ok := m.Headers[queue.KeyHeader]; ok {
		l.keys.record(key, m.ID)
	}
	if id, ok := delayedID(m); ok {
		l.delayed.Record(id, l.clock)
	}
}

// Skip records that m, which Admit has admitted, is put aside: a skip entry has its number in the
// file.
func (l *Ledger) Skip(m *queue.Message) {
	l.keys.drop(m) // rule: a dead letter does not occupy its key. It may be published again.
	l.delayed.drop(m)
	l.recordSkipped(m.ID)
}

// Producers is how many producers the ledger knows.
func (l *Ledger) Producers() int { return len(l.last) }

// Producer returns what is known of a producer: the last number in the file, and whether a number
// below it is missing there.
type Producer struct{ entry *producerEntry }

// Last is the highest number in the file, 0 if nothing is known.
func (p Producer) Last() uint64 { return p.entry.number() }

// Missing reports whether n is inside a declared gap.
func (p Producer) Missing(n uint64) bool { return p.entry != nil && p.entry.isMissing(n) }

// All calls yield with each producer's number.
func (l *Ledger) All(yield func(number uint64, p Producer) bool) {
	for number, e := range l.last {
		if !yield(number, Producer{e}) {
			return
		}
	}
}

// Loose calls yield with the producer number of each loose message that the file has.
func (l *Ledger) Loose(yield func(number uint64) bool) {
	for number := range l.loose {
		if !yield(number) {
			return
		}
	}
}

// Delayed returns the delayed messages that the file has.
func (l *Ledger) Delayed() Delayed { return l.delayed }

// Gap is what is known of the messages in the last declared gap.
type Gap struct {
	Gone  uint64 // not in the queue
	Unfit uint64 // in the queue, but not appendable as they are
}

// LastGap describes the gap of the last AppendAfterGap.
func (l *Ledger) LastGap() Gap { return Gap{l.gap.to - l.gap.from + 1 - l.inGap, l.inGap} }

func (g Gap) String() string {
	switch {
	case g.Unfit == 0:
		return "continuing after a declared gap: earlier messages of this producer are gone from the queue"
	case g.Gone == 0:
		return "continuing after a declared gap: earlier messages of this producer are in the queue, but cannot be appended as they are; once repaired they are appended late"
	}
	return "continuing after a declared gap: some earlier messages of this producer are gone from the queue, others are there, but cannot be appended as they are"
}

// ms is the time in an ID, in ms since 1970: when its message was published, by its publisher's
// clock.
func ms(id queue.ID) int64 { return id.Time().UnixMilli() }
