package queuedriver

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Sequence is the numbers under which the delayed messages of one type are promoted: one for all
// who promote. A backend keeps it as durably as the messages, and changes it in the same step that
// decides which messages get the numbers.
//
// rule: it is stored, and not each promoter's own. A consumer sees a new producer number without the contiguity of the old one
// (docs/decisions/0304), so a change of promoters would cost the order, or a pause; and a number
// that was given away in memory only could be given to two messages, or to none.
type Sequence struct {
	Producer uint64
	N        uint64 // given last
	At       int64  // ID time of that, ms
	Used     int64  // Moment.Passed of that, ms
}

// Moment is what a promoter knows about time when it gives numbers.
type Moment struct {
	Now time.Time // the backend's clock
	// Passed is a count of the time that has passed, which a backend keeps with the sequences. Each
	// promoter adds what it has itself seen pass, by a clock that cannot be set, since it saw that
	// there was nothing left to do for the one before; compare-and-set decides who adds. So it lags
	// behind when promoters change or none runs, and is never ahead of the time that has passed.
	Passed time.Duration
	// Watched: nobody else has promoted since this promoter did, so nothing that has passed since
	// then is missing in Passed.
	Watched bool
}

const (
	// sequenceIdle is how long a Sequence rests before it takes a new producer number: longer than
	// a consumer's sweep and the pause of docs/decisions/0304 (order across numbers), and far
	// shorter than the time after which a consumer forgets a producer. It is no longer than that: a
	// database that is restored from a backup has the numbers of the backup, and gives those again
	// that were given since, unless the sequence has rested.
	sequenceIdle = time.Minute
	// sequenceKept is how long a sequence is kept that rests, for its At.
	sequenceKept = 24 * time.Hour
)

// rested reports whether the sequence would begin anew.
func (s *Sequence) rested(m Moment) bool {
	return s.N == 0 || s.N >= queue.MaxN || m.Passed.Milliseconds()-s.Used > sequenceIdle.Milliseconds() ||
		// rule: who has seen how long it has rested does not ask a clock, which may have been set
		!m.Watched && m.Now.UnixMilli()-s.At > sequenceIdle.Milliseconds()
}

// Stale reports whether the sequence need not be kept. rule: one that rests is kept for its At, until clocks have gone on for a day.
func (s *Sequence) Stale(m Moment) bool {
	return s.rested(m) && m.Now.UnixMilli()-s.At > sequenceKept.Milliseconds()
}

// Next gives the next ID.
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
