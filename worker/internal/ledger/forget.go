package ledger

import (
	"cmp"
	"slices"
	"time"
)

// Forgetting. The file remembers producers, and entries of those that are gone must go some time.
// Clocks may be wrong: that of a server jumps, and one that was read in a bad second stays wrong
// for the life of a process. So it takes more than a clock to forget a producer, see silent.

// spareProducers is how many producers a file remembers at least, however old they look. At 25
// bytes each they are 50 KB of a checkpoint.
const spareProducers = 2000

// life is when a producer was last heard of. Part of the ledger's entries.
type life struct {
	seenAt int64     // by the queue's clock, ms; part of a checkpoint's state
	since  time.Time // when this pool heard of it, or first read of it, by the monotonic clock of this process
	read   bool      // this pool knows of it from the file only
}

// heard notes a sign of life.
func (l *life) heard(seenAt int64) { *l = life{seenAt: max(l.seenAt, seenAt), since: time.Now()} }

// compare is negative if l has been silent for longer than other, as far as this pool knows. What
// it has heard of itself comes behind what it knows from the file.
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

// lived makes a life part of an entry, for silent.
func (l *life) lived() *life { return l }

// readLife is that of an entry in a checkpoint's state.
func readLife(seenAt int64) life { return life{seenAt: seenAt, since: time.Now(), read: true} }

// silent lists the producers of entries that may be forgotten. now is the queue's clock, in ms.
//
// rule: no wall clock forgets a producer. It is silent when this pool has not heard of it for retention, by the monotonic clock of this process. That
// clock stands still while the machine sleeps, as the clocks of producers on it do, so the time is
// never too short.
//
// A pool that does not run for so long, as one that a timer starts to drain what there is, would
// forget nobody. What it only knows from the file goes when the queue's clock says so and
// spareProducers others were heard of later.
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

// Lives is what a pool remembers of a type's file between its sessions: since when each producer
// has been silent.
type Lives struct {
	producers map[uint64]*producerEntry
	loose     map[uint64]*looseEntry
	delayed   map[uint64]*delayedEntry
}

// Lives returns what the next session is to Recall. The ledger is not used any more then.
func (l *Ledger) Lives() Lives { return Lives{l.last, l.loose, l.delayed.of} }

// Recall lets the entries of a file that was opened go on with their ages. An entry that another
// pool has changed meanwhile begins anew.
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

// Forget drops producers that have been silent for longer than retention, and loose messages that
// were last pending longer ago. now is the queue's clock, in ms. It may only be called after a
// sweep over all pending messages that found nothing of these producers, because a lost
// acknowledgement may still redeliver them.
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
