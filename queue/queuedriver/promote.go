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

// SettledFor is how long, at least, a backend remembers that a delayed message was promoted or
// cancelled, measured by Moment.Passed. A Publisher may retry for MaxRepeatFor, and a late retry must
// not store the message a second time.
const SettledFor = 24 * time.Hour

// DueAction is what to do with a delayed message that is due.
type DueAction int

// The actions of [DecideDue].
const (
	Promote        DueAction = iota // make it a normal message
	MakeDeadLetter                  // make it a dead letter
	Keep                            // leave it where it is
)

// DecideDue decides what to do with a delayed message that a backend has read. The error says why it
// cannot be promoted. size is the length of its payload, which need not be read. Delay stores only
// messages that can be promoted; others come from another version or another program.
//
// rule: a message that cannot be decoded, or is foreign, is kept: it is not promoted as it is, and a dead letter of it would be damaged
// too. It can be listed and cancelled.
func DecideDue(m *queue.Message, size int) (DueAction, error) {
	if m.Incomplete || TooManyHeaders(len(m.Headers)) != "" {
		return Keep, errors.New("it cannot be decoded completely")
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

// fitsPromotion checks a message in the form that promotion gives it. Messages of earlier versions may
// have more headers than Delay accepts now: they are promoted without a DelayedHeader.
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

// DelayedDeadLetter returns the dead letter of a delayed message that cannot be promoted. It has the ID
// of the delayed message, so storing it again makes no second one.
func DelayedDeadLetter(m queue.Message, why string) queue.DeadLetter {
	m.Due = time.Time{}
	return queue.DeadLetter{Message: m, Reason: "the delayed message cannot be promoted: " + why, Attempts: 1, Worker: "scheduler"}
}

// Listable reports whether Delayed may return a message with this key. Another program may have stored
// anything as its type, even control sequences for a terminal.
func Listable(s queue.ScheduleKey) bool {
	return s.Type != "" && utf8.ValidString(s.Type) && !strings.ContainsFunc(s.Type, func(r rune) bool { return !strconv.IsPrint(r) })
}

// PromotedHeaders returns headers with a queue.DelayedHeader, for the promotion of the message delayed
// under the ID as. If there is no room for it, which Validate refuses but earlier versions did not, it
// returns headers unchanged.
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
