package worker

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// verdict is what the ledger says of one fetched message.
type verdict uint8

const (
	appendNow      verdict = iota // the next one of its producer
	appendAfterGap                // follows a gap that outlasted the gap timeout
	appendLate                    // was inside a declared gap and turned up after all
	duplicate                     // in the file already: acknowledge, do not append
	reused                        // its number is in the file for another message: put aside, never acknowledge as a copy
	putAside                      // the file has a skip entry in its place: put aside again
	hold                          // an earlier one of its producer is missing: read again later
)

// ledger is the contiguity check: for each producer, the last counter value that is in the file. It is what makes the
// file refuse second copies (G1) and keep each producer's order (G2). It is rebuilt from the file alone (checkpoint
// state + the records behind it), so it is exactly as durable as the messages it speaks of. Not safe for concurrent
// use: the append stage owns it.
type ledger struct {
	gapTimeout time.Duration
	now        func() time.Time // monotonic

	last    map[uint64]*producerEntry // by producer number
	held    map[uint64]heldEntry      // by producer number; never persisted
	stuck   map[uint64]heldEntry      // the same for messages that no others wait for, but that cannot be appended as they are
	keys    keys                      // of the messages in the file, see keys.go
	delayed delayedIDs                // of the messages in the file, see delayed.go

	skipped     int // spans of all producers
	mostSkipped int

	missing       int    // spans of all producers
	mostProducers int    // and missing spans
	grown         int    // what was added since the last checkpoint: producers, missing and skipped spans
	walked        int64  // the latest time of an ID that was fetched in the full sweep …
	walk          uint64 // … of this number, ms

	passed span   // the numbers that the last declared gap has skipped …
	unfit  uint64 // … and how many of them are pending, but incomplete

	sweep func() uint64 // numbers the full sweeps over what is pending

	// noFile: there is no file that tells what came before, so missing messages may have been settled by an earlier session.
	noFile bool
	looked map[uint64]sight // by producer number
}

// producerEntry is what the file knows of one producer.
type producerEntry struct {
	n       uint64 // highest counter in the file
	at      int64  // time in that message's ID, ms; 0: unknown, the state is from an earlier version
	missing []span // declared gaps below n: numbers that were never appended
	skipped []span // numbers up to n with skip entries: their messages were put aside, see refuse.go
	life           // of its last append or duplicate; only ages entries, see forget
	walk    uint64 // the full sweep in which that was
}

// span is the closed range of counters [from, to].
type span struct{ from, to uint64 }

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

// sight is the highest counter of a producer that was seen in a full sweep behind missing ones.
type sight struct{ n, sweep uint64 }

func newLedger(gapTimeout time.Duration, now func() time.Time) *ledger {
	return &ledger{
		gapTimeout: gapTimeout,
		now:        now,
		sweep:      func() uint64 { return 0 },
		last:       make(map[uint64]*producerEntry),
		held:       make(map[uint64]heldEntry),
		stuck:      make(map[uint64]heldEntry),
		looked:     make(map[uint64]sight),
		keys:       keys{most: maxKeys},
		delayed:    delayedIDs{most: maxDelayedSpans},

		mostSkipped:   maxSkippedSpans,
		mostProducers: maxProducers,
	}
}

// judge decides what to do with a fetched message. For the three append verdicts the ledger has counted the message
// as appended when judge returns: a session whose append fails afterwards never uses the ledger again.
func (l *ledger) judge(m *queue.Message, seenAt int64) verdict {
	producer, n := m.ID.Producer(), m.ID.N()
	if now := l.sweep(); l.walk != now {
		l.walk, l.walked = now, 0
	}
	l.walked = max(l.walked, ms(m.ID))
	entry := l.last[producer]
	var last uint64
	if entry != nil {
		last = entry.n
	}
	switch {
	case n == 0:
		// No publisher counts from 0. Nothing can be said of its order or its copies: it stays in the queue.
		l.holdStuck(producer, m.ID)
		return hold
	case n <= last:
		l.hear(entry, seenAt)
		switch missing := entry.isMissing(n); {
		case m.Incomplete && (missing || entry.isSkipped(n)):
			// rule: a number inside a declared gap, or that was skipped, is not in the file, so its message is never acknowledged as a copy, whatever it
			// looks like.
			l.holdStuck(producer, m.ID)
			return hold
		case missing:
			// rule: a number inside a declared gap was never appended, so it is not a copy. Better late than lost.
			l.fill(entry, n)
			return appendLate
		// rule: a number that was skipped has no message in the file. Its message is back in the queue if the database was set back, or if who was to
		// put it aside has died.
		case entry.isSkipped(n):
			return putAside
		case entry.at == 0, ms(m.ID) <= entry.at, l.delayed.copied(m):
			return duplicate
		}
		// rule: ID times never decrease within a producer, so a message that is younger than the last one in the file is no copy. A database
		// that was set back has given its number a second time.
		if m.Incomplete {
			l.holdStuck(producer, m.ID)
			return hold
		}
		return reused
	case m.Incomplete:
		// rule: an incomplete message is not here yet, and what is not here is never appended, not even as a gap's end.
		l.holdIncomplete(producer, m.ID)
		return hold
	case n == last+1:
		l.note(m.ID, seenAt)
		return appendNow
	case l.noFile && covered(l.held[producer].incomplete, n) == 0: // with those before it pending and incomplete, it waits as with a file
		// rule: a reader may pass the place of n-1 right before that is stored, and then find n. A full sweep that began after n
		// was seen does see n-1, if it is pending, before n. What is not pending was settled by an earlier session, or is lost.
		now, look := l.sweep(), l.looked[producer]
		if look.sweep == now || n > look.n {
			if look.sweep == now {
				n = max(n, look.n)
			}
			l.looked[producer] = sight{n, now}
			l.holdBack(producer, m.ID)
			return hold
		}
		l.note(m.ID, seenAt) // those before count as missing: should one turn up after all, it is handled late and not refused
		return appendNow
	}
	// rule: only the first message that waits ends a gap. Those behind it may be read just when the timeout is over, and would overtake it.
	if h := l.holdBack(producer, m.ID); l.now().Sub(h.since) < l.gapTimeout || h.next != m.ID {
		return hold
	}
	l.note(m.ID, seenAt)
	return appendAfterGap
}

// note counts id as appended; a jump over last+1 is recorded as missing.
func (l *ledger) note(id queue.ID, seenAt int64) {
	producer, n := id.Producer(), id.N()
	h := l.held[producer]
	if l.unfit = covered(h.incomplete, n); l.unfit > 0 { // nobody waits for them any more, but their own time goes on
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
	l.hear(entry, seenAt)
	switch {
	case n <= entry.n:
		l.fill(entry, n)
		return
	case n > entry.n+1:
		l.passed = span{entry.n + 1, n - 1}
		entry.missing = append(entry.missing, l.passed)
		l.missing++
		l.grown++
	}
	entry.n, entry.at = n, ms(id)
}

// holdBack starts (or keeps) the clock of a producer whose next message is missing, while id waits.
func (l *ledger) holdBack(producer uint64, id queue.ID) heldEntry {
	h := l.holdAny(l.held, producer, id)
	h.incomplete = without(h.incomplete, id.N()) // it was repaired
	// A full sweep that has come to id and did not see next before, tells that next is gone.
	if h.next.IsZero() || id.Compare(h.next) <= 0 || h.nextSeen != h.seen {
		h.next, h.nextSeen = id, h.seen
	}
	l.held[producer] = h
	return h
}

// holdIncomplete is for a message that cannot be appended however long it waits.
func (l *ledger) holdIncomplete(producer uint64, id queue.ID) {
	h := l.holdAny(l.held, producer, id)
	h.late = l.now().Sub(h.since) >= l.gapTimeout
	h.incomplete = with(h.incomplete, id.N())
	l.held[producer] = h
}

// holdStuck is for one that no other message waits for.
//
// rule: it starts no gap's clock. A gap that opens later waits for its own missing messages.
func (l *ledger) holdStuck(producer uint64, id queue.ID) {
	h := l.holdAny(l.stuck, producer, id)
	h.late = l.now().Sub(h.since) >= l.gapTimeout
	l.stuck[producer] = h
}

func (l *ledger) holdAny(held map[uint64]heldEntry, producer uint64, id queue.ID) heldEntry {
	h, ok := held[producer]
	if !ok {
		h = heldEntry{since: l.now(), id: id}
	} else if id.Compare(h.id) < 0 {
		h.id = id
	}
	h.seen = l.sweep()
	return h
}

// firstHeld returns the smallest ID that waits; ok is false when none does.
func (l *ledger) firstHeld() (id queue.ID, ok bool) {
	for _, h := range l.held {
		if !ok || h.id.Compare(id) < 0 {
			id, ok = h.id, true
		}
	}
	for producer, h := range l.stuck {
		if h.seen+1 < l.sweep() { // gone, or appended after a repair
			delete(l.stuck, producer)
		} else if !ok || h.id.Compare(id) < 0 {
			id, ok = h.id, true
		}
	}
	return id, ok
}

// lookAgain reports whether anything of what is held back waits for a full sweep.
func (l *ledger) lookAgain() bool {
	for producer := range l.held {
		if look, ok := l.looked[producer]; ok && (l.last[producer] == nil || look.n > l.last[producer].n) {
			return true
		}
	}
	return false
}

// overdue reports, at the end of a full sweep, whether all that is held back are messages that never became complete, and have
// outlasted the gap timeout.
func (l *ledger) overdue() bool {
	sweep := l.sweep()
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

// gone is how many messages of the last declared gap are not in the queue.
func (l *ledger) gone() uint64 { return l.passed.to - l.passed.from + 1 - l.unfit }

// gapText says of the last declared gap what is known of the messages in it.
func (l *ledger) gapText() string {
	switch {
	case l.unfit == 0:
		return "going on behind a declared gap: earlier messages of this producer are gone from the queue"
	case l.gone() == 0:
		return "going on behind a declared gap: earlier messages of this producer are in the queue, but cannot be appended as they are; once repaired they are appended late"
	}
	return "going on behind a declared gap: some earlier messages of this producer are gone from the queue, others are there, but cannot be appended as they are"
}

// covered counts the numbers below n in ascending spans.
func covered(spans []span, n uint64) (count uint64) {
	for _, s := range spans {
		if s.from < n {
			count += min(s.to, n-1) - s.from + 1
		}
	}
	return count
}

// forget drops producers that have been silent for longer than retention. It may only be called after a sweep over all
// pending messages that found nothing of these producers, because a lost acknowledgement may still redeliver them.
func (l *ledger) forget(now int64, retention time.Duration) (dropped int) {
	producers := silent(l.last, now, retention)
	for _, producer := range producers {
		l.drop(producer)
	}
	l.delayed.forget(now, retention)
	return len(producers)
}

func (e *producerEntry) isMissing(n uint64) bool {
	_, missing := find(e.missing, n)
	return missing
}

func (e *producerEntry) isSkipped(n uint64) bool {
	_, skipped := find(e.skipped, n)
	return skipped
}

// maxSkippedSpans bounds what one type's file remembers of the messages that were put aside, and so the checkpoint state (2 MB). Messages that
// follow each other take one span.
const maxSkippedSpans = 150_000

// noteSkipped remembers that the file has a skip entry for a message that was put aside. note has counted it.
func (l *ledger) noteSkipped(id queue.ID) {
	e := l.last[id.Producer()]
	l.skipped -= len(e.skipped)
	e.skipped = with(e.skipped, id.N())
	l.skipped += len(e.skipped)
	l.grown++
}

// growth is how much was added since the last checkpoint, in entries of some ten bytes each. A checkpoint makes it 0.
func (l *ledger) growth() int { return l.grown + l.delayed.grown }

func (l *ledger) checkpointed() { l.grown, l.delayed.grown = 0, 0 }

// boundSkipped forgets a quarter, those of the producers that have been silent for longest, if there are more than the most there may be.
func (l *ledger) boundSkipped() (early bool) {
	if l.skipped <= l.mostSkipped {
		return false
	}
	byAge := slices.SortedFunc(maps.Keys(l.last), func(a, b uint64) int { return cmp.Compare(l.last[a].seenAt, l.last[b].seenAt) })
	for _, producer := range byAge {
		e := l.last[producer]
		n := min(len(e.skipped), l.skipped-l.mostSkipped*3/4)
		e.skipped = slices.Delete(e.skipped, 0, n)
		l.skipped -= n
	}
	return true
}

// fill takes n out of the missing ranges.
func (l *ledger) fill(e *producerEntry, n uint64) {
	l.missing -= len(e.missing)
	e.missing = without(e.missing, n)
	l.missing += len(e.missing)
}

// hear notes a sign of life of a producer.
func (l *ledger) hear(e *producerEntry, seenAt int64) {
	e.heard(seenAt)
	e.walk = l.sweep()
}

// drop forgets a producer.
func (l *ledger) drop(producer uint64) {
	e := l.last[producer]
	l.skipped -= len(e.skipped)
	l.missing -= len(e.missing)
	delete(l.last, producer)
	delete(l.looked, producer)
}

// maxProducers bounds what one type's file remembers of producers, a range of missing numbers counting as one, and so memory (about 15 MB) and
// checkpoints (3 MB).
const maxProducers = 100_000

// boundProducers forgets a tenth, the producers that have been silent for longest, if there are more than the most there may be. full tells that there are
// still too many: of the others something may be pending, and another full sweep is needed to tell.
func (l *ledger) boundProducers() (forgotten int, full bool) {
	if len(l.last)+l.missing <= l.mostProducers {
		return 0, false
	}
	var idle []uint64
	for producer, e := range l.last {
		_, held := l.held[producer]
		_, stuck := l.stuck[producer]
		// rule: no producer is forgotten of which something may be pending that is in the file: a full sweep that began after the last sign of life has come
		// behind its last message, and has not met any.
		if e.walk < l.walk && e.at < l.walked && !held && !stuck {
			idle = append(idle, producer)
		}
	}
	slices.SortFunc(idle, func(a, b uint64) int { return l.last[a].compare(&l.last[b].life) })
	for _, producer := range idle {
		if len(l.last)+l.missing <= l.mostProducers*9/10 {
			break
		}
		l.drop(producer)
		forgotten++
	}
	return forgotten, len(l.last)+l.missing > l.mostProducers
}

// The state blob inside a checkpoint, little endian:
//
//	version u8 · uvarint producers · per producer, ascending:
//	  producer u64 · uvarint n · uvarint at (ms) · uvarint seenAt (ms) · uvarint gaps · gaps × (uvarint from, uvarint to)
//	  uvarint ranges of skipped numbers · ranges × (uvarint from, uvarint to)
//	idempotency keys, see keys.appendState · delayed messages, see delayedIDs.appendState
//
// Earlier versions are read, too: 1 has neither at, nor skipped numbers, nor keys, nor delayed messages; 2 has keys; 3 has all but skipped numbers.
const (
	stateVersionFirst = 1
	stateVersionKeys  = 2
	stateVersionTimes = 3
	stateVersion      = 4
)

var errState = errors.New("checkpoint state is not readable by this version of the worker")

// state encodes the ledger for a checkpoint.
func (l *ledger) state() []byte {
	b := make([]byte, 0, 1+10+len(l.last)*31+l.skipped*16+len(l.keys.at)*24+l.delayed.spans*24)
	b = append(b, stateVersion)
	b = binary.AppendUvarint(b, uint64(len(l.last)))
	for _, p := range slices.Sorted(maps.Keys(l.last)) {
		e := l.last[p]
		b = binary.LittleEndian.AppendUint64(b, p)
		b = binary.AppendUvarint(b, e.n)
		b = binary.AppendUvarint(b, uint64(e.at))
		b = binary.AppendUvarint(b, uint64(max(e.seenAt, 0)))
		b = appendSpans(b, e.missing)
		b = appendSpans(b, e.skipped)
	}
	b = l.keys.appendState(b)
	return l.delayed.appendState(b)
}

func appendSpans(b []byte, spans []span) []byte {
	b = binary.AppendUvarint(b, uint64(len(spans)))
	for _, s := range spans {
		b = binary.AppendUvarint(b, s.from)
		b = binary.AppendUvarint(b, s.to)
	}
	return b
}

// restore replaces the ledger by a checkpoint's state.
func (l *ledger) restore(state []byte) error { return l.restoreWithin(state, stateMemoryBound) }

// restoreWithin is restore that ends with the error of within, which is told how much memory the state has taken so far, in bytes.
func (l *ledger) restoreWithin(state []byte, within func(spent int) error) error {
	d := stateDecoder{b: state, within: within}
	version := d.byte()
	if d.err == nil && (version < stateVersionFirst || version > stateVersion) {
		return fmt.Errorf("%w: version %d, known are %d to %d; update this program", errState, version, stateVersionFirst, stateVersion)
	}
	clear(l.last)
	l.skipped, l.missing = 0, 0
	for range d.uvarint() {
		producer := d.uint64()
		e := &producerEntry{n: d.uvarint()}
		if version >= stateVersionTimes {
			e.at = d.ms()
		}
		e.life, e.missing = readLife(d.ms()), d.spans(e.n)
		if version >= stateVersion {
			e.skipped = d.spans(e.n)
			l.skipped += len(e.skipped)
		}
		l.missing += len(e.missing)
		d.once(producer, l.last[producer] != nil)
		if d.spend(producerMemory); d.err != nil {
			return d.err
		}
		l.last[producer] = e
	}
	if version >= stateVersionKeys {
		l.keys.restore(&d)
	}
	if version >= stateVersionTimes {
		l.delayed.restore(&d)
	}
	if d.err == nil && len(d.b) > 0 {
		d.err = fmt.Errorf("%w: %d bytes left over", errState, len(d.b))
	}
	return d.err
}

// What the parts of a state take in memory when they are decoded, in bytes, and how much they may take together. The bound is more than any worker has
// ever written in a state that a file takes: the most are a million producers of versions that did not bound them.
const (
	producerMemory = 170
	spanMemory     = 32 // and as much when one is added or taken away
	keyMemory      = 120
	stateMemory    = 220 << 20
)

// stateDecoder reads the state blob; after the first error every read returns zero.
type stateDecoder struct {
	b      []byte
	spent  int // memory of what was decoded
	within func(spent int) error
	err    error
}

// spend counts memory. rule: what no worker writes is refused before it takes the memory of the worker that reads it.
func (d *stateDecoder) spend(bytes int) {
	if d.spent += bytes; d.err == nil {
		d.err = d.within(d.spent)
	}
}

func stateMemoryBound(spent int) error {
	if spent > stateMemory {
		return fmt.Errorf("%w: decoded it would take more than %d MiB of memory, which that of no worker does; put the file back from a backup", errState, stateMemory>>20)
	}
	return nil
}

func (d *stateDecoder) take(n int) []byte {
	if d.err != nil || n <= 0 || len(d.b) < n {
		d.cutShort()
		return make([]byte, max(n, 8))
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *stateDecoder) cutShort() {
	if d.err == nil {
		d.err = fmt.Errorf("%w: cut short", errState)
	}
}

func (d *stateDecoder) byte() byte     { return d.take(1)[0] }
func (d *stateDecoder) uint64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }

func (d *stateDecoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.take(0)
		return 0
	}
	d.take(n)
	return v
}

// ms reads a time.
func (d *stateDecoder) ms() int64 {
	v := d.uvarint()
	if v > math.MaxInt64 && d.err == nil {
		d.err = fmt.Errorf("%w: a time of %d ms", errState, v)
	}
	return int64(v)
}

// once refuses a producer that has been read before: its ranges would count twice.
func (d *stateDecoder) once(producer uint64, before bool) {
	if before && d.err == nil {
		d.err = fmt.Errorf("%w: producer %016x is in it twice", errState, producer)
	}
}

// spans reads ascending ranges of numbers up to most.
func (d *stateDecoder) spans(most uint64) []span {
	count := d.uvarint()
	if count > uint64(len(d.b))/2 { // each is two bytes at least
		d.cutShort()
		return nil
	}
	if d.spend(int(count) * spanMemory); d.err != nil || count == 0 {
		return nil
	}
	out := make([]span, count)
	behind := uint64(0)
	for i := range out {
		s := span{d.uvarint(), d.uvarint()}
		if d.err == nil && (s.from > s.to || s.from <= behind && i > 0 || s.to > most) {
			d.err = fmt.Errorf("%w: a range from %d to %d, behind %d and up to %d", errState, s.from, s.to, behind, most)
		}
		out[i], behind = s, s.to
	}
	if d.err != nil {
		return nil
	}
	return out
}
