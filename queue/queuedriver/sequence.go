package queuedriver

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Sequence assigns the numbers under which the delayed messages of one type are promoted. All
// promoters share it. A backend stores it as durably as the messages, and changes it in the same
// step that decides which messages get the numbers.
//
// rule: it is stored, not kept by each promoter. Across producer numbers a consumer has no contiguity
// to check (docs/decisions/0304), so a change of promoters would cost the order, or a pause. And a
// number that is assigned only in memory could be assigned to two messages, or to none.
type Sequence struct {
	Producer uint64 // producer number
	N        uint64 // the last number assigned
	At       int64  // time in the ID with that number, in ms
	Used     int64  // Moment.Passed when it was assigned, in ms
}

// Moment is what a promoter knows about time when it assigns numbers.
type Moment struct {
	Now time.Time // the backend's clock
	// Passed is a count of elapsed time, which a backend stores with the sequences. Each promoter
	// adds the time that it has itself measured, by a monotonic clock, since it finished the last
	// promotion; a compare-and-swap decides who may add. So Passed lags behind when promoters
	// change or none runs, but is never ahead of real time.
	Passed time.Duration
	// Watched means that no other promoter has promoted since this one did, so that Passed includes
	// all of the time since then.
	Watched bool
}

const (
	// sequenceIdle is how long a Sequence must be unused before it takes a new producer number. It
	// is longer than a consumer's sweep and the pause of docs/decisions/0304 (order across
	// numbers), and far shorter than the time after which a consumer forgets a producer. It is not
	// longer, because a database restored from a backup assigns the numbers since the backup again,
	// unless the sequence had been unused for this time.
	sequenceIdle = time.Minute
	// sequenceKept is how long an unused sequence is kept, for its At.
	sequenceKept = 24 * time.Hour
)

// rested reports whether the sequence takes a new producer number next.
func (s *Sequence) rested(m Moment) bool {
	return s.N == 0 || s.N >= queue.MaxN || m.Passed.Milliseconds()-s.Used > sequenceIdle.Milliseconds() ||
		// rule: a promoter that has watched how long it rested does not rely on a clock, which may have been changed
		!m.Watched && m.Now.UnixMilli()-s.At > sequenceIdle.Milliseconds()
}

// Stale reports whether the sequence need not be kept.
//
// rule: a resting sequence is kept for its At, until clocks have advanced by a day.
func (s *Sequence) Stale(m Moment) bool {
	return s.rested(m) && m.Now.UnixMilli()-s.At > sequenceKept.Milliseconds()
}

// Next returns the next ID, and changes s: store it in the same step that uses the ID.
func (s *Sequence) Next(m Moment) queue.ID {
	if s.rested(m) {
		*s = Sequence{Producer: newProducerNumber(), At: s.At + 1} // rule: ID time grows with a new producer number, whatever the clock says
	}
	s.At = max(s.At, m.Now.UnixMilli()) // rule: ID time never decreases within a producer number
	s.Used = m.Passed.Milliseconds()
	s.N++
	return queue.NewID(time.UnixMilli(s.At), s.Producer, s.N)
}

// newProducerNumber draws a random producer number.
func newProducerNumber() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.BigEndian.Uint64(b[:])
}
