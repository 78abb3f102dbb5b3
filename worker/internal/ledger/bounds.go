package ledger

import (
	"cmp"
	"maps"
	"slices"
)

// Bounds. A checkpoint contains everything a ledger remembers, so each kind of entry has a maximum.
// Beyond it the oldest entries are forgotten early, which the worker logs.

const (
	// maxProducers bounds the producers that one type's file remembers, and so memory (about 15 MB)
	// and checkpoints (3 MB). A range of missing numbers counts as one producer.
	maxProducers = 100_000

	// MaxSkipped bounds the skipped numbers that one type's file remembers, in ranges of
	// consecutive numbers, and so the checkpoint state (2 MB).
	MaxSkipped = 150_000

	// MaxDelayed bounds the promoted delayed messages that one type's file remembers, in ranges of
	// numbers, and so the checkpoint state (4 MB). Messages promoted in the order of publication take
	// one range per publisher.
	MaxDelayed = 150_000

	// MaxLoose bounds the loose messages that one type's file remembers, and so memory (about 35
	// MB) and checkpoints (6 MB).
	MaxLoose = 250_000

	// MaxKeys bounds the idempotency keys that one type's file remembers, and so memory (about 60
	// MB) and checkpoints (22 MB). A loose message counts as 1¼ keys, so that both fit into a
	// checkpoint.
	MaxKeys = 1_000_000
)

// Growth returns the number of entries, of about ten bytes each, added since the last checkpoint. A
// successor would have to replay them.
func (l *Ledger) Growth() int { return l.grown + l.delayed.grown }

// Checkpointed resets Growth. Call it when a checkpoint contains the current state.
func (l *Ledger) Checkpointed() { l.grown, l.delayed.grown = 0, 0 }

// Forgotten reports which kinds of entries TrimHistory has forgotten early.
type Forgotten struct{ Skipped, Delayed, Keys bool }

// TrimHistory bounds the skipped numbers, delayed messages and keys, and drops keys whose window has
// passed.
func (l *Ledger) TrimHistory() (early Forgotten) {
	l.keys.taken = l.takenByLoose()
	return Forgotten{l.trimSkipped(), l.delayed.trim(), l.keys.forget()}
}

// takenByLoose returns how many keys the loose messages count as.
func (l *Ledger) takenByLoose() int { return len(l.loose) + len(l.loose)/4 }

// trimSkipped forgets a quarter of the skipped ranges if there are too many: those of the producers
// that have been silent longest.
func (l *Ledger) trimSkipped() (early bool) {
	if l.skipped <= l.mostSkipped {
		return false
	}
	byAge := slices.SortedFunc(maps.Keys(l.last), func(a, b uint64) int { return cmp.Compare(l.last[a].seenAt, l.last[b].seenAt) })
	for _, producer := range byAge {
		e := l.last[producer]
		n := min(len(e.skipped), l.skipped-l.mostSkipped*3/4)
		e.skipped = slices.Delete(e.skipped, 0, n)
		l.skipped -= n
	}
	return true
}

// trim forgets a quarter of the ranges if there are too many: those of the producers that have been
// silent longest.
func (d *Delayed) trim() (early bool) {
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

// Load returns how many producers and declared gaps the ledger remembers, and the maximum that
// TrimProducers allows.
func (l *Ledger) Load() (producers, most int) { return len(l.last) + l.missing, l.mostProducers }

// TrimProducers forgets a tenth of the producers, those that have been silent longest, if there are
// too many. full means that there are still too many: the others may have pending messages, and only
// another full sweep can show that they have none.
func (l *Ledger) TrimProducers() (forgotten int, full bool) {
	if len(l.last)+l.missing <= l.mostProducers {
		return 0, false
	}
	var idle []uint64
	for producer, e := range l.last {
		_, held := l.held[producer]
		_, stuck := l.stuck[producer]
		// rule: no producer with a message that may be both pending and in the file is forgotten. A full sweep that began after its last sign of
		// life must have passed the position of its last message without meeting any of its messages.
		if e.walk < l.walk && e.at < l.walked && !held && !stuck {
			idle = append(idle, producer)
		}
	}
	slices.SortFunc(idle, func(a, b uint64) int { return l.last[a].compare(&l.last[b].life) })
	for _, producer := range idle {
		if len(l.last)+l.missing <= l.mostProducers*9/10 {
			break
		}
		l.drop(producer)
		forgotten++
	}
	return forgotten, len(l.last)+l.missing > l.mostProducers
}

// drop forgets a producer, with its skipped and missing numbers.
func (l *Ledger) drop(producer uint64) {
	e := l.last[producer]
	l.skipped -= len(e.skipped)
	l.missing -= len(e.missing)
	delete(l.last, producer)
	delete(l.looked, producer)
}
