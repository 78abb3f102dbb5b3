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

// ScheduleKey identifies a delayed message, and is its place in the order of the delayed messages: by
// due time, type and ID. For one publisher, ID order is the order in which they were published.
type ScheduleKey struct {
	Due  time.Time // to the millisecond
	Type string
	ID   ID // of the delayed message; promotion gives it another
}

// ScheduleKeyOf returns the key of a delayed message.
func ScheduleKeyOf(m *Message) ScheduleKey { return ScheduleKey{Due: m.Due, Type: m.Type, ID: m.ID} }

// Compare is negative if s sorts before other, positive if after it, 0 if they are equal.
func (s ScheduleKey) Compare(other ScheduleKey) int {
	return cmp.Or(cmp.Compare(s.Due.UnixMilli(), other.Due.UnixMilli()), strings.Compare(s.Type, other.Type), s.ID.Compare(other.ID))
}

// Promotion is the result of one call of Promote.
type Promotion struct {
	Messages    int       // promoted by this call
	DeadLetters int       // delayed messages that this call made dead letters, because they cannot be promoted
	Types       []string  // types that got messages from this call, or from an earlier one that failed; in no order
	Next        time.Time // when the next delayed message is due, by the backend's clock; zero: there is none
	Now         time.Time // the backend's clock, so Next.Sub(Now) is how long to wait
}

// DelayedStore is the role of a Queue that keeps messages until they are due, and then promotes them.
// Before that they are not pending: Fetch, Depth and Ack do not see them.
type DelayedStore interface {
	// Delay stores messages, of one or several types, in order and durably, until their Due. It is
	// idempotent by ID, like Insert. A message that was promoted or cancelled in the last
	// queuedriver.SettledFor also counts as stored, and does not come back. The error, if any, is
	// an *InsertError.
	Delay(ctx context.Context, msgs []Message) error

	// Promote turns delayed messages that are due by the backend's clock into pending messages at
	// the end of their types: durably, in the order of their ScheduleKeys, under new IDs (see
	// queuedriver.Sequence), up to limit. With any number of concurrent callers, and if any of
	// them dies at any point, each message is promoted under one ID only, and the messages of a type
	// get consecutive numbers in the order of their keys. After an error, which may be unclear,
	// call it again. As after any repeated Insert, a consumer that acknowledges a promoted message
	// at once may see it again under the same ID.
	//
	// A message that cannot be promoted does not block others. If it breaks a limit, or the backend
	// refuses it permanently while it accepts others, it becomes one dead letter, under the ID of
	// the delayed message, durably before the delayed message is removed. If it cannot be decoded,
	// or is foreign, it stays where it is. See queuedriver.DecideDue. Messages stored after they
	// were due, among others that cannot be promoted, may wait a few seconds longer.
	Promote(ctx context.Context, limit Limit) (Promotion, error)

	// NextDue is when the first delayed message is due; ok is false if there is none. It reads one
	// index entry, and the message if that is due. Due messages that stay where they are do not
	// count. If it meets very many foreign entries, it stops and returns an earlier time; the next
	// call continues there.
	NextDue(ctx context.Context) (due time.Time, ok bool, err error)

	// Delayed returns delayed messages after a key (the zero ScheduleKey: from the start), in
	// order. It includes those that can never be promoted, if they have a valid key. Those that
	// cannot be decoded are Incomplete.
	Delayed(ctx context.Context, after ScheduleKey, limit Limit) ([]Message, error)

	// CancelDelayed removes delayed messages, durably, and returns how many. A removed message is
	// never promoted. Messages that do not exist, or are being promoted, do not count.
	CancelDelayed(ctx context.Context, slots []ScheduleKey) (cancelled int, err error)
}

// DelayedHeader is the header of a promoted message that names the delayed message. Its value is the
// ID of the delayed message and the ID of the promoted one, in text form, with a space between. The
// file remembers the first ID, so that a message that a restored database promotes again, under
// another ID, is not appended twice. The second ID binds the header to its message: if a program copies
// the headers into another message, it has no effect there.
const DelayedHeader = "fencepost-delayed"

// delayedHeaderSize is what a DelayedHeader adds to the headers of a message, in bytes.
const delayedHeaderSize = len(DelayedHeader) + 2*IDLen + 1

// DelayedID parses the value of a DelayedHeader in the message with the ID as, and returns the ID of
// the delayed message. ok is false if the value is malformed or belongs to another message.
func DelayedID(value string, as ID) (id ID, ok bool) {
	delayed, promoted, ok := strings.Cut(value, " ")
	if !ok || promoted != as.String() {
		return ID{}, false
	}
	id, err := ParseID(delayed)
	return id, err == nil
}

// ValidateDue checks that a message can be delayed until t.
func ValidateDue(t time.Time) error {
	if t.UnixMilli() < 0 || t.After(MaxDue) {
		return fmt.Errorf("%w: %s; use a time from 1970 to %s", ErrInvalidDue, t.UTC().Format(time.RFC3339), MaxDue.Format(time.RFC3339))
	}
	return nil
}
