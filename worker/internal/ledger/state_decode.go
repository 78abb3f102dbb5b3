package ledger

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A state comes from a file, which may be damaged or written by another program. So the decoder trusts
// nothing: it checks counts against the remaining bytes before it allocates, counts the memory as it
// grows, and refuses ranges that no worker writes and trailing bytes.

// Restore replaces the content of the ledger with a checkpoint's state. An error wraps ErrState; the
// ledger must not be used after it.
func (l *Ledger) Restore(state []byte) error { return l.RestoreWithin(state, BoundMemory) }

// RestoreWithin is Restore with another bound: within is called with the bytes of memory taken so far,
// and its error ends the decoding.
func (l *Ledger) RestoreWithin(state []byte, within func(spent int) error) error {
	d := stateDecoder{b: state, within: within}
	version := d.byte()
	if d.err == nil && (version < stateVersionFirst || version > stateVersion) {
		return fmt.Errorf("%w: version %d, but this program reads %d to %d; update it", ErrState, version, stateVersionFirst, stateVersion)
	}
	clear(l.last)
	clear(l.loose)
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
		}
		d.once(producer, l.last[producer] != nil || l.loose[producer] != nil)
		if e.n == 0 && e.missing != nil && d.err == nil {
			d.err = fmt.Errorf("%w: messages before the loose one of producer %016x are missing", ErrState, producer)
		}
		if d.spend(ProducerMemory); d.err != nil {
			return d.err
		}
		if e.n == 0 {
			l.loose[producer] = &looseEntry{at: e.at, skipped: e.skipped != nil, life: e.life}
			continue
		}
		l.missing += len(e.missing)
		l.skipped += len(e.skipped)
		l.last[producer] = e
	}
	if version >= stateVersionKeys {
		l.keys.restore(&d)
	}
	if version >= stateVersionTimes {
		l.delayed.restore(&d)
	}
	if d.err == nil && len(d.b) > 0 {
		d.err = fmt.Errorf("%w: %d bytes left over", ErrState, len(d.b))
	}
	return d.err
}

// restore decodes the output of appendState. After a hash of zeros the entries come in pairs: when the
// key was recorded, and the time in its message's ID.
func (k *keys) restore(d *stateDecoder) {
	k.at, k.more, k.seen, k.order, k.ahead, k.newest = nil, nil, nil, nil, nil, 0
	future := false
	read := func() keyEntry {
		d.spend(keyMemory)
		return keyEntry{key: keyHash(d.take(len(keyHash{}))), at: d.ms()}
	}
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		e := read()
		seen := e.at
		if future && n > 1 {
			e = read()
			n--
		}
		switch {
		case d.err != nil:
		case e.key == keyHash{}:
			future = true
		default:
			k.add(e, seen)
		}
	}
}

// restore decodes the output of appendState. A delayed message may have any number, so ranges have no
// upper bound.
func (d *Delayed) restore(s *stateDecoder) {
	d.of, d.spans = make(map[uint64]*delayedEntry), 0
	for range s.uvarint() {
		producer := s.uint64()
		e := &delayedEntry{life: readLife(s.ms()), ns: s.spans(math.MaxUint64)}
		s.once(producer, d.of[producer] != nil)
		if s.spend(ProducerMemory); s.err != nil {
			return
		}
		d.of[producer] = e
		d.spans += len(e.ns)
	}
}

// Bytes of memory that the parts of a decoded state take, and the bound for a whole state. The bound
// exceeds every state that a worker can have written: the largest have a million producers, from
// versions that did not bound them.
const (
	ProducerMemory = 170
	SpanMemory     = 32 // also right after a span was added or removed
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

// spend counts memory. rule: a state that no worker writes is refused before it exhausts the memory of the worker that reads it.
func (d *stateDecoder) spend(bytes int) {
	if d.spent += bytes; d.err == nil {
		d.err = d.within(d.spent)
	}
}

// BoundMemory implements the bound of Restore.
func BoundMemory(spent int) error {
	if spent > stateMemory {
		return fmt.Errorf("%w: decoding it would take more than %d MiB of memory; no worker writes such a state; restore the file from a backup", ErrState, stateMemory>>20)
	}
	return nil
}

// take returns the next n bytes. After an error, or if the state is too short, it returns zeros, so
// callers need to check the error only at the end.
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
		d.err = fmt.Errorf("%w: cut short", ErrState)
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

// ms reads a time in ms.
func (d *stateDecoder) ms() int64 {
	v := d.uvarint()
	if v > math.MaxInt64 && d.err == nil {
		d.err = fmt.Errorf("%w: a time of %d ms", ErrState, v)
	}
	return int64(v)
}

// once refuses a producer that occurs twice: its ranges would be counted twice.
func (d *stateDecoder) once(producer uint64, before bool) {
	if before && d.err == nil {
		d.err = fmt.Errorf("%w: producer %016x is in it twice", ErrState, producer)
	}
}

// spans reads ranges of numbers that must not exceed most.
//
// rule: ranges in a state are ascending and do not exceed their producer's last number. A range beyond it would hide future messages.
func (d *stateDecoder) spans(most uint64) []span {
	count := d.uvarint()
	if count > uint64(len(d.b))/2 { // each takes at least two bytes
		d.cutShort()
		return nil
	}
	if d.spend(int(count) * SpanMemory); d.err != nil || count == 0 {
		return nil
	}
	out := make([]span, count)
	behind := uint64(0)
	for i := range out {
		s := span{d.uvarint(), d.uvarint()}
		if d.err == nil && (s.From > s.To || s.From <= behind && i > 0 || s.To > most) {
			d.err = fmt.Errorf("%w: a range from %d to %d, behind %d and up to %d", ErrState, s.From, s.To, behind, most)
		}
		out[i], behind = s, s.To
	}
	if d.err != nil {
		return nil
	}
	return out
}
