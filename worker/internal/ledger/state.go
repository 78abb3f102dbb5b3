package ledger

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
)

// The state blob inside a checkpoint, little endian:
//
//	version u8 · uvarint producers · per producer, ascending:
//	  producer u64 · uvarint n · uvarint at (ms) · uvarint seenAt (ms) · uvarint gaps · gaps × (uvarint from, uvarint to)
//	  uvarint ranges of skipped numbers · ranges × (uvarint from, uvarint to)
//	idempotency keys, see keys.appendState · delayed messages, see Delayed.appendState
//
// A loose message is a producer whose n is 0, with a skipped range from 0 to 0 if it was put aside.
//
// Earlier versions are readable, too: 1 has neither at, nor skipped numbers, nor keys, nor delayed
// messages; 2 adds keys; 3 has everything but skipped numbers.
const (
	stateVersionFirst = 1
	stateVersionKeys  = 2
	stateVersionTimes = 3
	stateVersion      = 4
)

// ErrState is wrapped by the errors of Restore.
var ErrState = errors.New("checkpoint state is not readable by this version of the worker")

// State encodes the ledger for a checkpoint. Equal ledgers give equal bytes.
func (l *Ledger) State() []byte {
	b := make([]byte, 0, 1+10+(len(l.last)+len(l.loose))*31+l.skipped*16+len(l.keys.at)*24+l.delayed.spans*24)
	b = append(b, stateVersion)
	b = binary.AppendUvarint(b, uint64(len(l.last)+len(l.loose)))
	for _, p := range slices.Sorted(l.numbers) {
		e := l.last[p]
		if e == nil {
			e = l.loose[p].producer()
		}
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

// numbers yields the producer numbers of producers and loose messages.
func (l *Ledger) numbers(yield func(uint64) bool) {
	for p := range l.last {
		if !yield(p) {
			return
		}
	}
	l.Loose(yield)
}

// producer returns a loose message as a producer entry of the state.
func (e *looseEntry) producer() *producerEntry {
	p := &producerEntry{at: e.at, life: e.life}
	if e.skipped {
		p.skipped = []span{{0, 0}}
	}
	return p
}

// appendSpans encodes ranges: uvarint count · count × (uvarint from, uvarint to).
func appendSpans(b []byte, spans []span) []byte {
	b = binary.AppendUvarint(b, uint64(len(spans)))
	for _, s := range spans {
		b = binary.AppendUvarint(b, s.From)
		b = binary.AppendUvarint(b, s.To)
	}
	return b
}

// appendState encodes the keys: uvarint keys · keys × (hash 16 B · uvarint ms). A hash of zeros, which
// no key has, precedes the keys from the future. Each of those takes two entries: the time at which it
// was recorded, and the time in its ID.
func (k *keys) appendState(b []byte) []byte {
	var all, future []keyEntry
	for _, e := range slices.Concat(k.ahead, k.order) {
		seen, ok := k.seen[e]
		switch {
		case !k.has(e):
		case ok:
			future = append(future, keyEntry{e.key, seen}, e)
		default:
			all = append(all, e)
		}
	}
	if len(future) > 0 {
		all = append(append(all, keyEntry{}), future...)
	}
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, e := range all {
		b = append(b, e.key[:]...)
		b = binary.AppendUvarint(b, uint64(max(e.at, 0)))
	}
	return b
}

// appendState encodes the delayed messages: uvarint producers · per producer, ascending: producer u64
// · uvarint seenAt (ms) · uvarint spans · spans × (uvarint from, uvarint to).
func (d *Delayed) appendState(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(d.of)))
	for _, producer := range slices.Sorted(maps.Keys(d.of)) {
		e := d.of[producer]
		b = binary.LittleEndian.AppendUint64(b, producer)
		b = binary.AppendUvarint(b, uint64(max(e.seenAt, 0)))
		b = appendSpans(b, e.ns)
	}
	return b
}
