package ledger

import (
	"cmp"
	"slices"
	"time"
)

// Forgetting. The entries of producers that no longer exist must be dropped eventually. But clocks can
// be wrong: a server's clock jumps, and a time read at a bad moment stays wrong in the entry. So a wall
// clock alone never decides that a producer is forgotten: see silent.

// spareProducers is how many producers a file remembers however old they are by the queue's clock. At 25
// bytes each they take 50 KB of a checkpoint.
const spareProducers = 2000

// life records when a producer was last seen. It is part of the ledger's entries.
type life struct {
	seenAt int64     // by the queue's clock, in ms; part of a checkpoint's state
	since  time.Time // when this pool last saw it, or read its entry, by the monotonic clock of this process
	read   bool      // this pool knows it only from the file
}

// heard records a sign of life.
func (l *life) heard(seenAt int64) { *l = life{seenAt: max(l.seenAt, seenAt), since: time.Now()} }

// compare returns a negative number if l has been silent longer than other, as far as this pool knows.
// It treats producers known only from the file as silent longer than those this pool has seen.
func (l *life) compare(other *life) int {
	switch {
	case l.read && other.read:
		return cmp.Compare(l.seenAt, other.seenAt)
	case l.read:
		return -1
	case other.read:
		return 1
	}
	return l.since.Compare(other.since)
}

// lived gives silent access to the life in an entry.
func (l *life) lived() *life { return l }

// readLife returns the life of an entry read from a checkpoint's state.
func readLife(seenAt int64) life { return life{seenAt: seenAt, since: time.Now(), read: true} }

// silent lists the producers that may be forgotten. now is the queue's clock, in ms.
//
// rule: no wall clock alone decides that a producer is forgotten. A producer is silent when this pool has not seen it for retention, by the
// monotonic clock of this process. That clock stops while the machine sleeps, and so do the producers on
// that machine, so the time is never too short.
//
// A pool that never runs that long, because a timer starts it to drain the queue, would forget no
// producer by this rule. So a producer known only from the file may also be forgotten when it is old by
// the queue's clock and spareProducers others were seen later.
func silent[E interface{ lived() *life }](entries map[uint64]E, now int64, retention time.Duration) (producers []uint64) {
	began := time.Now()
	var old []uint64
	for producer, e := range entries {
		switch l := e.lived(); {
		case began.Sub(l.since) > retention:
			producers = append(producers, producer)
		case l.read && now-l.seenAt > retention.Milliseconds():
			old = append(old, producer)
		}
	}
	if spare := len(entries) - len(producers) - spareProducers; spare > 0 {
		slices.SortFunc(old, func(a, b uint64) int { return cmp.Compare(entries[a].lived().seenAt, entries[b].lived().seenAt) })
		producers = append(producers, old[:min(spare, len(old))]...)
	}
	return producers
}

// Lives carries over, from one session of a type to the next, how long each producer has been silent by
// the monotonic clock.
type Lives struct {
	producers map[uint64]*producerEntry
	loose     map[uint64]*looseEntry
	delayed   map[uint64]*delayedEntry
}

// Lives returns the lives for the Recall of the next session. The ledger must not be used afterwards.
func (l *Ledger) Lives() Lives { return Lives{l.last, l.loose, l.delayed.of} }

// Recall restores the ages from an earlier session in a ledger that was just read from the file. The
// age of an entry that another pool has changed since starts anew.
func (l *Ledger) Recall(before Lives) {
	for producer, e := range l.last {
		if b := before.producers[producer]; b != nil && b.n == e.n && e.read {
			e.since, e.read = b.since, b.read
		}
	}
	for producer, e := range l.loose {
		if b := before.loose[producer]; b != nil && b.at == e.at && e.read {
			e.since, e.read = b.since, b.read
		}
	}
	for producer, e := range l.delayed.of {
		if b := before.delayed[producer]; b != nil && slices.Equal(b.ns, e.ns) && e.read {
			e.since, e.read = b.since, b.read
		}
	}
}

// AnySilent reports whether Forget has anything to drop.
func (l *Ledger) AnySilent(now int64, retention time.Duration) bool {
	return len(silent(l.last, now, retention))+len(silent(l.loose, now, retention))+len(silent(l.delayed.of, now, retention)) > 0
}

// Forget drops producers that have been silent for longer than retention, and loose messages last
// pending longer ago than that, and returns the number of dropped producers. now is the queue's clock,
// in ms. Call it only after a full sweep that found nothing pending: after a lost acknowledgement the
// queue delivers a message again, and only the entry shows that it is a copy.
func (l *Ledger) Forget(now int64, retention time.Duration) (dropped int) {
	producers := silent(l.last, now, retention)
	for _, producer := range producers {
		l.drop(producer)
	}
	for _, producer := range silent(l.loose, now, retention) {
		delete(l.loose, producer)
	}
	l.delayed.forget(now, retention)
	return len(producers)
}
