package worker

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Idempotency keys (queue.KeyHeader). The file remembers the keys of its messages for Config.DedupeWindow: behind the last checkpoint
// they stand in the records, before it in the checkpoint's state. A second message with a key leaves a skip entry in the file, so that
// its number counts there, and is acknowledged.
//
// Two messages are compared by the times in their IDs, when they were published, and not by when they are drained: so it makes no
// difference how long a backlog has been waiting, or which worker drains it.

const (
	// maxKeys bounds what one type's file remembers, and so memory (about 60 MB) and checkpoints (22 MB). Beyond it the oldest
	// are forgotten early.
	maxKeys = 1_000_000
	// keySlack is for how much longer than the window a key is remembered: a message may be stored that much later than its ID
	// says, as a publisher repeats what is unclear for 10 minutes (queue.RepeatForDefault).
	keySlack = 15 * time.Minute
)

// keyHash is what is remembered of a key. 128 bits of SHA-256: nobody finds two keys that collide.
type keyHash [16]byte

func hashKey(key string) keyHash {
	sum := sha256.Sum256([]byte(key))
	return keyHash(sum[:])
}

// keyEntry is a key and when its message was published, in ms.
type keyEntry struct {
	key keyHash
	at  int64
}

// keys are those that a file remembers. Part of the ledger, and as safe for concurrent use.
type keys struct {
	window time.Duration // 0: nothing is a copy, nothing is forgotten
	most   int
	at     map[keyHash]int64
	order  []keyEntry // as they were noted: about by time
	newest int64      // the latest time noted

	mutantForget bool // checkpoints do without
}

// copied reports whether a message with m's key was published within the window before or after m, and is in the file.
func (k *keys) copied(m *queue.Message) bool {
	key, ok := m.Headers[queue.KeyHeader]
	if !ok || k.window == 0 {
		return false
	}
	at, known := k.at[hashKey(key)]
	return known && max(at-ms(m.ID), ms(m.ID)-at) <= k.window.Milliseconds()
}

// note remembers the key of a message that gets into the file.
func (k *keys) note(key string, id queue.ID) {
	h, at := hashKey(key), ms(id)
	if last, known := k.at[h]; known && last >= at {
		return
	}
	k.add(keyEntry{h, at})
}

func (k *keys) add(e keyEntry) {
	if k.at == nil {
		k.at = make(map[keyHash]int64)
	}
	k.at[e.key] = e.at
	k.order = append(k.order, e)
	k.newest = max(k.newest, e.at)
}

// drop undoes the note of a message that did not get into the file after all.
func (k *keys) drop(m *queue.Message) {
	if key, ok := m.Headers[queue.KeyHeader]; ok && k.at[hashKey(key)] == ms(m.ID) {
		delete(k.at, hashKey(key))
	}
}

// forget drops keys that no message to come can be a copy of, and the oldest beyond the most there may be. now is the backend's clock
// in ms: a message from the future makes nothing forgotten. early tells that some were forgotten before their time.
func (k *keys) forget(now int64) (early bool) {
	if k.window == 0 {
		return false
	}
	// rule: by the newest message in the file and not by the clock alone, as the copies may be in a backlog that is hours old.
	oldest := min(k.newest, now) - (k.window + keySlack).Milliseconds()
	for len(k.order) > 0 && (k.order[0].at < oldest || len(k.at) > k.most) {
		e := k.order[0]
		k.order = k.order[1:]
		if at, known := k.at[e.key]; known && at == e.at {
			delete(k.at, e.key)
			early = early || e.at >= oldest
		}
	}
	return early
}

func ms(id queue.ID) int64 { return id.Time().UnixMilli() }

// Headers of a skip entry say more about it. They are no message's: a skip entry is none.
const (
	skipWhy       = "fencepost-skip"
	skipDuplicate = "duplicate" // a second message with an idempotency key; nothing is buried for it
	skipGap       = "after-gap" // messages before it are missing, as with storage.KindAfterGap
)

// skip makes r a skip entry.
func skip(r *storage.Record, reason string, duplicate bool) {
	var hs []storage.Header
	if duplicate {
		hs = append(hs, storage.Header{Key: skipWhy, Value: skipDuplicate})
	}
	if r.Kind == storage.KindAfterGap {
		hs = append(hs, storage.Header{Key: skipWhy, Value: skipGap})
	}
	r.Kind, r.Payload, r.Headers = storage.KindSkipped, []byte(reason), hs
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

// replayKey notes the key of a record that is in the file.
func (k *keys) replayKey(r storage.Record, id queue.ID) {
	// rule: what was skipped does not count as published.
	if r.Kind == storage.KindSkipped {
		return
	}
	for _, h := range r.Headers {
		if h.Key == queue.KeyHeader {
			k.note(h.Value, id)
			return
		}
	}
}

// appendState encodes the keys behind the producers in a checkpoint's state: uvarint keys · keys × (hash 16 B · uvarint ms).
func (k *keys) appendState(b []byte) []byte {
	if k.mutantForget {
		return append(b, 0)
	}
	n := 0
	for _, e := range k.order {
		if k.at[e.key] == e.at {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for _, e := range k.order {
		if k.at[e.key] == e.at {
			b = append(b, e.key[:]...)
			b = binary.AppendUvarint(b, uint64(max(e.at, 0)))
		}
	}
	return b
}

func (k *keys) restore(d *stateDecoder) {
	k.at, k.order, k.newest = nil, nil, 0
	for range d.uvarint() {
		e := keyEntry{key: keyHash(d.take(len(keyHash{}))), at: int64(d.uvarint())}
		if d.err != nil {
			return
		}
		k.add(e)
	}
}

// skipCopy makes r a skip entry if the file has m under another ID: a message with its key, or the delayed message that became m.
func (s *session) skipCopy(r *storage.Record, m *queue.Message) bool {
	switch {
	// rule: a delayed message that is promoted once more, by a database that was set back, is a copy
	case s.ledger.delayed.copied(m):
		id, _ := delayedID(m)
		skip(r, fmt.Sprintf("duplicate: the delayed message %s was promoted before", id), true)
		s.log.Debug().Stringer("id", m.ID).Stringer("delayed", id).Msg("this delayed message is in the file already")
	case s.ledger.keys.copied(m):
		skip(r, fmt.Sprintf("duplicate: a message with the idempotency key %q was published before", m.Headers[queue.KeyHeader]), true)
		s.log.Debug().Stringer("id", m.ID).Str("key", m.Headers[queue.KeyHeader]).Msg("a message with this idempotency key is in the file already")
	default:
		return false
	}
	s.count(func(st *Stats) { st.Repeated++ })
	return true
}
