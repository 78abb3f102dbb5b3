package queuedriver

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/queue"
)

// SettledFor is how long a backend remembers that a delayed message was promoted or cancelled, at
// least, counted as Moment.Passed is. A Publisher repeats for MaxRepeatFor, and a late repetition
// must not make it a second message.
const SettledFor = 24 * time.Hour

// DueAction is what a backend does with a delayed message that is due.
type DueAction int

// What is done with a delayed message that is due.
const (
	Promote        DueAction = iota // make it a normal message
	MakeDeadLetter                  // make it a dead letter
	Keep                            // leave it where it is
)

// DecideDue decides about a delayed message as a backend has read it, and says why it is not to be
// promoted. size is the length of its payload, which need not be read. Delay lets no message in
// that is not fit; what lies there was perhaps written by another version or another program.
//
// rule: what cannot be read whole, or is not ours, is kept: it is not promoted as it is, and a dead letter of it would be damaged too. It
// can be listed and cancelled.
func DecideDue(m *queue.Message, size int) (DueAction, error) {
	if m.Incomplete || TooManyHeaders(len(m.Headers)) != "" {
		return Keep, errors.New("it cannot be read whole")
	}
	if err := queue.ValidateType(m.Type); err != nil {
		return Keep, err
	}
	if m.ID.IsZero() {
		return Keep, fmt.Errorf("%w: it is zero", queue.ErrInvalidID)
	}
	if err := fitsPromotion(m, size); err != nil {
		return MakeDeadLetter, err
	}
	return Promote, nil
}

// fitsPromotion checks a message as it will be when it is promoted. Messages of earlier versions
// may have more headers than Delay takes: they are promoted without a DelayedHeader.
func fitsPromotion(m *queue.Message, size int) error {
	if m.ID.N() == 0 {
		return fmt.Errorf("%w: its number is 0", queue.ErrInvalidID)
	}
	if err := queue.ValidateDue(m.Due); err != nil {
		return err
	}
	if size > queue.MaxPayload {
		return &queue.SizeError{What: "payload", Size: size, Max: queue.MaxPayload}
	}
	return (&queue.Message{Type: m.Type, Headers: m.Headers}).Validate()
}

// DelayedDeadLetter is the dead letter that a delayed message becomes when it cannot be promoted.
// Its ID is that of the delayed message, so there is one, however often it is moved.
func DelayedDeadLetter(m queue.Message, why string) queue.DeadLetter {
	m.Due = time.Time{}
	return queue.DeadLetter{Message: m, Reason: "the delayed message cannot be promoted: " + why, Attempts: 1, Worker: "scheduler"}
}

// Listable reports whether a delayed message is listed under its key. Foreign programs may have put
// anything in the place of the type, also what would change the terminal that shows it.
func Listable(s queue.ScheduleKey) bool {
	return s.Type != "" && utf8.ValidString(s.Type) && !strings.ContainsFunc(s.Type, func(r rune) bool { return !strconv.IsPrint(r) })
}

// PromotedHeaders returns the headers of the delayed message with the given ID for its promotion
// under another one. Headers that leave no room, which Validate refuses and earlier versions did
// not, are returned as they are.
func PromotedHeaders(headers map[string]string, delayed, as queue.ID) map[string]string {
	out := maps.Clone(headers)
	if out == nil {
		out = map[string]string{}
	}
	out[queue.DelayedHeader] = delayed.String() + " " + as.String()
	if len(out) > queue.MaxHeaderCount || headerBytes(out) > queue.MaxHeaders {
		return headers
	}
	return out
}

func headerBytes(headers map[string]string) (n int) {
	for k, v := range headers {
		n += len(k) + len(v)
	}
	return n
}
