// Package ledger decides about each fetched message: whether it is the next one of its producer, a
// copy of one in the file, or has to wait. The queue may deliver messages again and out of order; with
// the ledger, the file has every message once and each producer's messages in order.
//
// A publisher numbers its messages 1, 2, 3 … under a producer number of its own. The ledger has the
// last number of each producer in the file, so most messages take one comparison:
//
//	n == last+1   Append
//	n <= last     Duplicate, unless the file does not have this message: n was missing (AppendLate), n was skipped
//	              (PutAside), or two messages have the number (Reused)
//	n > last+1    Hold, until the messages before it arrive or the gap timeout is over (AppendAfterGap)
//
// A loose message, which was published in a transaction, has the number 0 and a producer number of its
// own (loose.go).
//
// Two more indexes find copies under other IDs: idempotency keys (keys.go) and delayed messages that
// were promoted twice (delayed.go).
//
// A ledger is rebuilt from the file alone: from the state in the last checkpoint (state.go) and the
// records behind it (replay.go). So it is exactly as durable as the messages. It does no I/O, and no
// wall clock but the queue's, which its caller reads, has a say. Everything that it remembers is
// bounded (bounds.go, forget.go).
package ledger

import (
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Verdict is the ledger's decision about one fetched message.
type Verdict uint8

// Verdicts. After one of the first three the ledger counts the message as appended.
const (
	Append         Verdict = iota // the next one of its producer
	AppendAfterGap                // earlier ones are missing, and the gap timeout is over: append, and declare the gap
	AppendLate                    // it was missing in a declared gap and has arrived after all
	Duplicate                     // it is in the file: acknowledge, do not append
	Reused                        // its number is in the file for another message: make it a dead letter, never acknowledge it as a copy
	PutAside                      // the file has a skip entry in its place: make it a dead letter again
	Hold                          // an earlier one of its producer is missing, or it cannot be appended as it is: read it again later
)

// Ledger has the last number of each producer in the file, and what else is needed to refuse copies.
// [Ledger.Admit] is its core. Not safe for concurrent use.
type Ledger struct {
	Options
	clock int64 // the queue's clock, in ms, as last read

	last    map[uint64]*producerEntry // by producer number
	held    map[uint64]heldEntry      // by producer number: messages that wait for a missing one; never stored
	stuck   map[uint64]heldEntry      // the same for messages that cannot be appended as they are, and that no others wait for
	loose   map[uint64]*looseEntry    // by producer number; no producer number is both here and in last
	keys    keys                      // of the messages in the file
	delayed Delayed                   // of the messages in the file

	skipped     int // number of skipped spans of all producers
	mostSkipped int // bound of skipped

	missing       int    // number of missing spans of all producers
	mostProducers int    // bound of producers and missing together
	mostLoose     int    // bound of loose messages
	grown         int    // entries added since the last checkpoint: producers, missing and skipped spans
	walked        int64  // the latest time, in ms, of an ID that was fetched in the full sweep …
	walk          uint64 // … with this number

	gap    span             // the missing numbers of the last declared gap …
	inGap  uint64           // … and how many of them are pending, but incomplete
	looked map[uint64]sight // without a file: by producer number, see admitUnheard
}

// Options configures a [Ledger].
type Options struct {
	GapTimeout   time.Duration    // how long a message waits for missing earlier ones
	DedupeWindow time.Duration    // of idempotency keys; 0: keys are ignored
	Now          func() time.Time // monotonic, for the gap timeout
	Sweep        func() uint64    // the number of the present full sweep over the pending messages; defaults to one endless sweep

	// NoFile means that the messages go to a Handler. No file says what earlier sessions have
	// settled, so a missing message may have been handled by one of them.
	NoFile bool
}

// producerEntry is what the file has of one producer.
type producerEntry struct {
	n       uint64 // highest number in the file
	at      int64  // time in that message's ID, in ms; 0: unknown, because the state is from an earlier version
	missing []span // declared gaps below n: numbers that were never appended
	skipped []span // numbers up to n with skip entries: their messages became dead letters
	life           // when its last message was admitted; only ages the entry, see forget.go
	walk    uint64 // the full sweep in which that was
}

// sight is the highest number of a producer that a full sweep has seen behind missing ones.
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

// SetClock sets the queue's clock, in ms since 1970. Call it before each batch.
func (l *Ledger) SetClock(ms int64) { l.clock, l.keys.now = ms, ms }

// Admit decides about a fetched message. With the three append verdicts the ledger already counts the
// message as appended when Admit returns. So if the append then fails, the session must not use the
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
	case l.NoFile && covered(l.held[producer].incomplete, n) == 0: // if some before it are pending and incomplete, it waits as with a file
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

// admitUnheard decides, without a file, about a message behind missing ones, which may be on their
// way or settled long ago.
//
// rule: a reader may pass the place of n-1 right before that is stored, and then find n. A full sweep that began after n
// was seen does see n-1, if it is pending, before n. If it is not, it was settled by an earlier
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
	l.record(m.ID) // the numbers before count as missing: a message that arrives after all is handled late, not refused
	return Append
}

// record counts id as appended. If it is behind last+1, the numbers between are recorded as missing.
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

// fillGap removes n from the missing ranges.
func (l *Ledger) fillGap(e *producerEntry, n uint64) {
	l.missing -= len(e.missing)
	e.missing = without(e.missing, n)
	l.missing += len(e.missing)
}

// recordSkipped records that the file has a skip entry in place of a message that becomes a dead
// letter. record has counted its number before.
func (l *Ledger) recordSkipped(id queue.ID) {
	if e := l.loose[id.Producer()]; id.N() == 0 && e != nil {
		e.skipped = true
	}
	e := l.last[id.Producer()]
	if e == nil || id.N() == 0 {
		return
	}
	l.skipped -= len(e.skipped)
	e.skipped = With(e.skipped, id.N())
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
	_, missing := Find(e.missing, n)
	return missing
}

// isSkipped tells whether the file has a skip entry for n, and so no message.
func (e *producerEntry) isSkipped(n uint64) bool {
	_, skipped := Find(e.skipped, n)
	return skipped
}

// number is the highest number in the file; 0 for a producer without an entry.
func (e *producerEntry) number() uint64 {
	if e == nil {
		return 0
	}
	return e.n
}

// KeyCopy reports whether the file has a message with m's idempotency key that was published within
// the window.
func (l *Ledger) KeyCopy(m *queue.Message) bool { return l.keys.copied(m) }

// DelayedCopy reports whether the file already has the delayed message that became m, and its ID.
//
// rule: a delayed message that is promoted once more, by a database that was set back, is a copy
func (l *Ledger) DelayedCopy(m *queue.Message) (delayed queue.ID, copied bool) {
	delayed, _ = delayedID(m)
	return delayed, l.delayed.copied(m)
}

// Remember records m's idempotency key, and the delayed message that became m. Call it after Admit for
// a message that is appended.
func (l *Ledger) Remember(m *queue.Message) {
	if key, ok := m.Headers[queue.KeyHeader]; ok {
		l.keys.record(key, m.ID)
	}
	if id, ok := delayedID(m); ok {
		l.delayed.Record(id, l.clock)
	}
}

// Skip records that m becomes a dead letter, and the file has a skip entry with its number. Call it
// after Admit.
func (l *Ledger) Skip(m *queue.Message) {
	l.keys.drop(m) // rule: a dead letter does not occupy its key. It may be published again.
	l.delayed.drop(m)
	l.recordSkipped(m.ID)
}

// Producers returns the number of producers.
func (l *Ledger) Producers() int { return len(l.last) }

// Producer is what the ledger has of one producer.
type Producer struct{ entry *producerEntry }

// Last is the highest number in the file, 0 if nothing is known.
func (p Producer) Last() uint64 { return p.entry.number() }

// Missing reports whether n is in a declared gap.
func (p Producer) Missing(n uint64) bool { return p.entry != nil && p.entry.isMissing(n) }

// All is an iterator over the producers, by producer number.
func (l *Ledger) All(yield func(number uint64, p Producer) bool) {
	for number, e := range l.last {
		if !yield(number, Producer{e}) {
			return
		}
	}
}

// Loose is an iterator over the producer numbers of the loose messages in the file.
func (l *Ledger) Loose(yield func(number uint64) bool) {
	for number := range l.loose {
		if !yield(number) {
			return
		}
	}
}

// Delayed returns the delayed messages that the file has.
func (l *Ledger) Delayed() Delayed { return l.delayed }

// Gap counts the messages that a declared gap skips.
type Gap struct {
	Gone  uint64 // not in the queue
	Unfit uint64 // in the queue, but not appendable as they are
}

// LastGap returns the gap of the last AppendAfterGap.
func (l *Ledger) LastGap() Gap { return Gap{l.gap.To - l.gap.From + 1 - l.inGap, l.inGap} }

func (g Gap) String() string {
	switch {
	case g.Unfit == 0:
		return "continuing after a declared gap: earlier messages of this producer are gone from the queue"
	case g.Gone == 0:
		return "continuing after a declared gap: earlier messages of this producer are in the queue, but cannot be appended as they are; once repaired they are appended late"
	}
	return "continuing after a declared gap: some earlier messages of this producer are gone from the queue, others are there, but cannot be appended as they are"
}

// ms is the time in an ID, in ms since 1970: when the message was published, by its publisher's
// clock.
func ms(id queue.ID) int64 { return id.Time().UnixMilli() }
