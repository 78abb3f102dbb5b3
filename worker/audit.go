package worker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// Audit checks what the exactly-once guarantee promises about a file, beyond the integrity that
// [storage.Verify] checks: every message once, and each producer's messages in order and without
// undeclared gaps. First call Restore with the state that a successor file begins with, if there is
// one; then call Record with every accepted record, in file order; then call Problems.
//
// The zero value is ready to use. Memory grows with the number of producers, not of messages. Loose
// messages ([queue.LooseHeader]) have no order, and a copy of one is found only among the last
// 500,000 of them. Not safe for concurrent use.
type Audit struct {
	// Grow, if set, is called with the approximate number of bytes that the Audit grows by. If it
	// returns an error, Restore or Record returns that error, so that a checker of untrusted files can
	// bound its memory.
	Grow func(bytes int64) error

	told      int64 // bytes reported to Grow so far
	restored  int64 // bytes that the state in Restore took
	ranges    int   // of all producers
	producers map[uint64]*Producer
	problems  []error
	nProblems int
	lost      uint64 // records that a repair gave up
	delayed   ledger.Delayed
	loose     uint64              // loose messages
	looseLast map[uint64]struct{} // producer numbers of the latest loose messages …
	looseOld  map[uint64]struct{} // … and of those before: dropped when looseLast is full and takes its place
}

// Producer describes the messages of one producer in a file.
type Producer struct {
	Number   uint64
	Messages uint64
	Ranges   []Range // of the counter n, ascending; one range 1..last unless gaps were declared
	lastN    uint64
	lastID   queue.ID
	lost     uint64          // Audit.lost at its last message
	before   ledger.Producer // its state at the end of the preceding files
}

// Contiguous reports whether the file has the producer's messages without a gap, from number 1 or from
// where the preceding file ends.
func (p *Producer) Contiguous() bool {
	return len(p.Ranges) == 1 && p.Ranges[0].From == p.before.Last()+1
}

// Range is a closed range of counters.
type Range struct{ From, To uint64 }

const (
	maxProblems = 20      // described; the others are counted
	looseMost   = 500_000 // loose messages in one of the two sets
	looseMemory = 40      // bytes of one of them
)

// grow reports growth since the last call to Grow.
func (a *Audit) grow() error {
	held := a.restored + int64(len(a.producers))*ledger.ProducerMemory + int64(a.ranges)*ledger.SpanMemory + a.delayed.Memory() +
		int64(len(a.looseLast)+len(a.looseOld))*looseMemory
	if a.Grow == nil || held <= a.told {
		return nil
	}
	more := held - a.told
	a.told = held
	return a.Grow(more)
}

// Restore loads the state that a successor file begins with, which has the producers' numbers in the
// preceding files. Call it before Record. The error is that of Grow, or that state cannot be read.
func (a *Audit) Restore(state []byte) error {
	l := ledger.New(ledger.Options{})
	if err := l.RestoreWithin(state, func(spent int) error {
		a.restored = int64(spent)
		return cmp.Or(a.grow(), ledger.BoundMemory(spent))
	}); err != nil {
		return err
	}
	for number, before := range l.All {
		p := a.producer(number)
		p.before, p.lastN = before, before.Last()
	}
	for number := range l.Loose {
		a.seeLoose(number)
	}
	a.delayed = l.Delayed()
	return nil
}

func (a *Audit) producer(number uint64) *Producer {
	p := a.producers[number]
	if p == nil {
		p = &Producer{Number: number}
		if a.producers == nil {
			a.producers = make(map[uint64]*Producer)
		}
		a.producers[number] = p
	}
	return p
}

// Record checks one accepted record; violations are added to Problems. It returns an error only for a
// record that no worker writes, or if Grow returns one.
func (a *Audit) Record(r storage.Record) error {
	if r.Kind == storage.KindLost {
		a.lost++ // of an unknown producer
		return nil
	}
	id, err := ledger.RecordID(r)
	if err != nil {
		return err
	}
	n := id.N()
	if n == 0 {
		if a.loose++; !a.seeLoose(id.Producer()) {
			a.problem("record %d (%s): this loose message, or another one with its producer number, is already in the file, or in one before it", r.Index, id)
		}
		return a.grow()
	}
	p := a.producer(id.Producer())
	declared := ledger.DeclaresGap(r) || n > p.lastN && p.lost != a.lost
	switch {
	case p.has(n):
		a.problem("record %d (%s): message %d of its producer is in the file twice", r.Index, id, n)
	case n <= p.before.Last() && !p.before.Missing(n):
		a.problem("record %d (%s): message %d of its producer is in a file before this one already", r.Index, id, n)
	case n == p.lastN+1, declared:
	case n > p.lastN:
		a.problem("record %d (%s): messages %d to %d of its producer are missing, and no gap is declared", r.Index, id, p.lastN+1, n-1)
	default:
		a.problem("record %d (%s): message %d of its producer comes after %d", r.Index, id, n, p.lastN)
	}
	if n == p.lastN+1 && id.Compare(p.lastID) < 0 {
		a.problem("record %d (%s): its ID is lower than that of its producer's previous message", r.Index, id)
	}
	if delayed, ok := ledger.RecordDelayedID(r, id); ok {
		if a.delayed.Has(delayed) {
			a.problem("record %d (%s): the delayed message %s is in the file twice", r.Index, id, delayed)
		}
		a.delayed.Record(delayed, 0)
	}
	before := len(p.Ranges)
	p.add(n)
	a.ranges += len(p.Ranges) - before
	p.lastN, p.lastID, p.lost = max(p.lastN, n), id, a.lost
	p.Messages++
	return a.grow()
}

// seeLoose remembers a loose message's producer number, and reports whether it is new among the
// remembered ones.
func (a *Audit) seeLoose(number uint64) bool {
	if len(a.looseLast) >= looseMost || a.looseLast == nil {
		a.looseLast, a.looseOld = map[uint64]struct{}{}, a.looseLast
	}
	_, last := a.looseLast[number]
	_, old := a.looseOld[number]
	a.looseLast[number] = struct{}{}
	return !last && !old
}

// Loose is the number of loose messages among the records, including skip entries.
func (a *Audit) Loose() uint64 { return a.loose }

// problem counts a violation, and describes it if it is one of the first maxProblems: descriptions of all
// could exhaust the memory.
func (a *Audit) problem(format string, args ...any) {
	a.nProblems++
	if len(a.problems) < maxProblems {
		a.problems = append(a.problems, fmt.Errorf(format, args...))
	}
}

// Problems returns the violations found so far (the first 20), and how many there are in all.
func (a *Audit) Problems() ([]error, int) { return a.problems, a.nProblems }

// Producers returns the producers with messages in the file, sorted by number.
func (a *Audit) Producers() []*Producer {
	ps := make([]*Producer, 0, len(a.producers))
	for _, p := range a.producers {
		if p.Messages > 0 {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, func(x, y *Producer) int { return cmp.Compare(x.Number, y.Number) })
	return ps
}

func (p *Producer) has(n uint64) bool {
	_, in := ledger.Find(p.Ranges, n)
	return in
}

// add adds n to the ranges.
func (p *Producer) add(n uint64) { p.Ranges = ledger.With(p.Ranges, n) }
