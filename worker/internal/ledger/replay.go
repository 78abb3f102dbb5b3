package ledger

import (
	"fmt"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// What the records of a file tell the ledger. A message's record has its ID and headers. A skip
// entry stands for a message that is not in the file, so that its number counts there; headers of
// its own say more about it. They are no message's, as a skip entry is none.
const (
	skipWhy       = "fencepost-skip"
	skipDuplicate = "duplicate" // a second message with an idempotency key; nothing is buried for it
	skipGap       = "after-gap" // messages before it are missing, as with storage.KindAfterGap
)

// Replay takes in a record of the file. putAside tells that it is the skip entry of a message that
// became, or is to become, a dead letter.
func (l *Ledger) Replay(r storage.Record) (id queue.ID, putAside bool, err error) {
	if id, err = RecordID(r); err != nil {
		return id, false, err
	}
	l.record(id)
	l.keys.replay(r, id)
	if delayed, ok := RecordDelayedID(r, id); ok {
		l.delayed.Record(delayed, l.clock)
	}
	if putAside = r.Kind == storage.KindSkipped && !skippedAs(r, skipDuplicate); putAside {
		l.recordSkipped(id)
	}
	return id, putAside, nil
}

// MakeSkipEntry makes r, the record of a message, a skip entry. duplicate tells that the message is
// a copy of another one.
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

// DeclaresGap tells whether r says that messages before it are missing.
func DeclaresGap(r storage.Record) bool {
	return r.Kind == storage.KindAfterGap || skippedAs(r, skipGap)
}

// skippedAs tells whether r is a skip entry that says so.
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

// RecordID reads the message ID of a record. A file of this type that holds other IDs was not
// written by a worker.
func RecordID(r storage.Record) (queue.ID, error) {
	if len(r.ID) != len(queue.ID{}) {
		return queue.ID{}, fmt.Errorf("%w: record %d has an ID of %d bytes, a message ID has %d; this file was not written by a worker",
			storage.ErrIntegrity, r.Index, len(r.ID), len(queue.ID{}))
	}
	return queue.ID(r.ID), nil
}

// RecordDelayedID returns the ID of the delayed message that became the message of a record, whose
// ID is id; ok is false if it was not delayed. A skip entry does not have its message's headers.
func RecordDelayedID(r storage.Record, id queue.ID) (delayed queue.ID, ok bool) {
	for _, h := range r.Headers {
		if h.Key == queue.DelayedHeader {
			return queue.DelayedID(h.Value, id)
		}
	}
	return queue.ID{}, false
}

// replay records the key of a record that is in the file.
func (k *keys) replay(r storage.Record, id queue.ID) {
	// rule: what was skipped does not count as published.
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
