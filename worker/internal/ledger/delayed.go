package ledger

import (
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Promoted delayed messages. A database that is restored to an earlier state promotes the same delayed
// messages again, under new IDs, so their numbers look like those of new messages. Therefore the file
// remembers which delayed messages it contains. A promoted message carries the ID of its delayed
// message in a header (queue.DelayedHeader), with the number 1, 2, 3 … that the publisher assigned. A
// copy leaves a skip entry in the file, like a second message with the same idempotency key.

// Delayed is the set of delayed messages in a file, by ID. Not safe for concurrent use.
type Delayed struct {
	of    map[uint64]*delayedEntry // by producer number of the delayed messages
	spans int                      // number of ranges in all entries
	most  int                      // bound of spans
	grown int                      // see Ledger.Growth
}

// delayedEntry holds the delayed messages of one producer.
type delayedEntry struct {
	ns   []span // their numbers, ascending
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
func (d *Delayed) copied(m *queue.Message) bool {
	id, ok := delayedID(m)
	return ok && d.Has(id)
}

// Has reports whether the file has the delayed message with this ID.
func (d *Delayed) Has(id queue.ID) bool {
	e := d.of[id.Producer()]
	if e == nil {
		return false
	}
	_, has := Find(e.ns, id.N())
	return has
}

// Memory returns the approximate memory use of the set, in bytes.
func (d *Delayed) Memory() int64 {
	return int64(len(d.of))*ProducerMemory + int64(d.spans)*SpanMemory
}

// Record adds a delayed message. seenAt is the queue's clock, in ms since 1970.
func (d *Delayed) Record(id queue.ID, seenAt int64) {
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
	e.ns = With(e.ns, id.N())
	d.spans += len(e.ns) - before
	d.grown += max(len(e.ns)-before, 0)
}

// drop undoes Record for a message that was skipped after it was admitted.
func (d *Delayed) drop(m *queue.Message) {
	id, ok := delayedID(m)
	if e := d.of[id.Producer()]; ok && e != nil {
		d.spans -= len(e.ns)
		e.ns = without(e.ns, id.N())
		d.spans += len(e.ns)
	}
}

// forget drops producers that have been silent for longer than retention; see Ledger.Forget.
func (d *Delayed) forget(now int64, retention time.Duration) {
	for _, producer := range silent(d.of, now, retention) {
		d.remove(producer)
	}
}

// remove forgets a producer of delayed messages.
func (d *Delayed) remove(producer uint64) {
	d.spans -= len(d.of[producer].ns)
	delete(d.of, producer)
}
