package ledger

import (
	"fmt"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Records and the ledger. A message's record contains its ID and headers. A skip entry takes the place
// of a message that is not in the file, so that its number is not missing. It has the message's ID,
// but none of its headers; the headers below describe the skip entry itself.
const (
	skipWhy       = "fencepost-skip"
	skipDuplicate = "duplicate" // a copy under another ID; it does not become a dead letter
	skipGap       = "after-gap" // messages before it are missing, as with storage.KindAfterGap
)

// Replay adds a record of the file to the ledger. putAside means that the record is the skip entry of
// a message that became, or has to become, a dead letter.
func (l *Ledger) Replay(r storage.Record) (id queue.ID, putAside bool, err error) {
	if id, err = RecordID(r); err != nil {
		return id, false, err
	}
	l.record(id)
	l.keys.replay(r, id)
	// rule: the records after a checkpoint may have any number of keys, and the next checkpoint may be written before TrimHistory is called.
	l.keys.taken = l.takenByLoose()
	l.keys.bound(l.keys.pop)
	if delayed, ok := RecordDelayedID(r, id); ok {
		l.delayed.Record(delayed, l.clock)
	}
	if putAside = r.Kind == storage.KindSkipped && !skippedAs(r, skipDuplicate); putAside {
		l.recordSkipped(id)
	}
	return id, putAside, nil
}

// MakeSkipEntry turns r, the record of a message, into a skip entry. duplicate means that the message
// is a copy of another one.
func MakeSkipEntry(r *storage.Record, reason string, duplicate bool) {
	var hs []storage.Header
	if duplicate {
		hs = append(hs, storage.Header{Key: skipWhy, Value: skipDuplicate})
	}
	if r.Kind == storage.KindAfterGap {
		hs = append(hs, storage.Header{Key: skipWhy, Value: skipGap})
	}
	r.Kind, r.Payload, r.Headers = storage.KindSkipped, []byte(reason), hs
}

// DeclaresGap reports whether r declares that messages before it are missing.
func DeclaresGap(r storage.Record) bool {
	return r.Kind == storage.KindAfterGap || skippedAs(r, skipGap)
}

// skippedAs reports whether r is a skip entry with what in its skipWhy header.
func skippedAs(r storage.Record, what string) bool {
	if r.Kind != storage.KindSkipped {
		return false
	}
	for _, h := range r.Headers {
		if h.Key == skipWhy && h.Value == what {
			return true
		}
	}
	return false
}

// RecordID returns the message ID of a record. An error means that the file was not written by a worker.
func RecordID(r storage.Record) (queue.ID, error) {
	if len(r.ID) != len(queue.ID{}) {
		return queue.ID{}, fmt.Errorf("%w: record %d has an ID of %d bytes, a message ID has %d; this file was not written by a worker",
			storage.ErrIntegrity, r.Index, len(r.ID), len(queue.ID{}))
	}
	return queue.ID(r.ID), nil
}

// RecordDelayedID returns the ID of the delayed message that became the message of r, whose ID is id.
// ok is false if it was not delayed, and for a skip entry, which does not have its message's headers.
func RecordDelayedID(r storage.Record, id queue.ID) (delayed queue.ID, ok bool) {
	for _, h := range r.Headers {
		if h.Key == queue.DelayedHeader {
			return queue.DelayedID(h.Value, id)
		}
	}
	return queue.ID{}, false
}

// replay adds the idempotency key of a record of the file.
func (k *keys) replay(r storage.Record, id queue.ID) {
	// rule: a skipped message does not count as published.
	if r.Kind == storage.KindSkipped {
		return
	}
	for _, h := range r.Headers {
		if h.Key == queue.KeyHeader {
			k.record(h.Value, id)
			return
		}
	}
}
