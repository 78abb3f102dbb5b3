package queue

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
)

// MaxDue is the latest Message.Due, more than 8,000 years from now.
var MaxDue = time.UnixMilli(1<<48 - 1).UTC()

// ScheduleKey is the place of a delayed message: they are sorted by due time, type, and ID, which
// is the order of insertion.
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
	Types       []string  // that got messages by this call, or by one that failed, in no order
	Next        time.Time // when the first of those that are left is due, by the backend's clock; zero: there is none
	Now         time.Time // the backend's clock, so Next.Sub(Now) is how long to wait
}

// DelayedStore is the part of a Queue that keeps messages which are not due yet. They are no
// messages of their type before they are promoted: Fetch, Depth and Ack do not know them.
type DelayedStore interface {
	// Delay stores messages, of one or several types, in order and durably, until their Due. It is
	// idempotent by ID, as Insert is; for queuedriver.SettledFor, also a message that was promoted
	// or cancelled meanwhile counts as stored, and does not come back. The error, if any, is an
	// *InsertError.
	Delay(ctx context.Context, msgs []Message) error

	// Promote makes messages that are due by the backend's clock normal ones: at the end of their
	// types' messages, durably, in the order of their slots, under new IDs (see
	// queuedriver.Sequence). It stops at the limit. However many callers there are at a time, and
	// wherever one of them dies, each message is promoted under one ID only, those of a type get
	// consecutive numbers in the order of their slots, and no number is left out. After an error,
	// which may be unclear, repeat it. Who acknowledges a promoted message at once may see it a
	// second time under the same ID, as after any repeated Insert. A message that is stored after
	// it was due, among others that cannot be promoted, may wait some seconds longer.
	//
	// A message that cannot be promoted holds no other up. One that breaks a limit, or that the
	// backend refuses for good while it takes others, becomes a dead letter under the ID of the
	// delayed message, once, and durably before the delayed one is removed. One that cannot be read
	// whole, or is not ours, stays where it is. See queuedriver.DecideDue.
	Promote(ctx context.Context, limit Limit) (Promotion, error)

	// NextDue is when the first delayed message is due; ok is false when there is none. It costs
	// one read of one index entry, and of the message if that is due. Messages that are due and
	// stay where they are do not count. If much lies before it that is not ours, NextDue may be a
	// time before that: the look was cut off, and the next one goes on.
	NextDue(ctx context.Context) (due time.Time, ok bool, err error)

	// Delayed returns delayed messages behind a slot (the zero ScheduleKey: from the start), in
	// order: also those that can never be promoted, if a ScheduleKey can name them. Those that
	// cannot be read whole are Incomplete.
	Delayed(ctx context.Context, after ScheduleKey, limit Limit) ([]Message, error)

	// CancelDelayed removes delayed messages, durably, and tells how many. A message that it has
	// removed is never promoted. Those that are gone already, or are being promoted, do not count.
	CancelDelayed(ctx context.Context, slots []ScheduleKey) (cancelled int, err error)
}

// DelayedHeader is the header by which a promoted message names the delayed message it comes from.
// Its value is the ID of the delayed message and the ID of the promoted one, in their text forms,
// with a space between. The file remembers the first, so that a message which a restored database
// promotes once more, under another ID, is not appended a second time. The second binds the header
// to its message: in a copy of the headers that is published as another message it means nothing.
const DelayedHeader = "fencepost-delayed"

const delayedHeaderSize = len(DelayedHeader) + 2*IDLen + 1

// DelayedID reads the value of a DelayedHeader: the ID of the delayed message that was promoted as
// the message with the ID as. ok is false if the header is malformed or belongs to another message.
func DelayedID(value string, as ID) (id ID, ok bool) {
	delayed, promoted, ok := strings.Cut(value, " ")
	if !ok || promoted != as.String() {
		return ID{}, false
	}
	id, err := ParseID(delayed)
	return id, err == nil
}

// ValidateDue tells whether a message can be delayed until t.
func ValidateDue(t time.Time) error {
	if t.UnixMilli() < 0 || t.After(MaxDue) {
		return fmt.Errorf("%w: %s; use a time from 1970 to %s", ErrInvalidDue, t.UTC().Format(time.RFC3339), MaxDue.Format(time.RFC3339))
	}
	return nil
}
