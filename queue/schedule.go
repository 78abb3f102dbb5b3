package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxDue is the latest Message.Due, more than 8,000 years from now.
var MaxDue = time.UnixMilli(1<<48 - 1).UTC()

// ScheduleKey is the place of a delayed message: they are sorted by due time, type, and ID, which is the order of insertion.
type ScheduleKey struct {
	Due  time.Time // to the millisecond
	Type string
	ID   ID // of the delayed message; as a normal one it has another
}

// ScheduleKeyOf is where a delayed message lies.
func ScheduleKeyOf(m *Message) ScheduleKey { return ScheduleKey{Due: m.Due, Type: m.Type, ID: m.ID} }

// Compare is negative if s lies before other, positive if behind, 0 if they are the same.
func (s ScheduleKey) Compare(other ScheduleKey) int {
	return cmp.Or(cmp.Compare(s.Due.UnixMilli(), other.Due.UnixMilli()), strings.Compare(s.Type, other.Type), s.ID.Compare(other.ID))
}

// Promotion is what one call of Promote did and saw.
type Promotion struct {
	Messages    int       // promoted by this call
	DeadLetters int       // that this call made dead letters, as they cannot be promoted
	Next        time.Time // when the first of those that are left is due, by the backend's clock; zero: there is none
	Now         time.Time // the backend's clock, so Next.Sub(Now) is how long to wait
}

// DelayedStore is the part of a Queue that keeps messages which are not due yet. They are no messages of their type before they are
// promoted: Fetch, Depth and Ack do not know them.
type DelayedStore interface {
	// Delay stores messages, of one or several types, in order and durably, until their Due. It is idempotent by ID, as
	// Insert is; for SettledFor, also a message that was promoted or cancelled meanwhile counts as stored, and does not come
	// back. The error, if any, is an *InsertError.
	Delay(ctx context.Context, msgs []Message) error

	// Promote makes messages that are due by the backend's clock normal ones: at the end of their types' messages, durably,
	// in the order of their slots, under new IDs (see Sequence). It stops at the limit. However many
	// callers there are at a time, and wherever one of them dies, each message is promoted under one ID only, those of a
	// type get consecutive numbers in the order of their slots, and no number is left out. After an error, which may be unclear,
	// repeat it. Who acknowledges a promoted message at once may see it a second time under the same ID, as after any
	// repeated Insert. A message that is stored after it was due, among others that cannot be promoted, may wait some seconds longer.
	//
	// A message that cannot be promoted holds no other up. One that breaks a limit, or that the backend refuses for good while it takes
	// others, becomes a dead letter under the ID of the delayed message, once, and durably before the delayed one is removed. One that
	// cannot be read whole, or is not ours, stays where it is. See JudgeDelayed.
	Promote(ctx context.Context, limit Limit) (Promotion, error)

	// NextDue is when the first delayed message is due; ok is false when there is none. It costs one read of one index entry, and of
	// the message if that is due. Messages that are due and stay where they are do not count. If much lies before it that is not ours,
	// NextDue may be a time before that: the look was cut off, and the next one goes on.
	NextDue(ctx context.Context) (due time.Time, ok bool, err error)

	// Delayed returns delayed messages behind a slot (the zero ScheduleKey: from the start), in order: also those that can never be promoted,
	// if a ScheduleKey can name them. Those that cannot be read whole are Incomplete.
	Delayed(ctx context.Context, after ScheduleKey, limit Limit) ([]Message, error)

	// CancelDelayed removes delayed messages, durably, and tells how many. A message that it has removed is never promoted. Those
	// that are gone already, or are being promoted, do not count.
	CancelDelayed(ctx context.Context, slots []ScheduleKey) (cancelled int, err error)
}

// SettledFor is how long a backend remembers that a delayed message was promoted or cancelled, at least, counted as Moment.Passed is. A
// Publisher repeats for MaxRepeatFor, and a late repetition must not make it a second message.
const SettledFor = 24 * time.Hour

// CheckDelay is what every backend calls first in Delay: every message is valid, has an ID and a Due, and is complete. It returns the
// messages as they are to be stored. The error is a refusing *InsertError, and nothing may be stored then.
func CheckDelay(msgs []Message) ([]Message, error) {
	out := make([]Message, len(msgs))
	for i, m := range msgs {
		err := m.Validate()
		switch {
		case err != nil:
		case m.ID.IsZero():
			err = fmt.Errorf("%w: it is zero; a Publisher assigns IDs", ErrInvalidID)
		case m.Incomplete:
			err = errIncomplete
		case m.Due.IsZero():
			err = errors.New("it has no Due; use Insert")
		default:
			err = fitsPromotion(&m, len(m.Payload)) // rule: what is taken can be promoted
		}
		if err != nil {
			return nil, &InsertError{Refused: true, Err: fmt.Errorf("delayed message %d: %w", i, err)}
		}
		m.Due = time.UnixMilli(m.Due.UnixMilli())
		out[i] = m
	}
	return out, nil
}

// DelayedHeader is the header by which a promoted message names the delayed message it comes from. Its value is the ID of the delayed message
// and the ID of the promoted one, in their text forms, with a space between. The file remembers the first, so that a message
// which a restored database promotes once more, under another ID, is not appended a second time. The second binds the header to its
// message: in a copy of the headers that is published as another message it means nothing.
const DelayedHeader = "fencepost-delayed"

const delayedHeaderSize = len(DelayedHeader) + 2*IDLen + 1

// PromotedHeaders returns the headers of the delayed message with the given ID for its promotion under another one. Headers that leave no room,
// which Validate refuses and earlier versions did not, are returned as they are.
func PromotedHeaders(headers map[string]string, delayed, as ID) map[string]string {
	out := maps.Clone(headers)
	if out == nil {
		out = map[string]string{}
	}
	out[DelayedHeader] = delayed.String() + " " + as.String()
	if len(out) > MaxHeaderCount || headerBytes(out) > MaxHeaders {
		return headers
	}
	return out
}

// DelayedID reads the value of a DelayedHeader: the ID of the delayed message that was promoted as the message with the ID as. ok is false if
// the header is malformed or belongs to another message.
func DelayedID(value string, as ID) (id ID, ok bool) {
	delayed, promoted, ok := strings.Cut(value, " ")
	if !ok || promoted != as.String() {
		return ID{}, false
	}
	id, err := ParseID(delayed)
	return id, err == nil
}

// Fate is what becomes of a delayed message when it is due.
type Fate int

// The fates of a delayed message.
const (
	Promoted Fate = iota // it becomes a normal message
	Buried               // it becomes a dead letter
	Kept                 // it stays where it is
)

// JudgeDelayed decides the fate of a delayed message as a backend has read it, and says why it is not Promoted. size is the length of its payload, which
// need not be read. Delay lets no message in that is not fit; what lies there was perhaps written by another version or another program.
//
// rule: what cannot be read whole, or is not ours, is Kept: it is not promoted as it is, and a dead letter of it would be damaged too. It
// can be listed and cancelled.
func JudgeDelayed(m *Message, size int) (Fate, error) {
	if m.Incomplete || TooManyHeaders(len(m.Headers)) != "" {
		return Kept, errors.New("it cannot be read whole")
	}
	if err := ValidateType(m.Type); err != nil {
		return Kept, err
	}
	if m.ID.IsZero() {
		return Kept, fmt.Errorf("%w: it is zero", ErrInvalidID)
	}
	if err := fitsPromotion(m, size); err != nil {
		return Buried, err
	}
	return Promoted, nil
}

// fitsPromotion checks a message as it will be when it is promoted. Messages of earlier versions may have more headers than Delay takes:
// they are promoted without a DelayedHeader.
func fitsPromotion(m *Message, size int) error {
	if m.ID.N() == 0 {
		return fmt.Errorf("%w: its number is 0", ErrInvalidID)
	}
	if err := CheckDue(m.Due); err != nil {
		return err
	}
	if size > MaxPayload {
		return &SizeError{"payload", size, MaxPayload}
	}
	return (&Message{Headers: m.Headers}).validateBody()
}

// DelayedLetter is the dead letter that a delayed message becomes when it cannot be promoted. Its ID is that of the delayed message, so
// there is one, however often it is buried.
func DelayedLetter(m Message, why string) DeadLetter {
	m.Due = time.Time{}
	return DeadLetter{Message: m, Reason: "the delayed message cannot be promoted: " + why, Attempts: 1, Worker: "scheduler"}
}

// Listable reports whether a slot is listed. Foreign programs may have put anything in the place of the type, also what
// would change the terminal that shows it.
func (s ScheduleKey) Listable() bool {
	return s.Type != "" && utf8.ValidString(s.Type) && !strings.ContainsFunc(s.Type, func(r rune) bool { return !strconv.IsPrint(r) })
}

// CheckDue tells whether a message can be delayed until t.
func CheckDue(t time.Time) error {
	if t.UnixMilli() < 0 || t.After(MaxDue) {
		return fmt.Errorf("%w: %s; use a time from 1970 to %s", ErrInvalidDue, t.UTC().Format(time.RFC3339), MaxDue.Format(time.RFC3339))
	}
	return nil
}

// CheckPromote is what every backend calls first in Promote and Delayed.
func CheckPromote(limit Limit) error {
	if limit.Messages < 1 || limit.Bytes < 0 {
		return fmt.Errorf("delayed messages: limit of %d messages and %d bytes, want at least 1 message and no negative bytes", limit.Messages, limit.Bytes)
	}
	return nil
}

// Sequence is the numbers under which the delayed messages of one type are promoted: one for all who promote. A backend keeps it as
// durably as the messages, and changes it in the same step that decides which messages get the numbers.
//
// rule: it is stored, and not each promoter's own. A consumer sees a new producer number without the contiguity of the old one
// (docs/decisions/0304), so a change of promoters would cost the order, or a pause; and a number that was given away in
// memory only could be given to two messages, or to none.
type Sequence struct {
	Producer uint64
	N        uint64 // given last
	At       int64  // ID time of that, ms
	Used     int64  // Moment.Passed of that, ms
}

// Moment is what a promoter knows about time when it gives numbers.
type Moment struct {
	Now time.Time // the backend's clock
	// Passed is a count of the time that has passed, which a backend keeps with the sequences. Each promoter adds what it has itself seen pass, by a clock
	// that cannot be set, since it saw that there was nothing left to do for the one before; compare-and-set decides who adds. So it lags behind
	// when promoters change or none runs, and is never ahead of the time that has passed.
	Passed time.Duration
	// Watched: nobody else has promoted since this promoter did, so nothing that has passed since then is missing in Passed.
	Watched bool
}

const (
	// sequenceIdle is how long a Sequence rests before it takes a new producer number: longer than a consumer's sweep and the pause of
	// docs/decisions/0304 (order across numbers), and far shorter than
	// the time after which a consumer forgets a producer. It is no longer than that: a database that is restored from a backup has
	// the numbers of the backup, and gives those again that were given since, unless the sequence has rested.
	sequenceIdle = time.Minute
	// sequenceKept is how long a sequence is kept that rests, for its At.
	sequenceKept = 24 * time.Hour
)

// rested reports whether the sequence would begin anew.
func (s *Sequence) rested(m Moment) bool {
	return s.N == 0 || s.N >= MaxN || m.Passed.Milliseconds()-s.Used > sequenceIdle.Milliseconds() ||
		// rule: who has seen how long it has rested does not ask a clock, which may have been set
		!m.Watched && m.Now.UnixMilli()-s.At > sequenceIdle.Milliseconds()
}

// Stale reports whether the sequence need not be kept. rule: one that rests is kept for its At, until clocks have gone on for a day.
func (s *Sequence) Stale(m Moment) bool {
	return s.rested(m) && m.Now.UnixMilli()-s.At > sequenceKept.Milliseconds()
}

// Next gives the next ID.
func (s *Sequence) Next(m Moment) ID {
	if s.rested(m) {
		*s = Sequence{Producer: newProducerNumber(), At: s.At + 1} // rule: ID time grows with a new producer number, whatever the clock says
	}
	s.At = max(s.At, m.Now.UnixMilli()) // rule: ID time never decreases within a producer number
	s.Used = m.Passed.Milliseconds()
	s.N++
	return NewID(time.UnixMilli(s.At), s.Producer, s.N)
}

// PublishAt is Publish for a message that becomes a normal one at the given time, by the queue's clock: at the end of its type, so its
// place in the order is that of all messages that are promoted then. What is due at the same time keeps the order in
// which it was published. A time in the past means: as soon as possible. See Message.Due.
//
// The ID is that of the delayed message, to find or cancel it; as a normal one it gets another.
func (p *Publisher) PublishAt(ctx context.Context, due time.Time, typ string, payload []byte, headers map[string]string) (ID, error) {
	if due.IsZero() {
		due = time.UnixMilli(0)
	}
	r := p.PublishAll(ctx, []Message{{Type: typ, Payload: payload, Headers: headers, Due: due}})[0]
	return r.ID, r.Err
}

// PublishAfter is PublishAt for a time from now.
func (p *Publisher) PublishAfter(ctx context.Context, delay time.Duration, typ string, payload []byte, headers map[string]string) (ID, error) {
	return p.PublishAt(ctx, p.Now().Add(delay), typ, payload, headers)
}

// Now is the queue's clock, as read by NewPublisher and advanced by what has passed since.
func (p *Publisher) Now() time.Time { return p.clock.now() }

// delayUntil is the due time of an accepted message, zero for a normal one. What is past counts as now: so the due times of a run that was
// meant for the past are in the order of its messages.
func (p *Publisher) delayUntil(due time.Time) time.Time {
	if now := p.clock.now(); !due.IsZero() && due.Before(now) {
		return now
	}
	return due
}

// streamKey tells the stream of a type's delayed messages from that of the others.
func streamKey(typ string, delayed bool) string {
	if delayed {
		return typ + "@" // in no type name
	}
	return typ
}
