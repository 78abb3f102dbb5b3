// Package ledger classifies each fetched message: the next one of its producer, a copy of a message in
// the file, or one that has to wait. The queue may redeliver messages and deliver them out of order.
// The ledger ensures that the file contains each message once, and each producer's messages in order.
//
// A publisher numbers its messages 1, 2, 3 … under its own producer number. The ledger keeps the last
// number in the file for each producer, so most messages take one comparison:
//
//	n == last+1   Append
//	n <= last     Duplicate, unless this message is not in the file: n was missing (AppendLate), n was skipped
//	              (PutAside), or two messages have the number (Reused)
//	n > last+1    Hold, until the messages before it arrive or the gap timeout expires (AppendAfterGap)
//
// A loose message, which was published in a transaction, has the number 0 and its own producer number
// (loose.go).
//
// Two more indexes find copies under other IDs: idempotency keys (keys.go) and delayed messages that
// were promoted twice (delayed.go).
//
// A ledger is rebuilt from the file alone: from the state in the last checkpoint (state.go) and the
// records after it (replay.go). So it is exactly as durable as the messages. It does no I/O. The only
// wall clock that affects its decisions is the queue's, which the caller reads. Everything it
// remembers is bounded (bounds.go, forget.go).
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
	AppendAfterGap                // earlier ones are missing and the gap timeout has expired: append, and declare the gap
	AppendLate                    // it was missing in a declared gap and has arrived after all
	Duplicate                     // it is in the file: acknowledge, do not append
	Reused                        // the file has another message with its number: make it a dead letter, never acknowledge it as a copy
	PutAside                      // the file has a skip entry in its place: make it a dead letter again
	Hold                          // an earlier one of its producer is missing, or it is unfit for appending: read it again later
)

// Ledger holds the last number of each producer in the file, and the other indexes that detect copies.
// [Ledger.Admit] is its core. Not safe for concurrent use.
type Ledger struct {
	Options
	clock int64 // the queue's clock, in ms, as last read

	last    map[uint64]*producerEntry // by producer number
	held    map[uint64]heldEntry      // by producer number: messages that wait for a missing one; never stored
	stuck   map[uint64]heldEntry      // likewise, for unfit messages that no other message waits for
	loose   map[uint64]*looseEntry    // by producer number; no producer number is both here and in last
	keys    keys                      // of the messages in the file
	delayed Delayed                   // of the messages in the file

	skipped     int // number of skipped spans of all producers
	mostSkipped int // bound of skipped

	missing       int    // number of missing spans of all producers
	mostProducers int    // bound of producers and missing together
	mostLoose     int    // bound of loose messages
	grown         int    // entries added since the last checkpoint: producers, missing and skipped spans
	walked        int64  // the latest ID time, in ms, fetched in the full sweep …
	walk          uint64 // … with this number

	gap    span             // the missing numbers of the last declared gap …
	inGap  uint64           // … and how many of them are pending, but incomplete
	looked map[uint64]sight // with NoFile: by producer number, see admitUnheard
}

// Options configures a [Ledger].
type Options struct {
	GapTimeout   time.Duration    // how long a message waits for missing earlier ones
	DedupeWindow time.Duration    // of idempotency keys; 0: keys are ignored
	Now          func() time.Time // monotonic, for the gap timeout
	Sweep        func() uint64    // the number of the current full sweep over the pending messages; defaults to one endless sweep

	// NoFile means that the messages go to a Handler. No file records which messages earlier sessions
	// settled, so a missing message may have been handled by one of them.
	NoFile bool
}

// producerEntry describes the messages of one producer in the file.
type producerEntry struct {
	n       uint64 // highest number in the file
	at      int64  // time in that message's ID, in ms; 0: unknown, because an earlier version wrote the state
	missing []span // declared gaps below n: numbers that were never appended
	skipped []span // numbers up to n with skip entries: their messages became dead letters
	life           // when its last message was admitted; only ages the entry, see forget.go
	walk    uint64 // the full sweep in which it was admitted
}

// sight is the highest number of a producer that a full sweep has seen after missing ones.
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

// Admit returns the verdict on a fetched message. For the three append verdicts the ledger already
// counts the message as appended when Admit returns. If the append then fails, the session must not
// use the ledger again.
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
	case l.loose[producer] != nil: // rule: a producer number belongs either to one loose message or to numbered messages
		if m.Incomplete {
			l.holdStuck(producer, m.ID)
			return Hold
		}
		return Reused
	case n <= last:
		return l.admitPassed(m, entry)
	case m.Incomplete:
		// rule: an incomplete message has not arrived yet, so it is never appended, not even to end a gap.
		l.holdIncomplete(producer, m.ID)
		return Hold
	case n == last+1:
		l.record(m.ID)
		return Append
	case l.NoFile && covered(l.held[producer].incomplete, n) == 0: // if earlier ones are pending and incomplete, it waits as with a file
		return l.admitUnheard(m)
	}
	// rule: only the first waiting message ends a gap. A later one may be read at the moment the timeout expires, and would overtake it.
	if h := l.holdBack(producer, m.ID); l.Now().Sub(h.since) < l.GapTimeout || h.next != m.ID {
		return Hold
	}
	l.record(m.ID)
	return AppendAfterGap
}

// admitPassed returns the verdict on a message whose number is not above the last one in the file.
func (l *Ledger) admitPassed(m *queue.Message, entry *producerEntry) Verdict {
	producer, n := m.ID.Producer(), m.ID.N()
	l.hear(entry)
	switch missing := entry.isMissing(n); {
	case m.Incomplete && (missing || entry.isSkipped(n)):
		// rule: the file has no message for a number that was skipped or is inside a declared gap, so such a message is never acknowledged as a
		// copy, whatever it looks like.
		l.holdStuck(producer, m.ID)
		return Hold
	case missing:
		// rule: a number inside a declared gap was never appended, so its message is not a copy. Better late than lost.
		l.fillGap(entry, n)
		return AppendLate
	// rule: a number that was skipped has no message in the file. Its message is still in the queue if the worker died before it put the message
	// aside, and is there again if the database was restored to an earlier state.
	case entry.isSkipped(n):
		return PutAside
	case entry.at == 0, ms(m.ID) <= entry.at, l.delayed.copied(m):
		return Duplicate
	}
	// rule: ID times never decrease within a producer, so a message newer than the last one in the file is not a copy: a database that was
	// restored to an earlier state has assigned its number a second time.
	if m.Incomplete {
		l.holdStuck(producer, m.ID)
		return Hold
	}
	return Reused
}

// admitUnheard returns the verdict, without a file, on a message after missing ones. The missing
// messages may still arrive, or may have been settled long ago.
//
// rule: a reader may pass the position of n-1 just before n-1 is stored, and then find n. A full sweep
// that begins after n was seen meets n-1 before n if n-1 is pending. If it does not, an earlier session
// settled n-1, or it is lost.
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
	l.record(m.ID) // the earlier numbers count as missing: if one arrives after all, it is handled late, not refused
	return Append
}

// record counts id as appended. If its number is above last+1, the numbers between are recorded as missing.
func (l *Ledger) record(id queue.ID) {
	producer, n := id.Producer(), id.N()
	if n == 0 {
		l.recordLoose(id)
		return
	}
	delete(l.loose, producer) // only in a file that no worker has written
	h := l.held[producer]
	if l.inGap = covered(h.incomplete, n); l.inGap > 0 { // no message waits for them any more, but their own timeout keeps running
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
// letter. record has already counted its number.
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

// isMissing reports whether n is inside a declared gap, so that the file has no message with it.
func (e *producerEntry) isMissing(n uint64) bool {
	_, missing := Find(e.missing, n)
	return missing
}

// isSkipped reports whether the file has a skip entry instead of a message for n.
func (e *producerEntry) isSkipped(n uint64) bool {
	_, skipped := Find(e.skipped, n)
	return skipped
}

// number returns the highest number in the file, or 0 for a producer without an entry.
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
// rule: a delayed message promoted again by a database that was restored to an earlier state is a copy
func (l *Ledger) DelayedCopy(m *queue.Message) (delayed queue.ID, copied bool) {
	delayed, _ = delayedID(m)
	return delayed, l.delayed.copied(m)
}

// Remember records m's idempotency key, and the delayed message that became m. Call it after Admit for
// each appended message.
func (l *Ledger) Remember(m *queue.Message) {
	if key, ok := m.Headers[queue.KeyHeader]; ok {
		l.keys.record(key, m.ID)
	}
	if id, ok := delayedID(m); ok {
		l.delayed.Record(id, l.clock)
	}
}

// Skip records that m becomes a dead letter and that the file has a skip entry with its number. Call it
// after Admit.
func (l *Ledger) Skip(m *queue.Message) {
	l.keys.drop(m) // rule: a dead letter does not occupy its key. It may be published again.
	l.delayed.drop(m)
	l.recordSkipped(m.ID)
}

// Producers returns the number of producers.
func (l *Ledger) Producers() int { return len(l.last) }

// Producer is a read-only view of the ledger's entry for one producer.
type Producer struct{ entry *producerEntry }

// Last returns the highest number in the file, or 0 if nothing is known.
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

// Delayed returns the set of delayed messages that are in the file.
func (l *Ledger) Delayed() Delayed { return l.delayed }

// Gap counts the messages that a declared gap skips.
type Gap struct {
	Gone  uint64 // not in the queue
	Unfit uint64 // in the queue, but not appendable until repaired
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

// ms returns the time in an ID, in ms since 1970: when the message was published, by the publisher's
// clock.
func ms(id queue.ID) int64 { return id.Time().UnixMilli() }
