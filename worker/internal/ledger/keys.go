package ledger

import (
	"crypto/sha256"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Idempotency keys (queue.KeyHeader). The file remembers the keys of its messages for
// Options.DedupeWindow: in the records after the last checkpoint, and in the checkpoint's state for
// earlier messages. A second message with a key leaves a skip entry in the file, so that its number is
// not missing there, and is acknowledged.
//
// Two messages are compared by the times in their IDs, which tell when they were published, not when
// they are drained. So it does not matter how long they waited in a backlog, or which worker drains
// them. If the time in an ID is in the future, the clocks of publisher and worker disagree, and the
// worker cannot tell which one is wrong. Such a message has two times, that of its ID and that of the
// worker's clock, and is a copy by either.

// keySlack is how much longer than the window a key is remembered: a message may be stored that much
// later than the time in its ID, because a publisher retries for up to 10 minutes
// (queue.DefaultRepeatFor).
const keySlack = 15 * time.Minute

// keyHash is the hash of a key: 128 bits of SHA-256, for which finding a collision is infeasible.
type keyHash [16]byte

// hashKey gives all keys the same length, so that their memory use is known.
func hashKey(key string) keyHash {
	sum := sha256.Sum256([]byte(key))
	return keyHash(sum[:])
}

// keyEntry is a key and a time at which its message was published, in ms.
type keyEntry struct {
	key keyHash
	at  int64
}

// keys holds the idempotency keys that a file remembers. Not safe for concurrent use.
type keys struct {
	window time.Duration // 0: nothing is a copy, nothing is forgotten
	most   int           // bound of the entries, including taken
	taken  int           // entries that loose messages count as
	now    int64         // the queue's clock, in ms, when this worker last read it

	at     map[keyHash]int64   // one time of each key …
	more   map[keyHash][]int64 // … and further times, for the few keys that have several
	seen   map[keyEntry]int64  // for entries from the future: the worker's clock when they were recorded
	order  []keyEntry          // in the order of recording, roughly by time
	ahead  []keyEntry          // moved here from the front of order, because they were from the future
	newest int64               // the latest recorded time that was not in the future
}

// copied reports whether the file has a message with m's key that was published within the window
// before or after m.
func (k *keys) copied(m *queue.Message) bool {
	key, ok := m.Headers[queue.KeyHeader]
	if !ok || k.window == 0 {
		return false
	}
	h, at := hashKey(key), ms(m.ID)
	// rule: a message from the future was published before it was read, so the time in its ID is wrong; or the worker's clock is slow. The worker
	// cannot tell which, so it is enough if one of the two times is near.
	near := func(t int64) bool {
		apart := min(distance(t, at), distance(t, min(at, k.now)))
		if seen, ok := k.seen[keyEntry{h, t}]; ok {
			apart = min(apart, distance(seen, at))
		}
		return apart <= k.window.Milliseconds()
	}
	t, known := k.at[h]
	return known && (near(t) || slices.ContainsFunc(k.more[h], near))
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// record adds the key of a message that is being appended.
func (k *keys) record(key string, id queue.ID) {
	e := keyEntry{hashKey(key), ms(id)}
	k.add(e, min(e.at, k.now))
}

// add adds e, recorded when the worker's clock showed seen. A key may have several times: messages
// with the same key that are further apart than the window are all in the file.
func (k *keys) add(e keyEntry, seen int64) {
	if k.has(e) {
		return
	}
	if k.at == nil {
		k.at, k.more, k.seen = make(map[keyHash]int64), make(map[keyHash][]int64), make(map[keyEntry]int64)
	}
	// rule: a later time does not replace an earlier one. The next message may be a copy of the earlier message.
	if _, known := k.at[e.key]; known {
		k.more[e.key] = append(k.more[e.key], e.at)
	} else {
		k.at[e.key] = e.at
	}
	k.order = append(k.order, e)
	switch {
	case seen < e.at:
		k.seen[e] = seen
	case e.at <= k.now: // rule: a message from the future causes no key to be forgotten
		k.newest = max(k.newest, e.at)
	}
}

func (k *keys) has(e keyEntry) bool {
	at, known := k.at[e.key]
	return known && (at == e.at || slices.Contains(k.more[e.key], e.at))
}

// remove forgets one time of a key, and the key with its last time.
func (k *keys) remove(e keyEntry) {
	if !k.has(e) {
		return
	}
	delete(k.seen, e)
	more := k.more[e.key]
	switch i := slices.Index(more, e.at); {
	case i >= 0:
		more = slices.Delete(more, i, i+1)
	case len(more) > 0:
		k.at[e.key], more = more[0], more[1:]
	default:
		delete(k.at, e.key)
	}
	if k.more[e.key] = more; len(more) == 0 {
		delete(k.more, e.key)
	}
}

// drop undoes record for a message that was skipped after it was admitted.
func (k *keys) drop(m *queue.Message) {
	if key, ok := m.Headers[queue.KeyHeader]; ok {
		k.remove(keyEntry{hashKey(key), ms(m.ID)})
	}
}

// forget drops keys that are too old to have copies, and the oldest ones if there are too many. early
// means that some were still within the window.
func (k *keys) forget() (early bool) {
	if k.window == 0 {
		return false
	}
	// rule: age is measured from the newest message in the file, not from the clock alone, because copies may be in a backlog that is hours old.
	oldest := k.newest - k.window.Milliseconds() - keySlack.Milliseconds()
	pop := func(list *[]keyEntry) {
		e := (*list)[0]
		early = early || e.at >= oldest && k.has(e)
		k.pop(list)
	}
	for len(k.order) > 0 {
		if e := k.order[0]; e.at < oldest {
			pop(&k.order)
		} else if e.at > k.now {
			// rule: a key from the future does not keep other keys from being forgotten.
			k.order, k.ahead = k.order[1:], append(k.ahead, e)
		} else {
			break
		}
	}
	for len(k.ahead) > 0 && k.ahead[0].at < oldest {
		pop(&k.ahead)
	}
	k.bound(pop)
	return early
}

// bound calls pop for the oldest entries while there are too many.
func (k *keys) bound(pop func(*[]keyEntry)) {
	for len(k.order)+len(k.ahead) > 0 && len(k.order)+len(k.ahead)+len(k.seen)+k.taken > k.most { // a key from the future takes two entries in a checkpoint
		if len(k.order) >= len(k.ahead) {
			pop(&k.order)
		} else {
			pop(&k.ahead)
		}
	}
}

// pop forgets the first entry of a list.
func (k *keys) pop(list *[]keyEntry) {
	e := (*list)[0]
	*list = (*list)[1:]
	k.remove(e)
}
