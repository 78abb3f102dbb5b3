package worker

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Delayed messages that were promoted. A database that is set back to an earlier state promotes once more what it had promoted since, under
// other IDs, which the check of the numbers cannot tell from new messages. So the file remembers which delayed messages it has: a
// promoted message names its delayed one in a header (queue.DelayedHeader), and the publisher has numbered the delayed ones, 1, 2, 3 …
// A copy leaves a skip entry in the file, as a second message with an idempotency key does.

// maxDelayedSpans bounds what one type's file remembers of delayed messages, and so the checkpoint state (4 MB). Messages that are promoted in
// the order of their publishing take one span for each publisher.
const maxDelayedSpans = 150_000

// delayedIDs are the IDs of the delayed messages that a file has. Part of the ledger, and as safe for concurrent use.
type delayedIDs struct {
	of    map[uint64]*delayedEntry // by producer number of the delayed messages
	spans int                      // of all entries
	most  int
	grown int // see ledger.growth
}

// delayedEntry is what the file has of one producer's delayed messages.
type delayedEntry struct {
	ns   []span // their counters, ascending
	life        // of the last append; only ages entries
}

// delayedID returns the ID of the delayed message that became m; ok is false if m was not delayed.
func delayedID(m *queue.Message) (id queue.ID, ok bool) {
	value, ok := m.Headers[queue.DelayedHeader]
	if !ok {
		return queue.ID{}, false
	}
	return queue.DelayedID(value, m.ID)
}

// copied reports whether the file has the delayed message that became m.
func (d *delayedIDs) copied(m *queue.Message) bool {
	id, ok := delayedID(m)
	return ok && d.has(id)
}

func (d *delayedIDs) has(id queue.ID) bool {
	e := d.of[id.Producer()]
	if e == nil {
		return false
	}
	_, has := find(e.ns, id.N())
	return has
}

// noteMessage remembers the delayed message that became m, if there is one.
func (d *delayedIDs) noteMessage(m *queue.Message, seenAt int64) {
	if id, ok := delayedID(m); ok {
		d.note(id, seenAt)
	}
}

// recordDelayedID is delayedID for a record that is in the file. A skip entry does not have its message's headers.
func recordDelayedID(r storage.Record, id queue.ID) (delayed queue.ID, ok bool) {
	for _, h := range r.Headers {
		if h.Key == queue.DelayedHeader {
			return queue.DelayedID(h.Value, id)
		}
	}
	return queue.ID{}, false
}

func (d *delayedIDs) note(id queue.ID, seenAt int64) {
	if d.of == nil {
		d.of = make(map[uint64]*delayedEntry)
	}
	e := d.of[id.Producer()]
	if e == nil {
		e = &delayedEntry{}
		d.of[id.Producer()] = e
	}
	e.heard(seenAt)
	before := len(e.ns)
	e.ns = with(e.ns, id.N())
	d.spans += len(e.ns) - before
	d.grown += max(len(e.ns)-before, 0)
}

// drop undoes the note of a message that did not get into the file after all.
func (d *delayedIDs) drop(m *queue.Message) {
	id, ok := delayedID(m)
	if e := d.of[id.Producer()]; ok && e != nil {
		d.spans -= len(e.ns)
		e.ns = without(e.ns, id.N())
		d.spans += len(e.ns)
	}
}

// forget drops producers that have been silent for longer than retention. See ledger.forget for when.
func (d *delayedIDs) forget(now int64, retention time.Duration) {
	for _, producer := range silent(d.of, now, retention) {
		d.remove(producer)
	}
}

func (d *delayedIDs) remove(producer uint64) {
	d.spans -= len(d.of[producer].ns)
	delete(d.of, producer)
}

// bound forgets a quarter, the producers that have been silent for longest, if there are more than the most there may be.
func (d *delayedIDs) bound() (early bool) {
	if d.spans <= d.most {
		return false
	}
	byAge := slices.SortedFunc(maps.Keys(d.of), func(a, b uint64) int { return cmp.Compare(d.of[a].seenAt, d.of[b].seenAt) })
	for _, producer := range byAge {
		if d.spans <= d.most*3/4 {
			break
		}
		d.remove(producer)
	}
	return true
}

// find returns the place of the first span that ends at n or later, and whether n is in it.
func find(spans []span, n uint64) (i int, in bool) {
	i, _ = slices.BinarySearchFunc(spans, n, func(s span, n uint64) int { return cmp.Compare(s.to, n) })
	return i, i < len(spans) && spans[i].from <= n
}

// with returns ascending spans with n in them, joined where they touch.
func with(spans []span, n uint64) []span {
	i, in := find(spans, n)
	if in {
		return spans
	}
	before := i > 0 && spans[i-1].to+1 == n
	behind := i < len(spans) && spans[i].from == n+1
	switch {
	case before && behind:
		spans[i-1].to = spans[i].to
		return slices.Delete(spans, i, i+1)
	case before:
		spans[i-1].to = n
	case behind:
		spans[i].from = n
	default:
		return slices.Insert(spans, i, span{n, n})
	}
	return spans
}

// without returns ascending spans without n.
func without(spans []span, n uint64) []span {
	i, in := find(spans, n)
	if !in {
		return spans
	}
	s := spans[i]
	var rest []span
	if s.from < n {
		rest = append(rest, span{s.from, n - 1})
	}
	if n < s.to {
		rest = append(rest, span{n + 1, s.to})
	}
	return slices.Replace(spans, i, i+1, rest...)
}

// appendState encodes the IDs for a checkpoint's state: uvarint producers · per producer, ascending: producer u64 · uvarint seenAt (ms) ·
// uvarint spans · spans × (uvarint from, uvarint to).
func (d *delayedIDs) appendState(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(d.of)))
	for _, producer := range slices.Sorted(maps.Keys(d.of)) {
		e := d.of[producer]
		b = binary.LittleEndian.AppendUint64(b, producer)
		b = binary.AppendUvarint(b, uint64(max(e.seenAt, 0)))
		b = appendSpans(b, e.ns)
	}
	return b
}

func (d *delayedIDs) restore(s *stateDecoder) {
	d.of, d.spans = make(map[uint64]*delayedEntry), 0
	for range s.uvarint() {
		producer := s.uint64()
		e := &delayedEntry{life: readLife(s.ms()), ns: s.spans(math.MaxUint64)}
		s.once(producer, d.of[producer] != nil)
		if s.spend(producerMemory); s.err != nil {
			return
		}
		d.of[producer] = e
		d.spans += len(e.ns)
	}
}
