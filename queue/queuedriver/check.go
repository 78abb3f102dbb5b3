package queuedriver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/internal/shorten"
)

// CheckInsert is what every backend calls first in Insert: the type is valid and every message is
// within the limits, has an ID and is of that type (an empty Message.Type stands for typ). The
// error is a refusing *InsertError, and nothing may be stored then.
func CheckInsert(typ string, msgs []queue.Message) error {
	refuse := func(err error) error { return &queue.InsertError{Refused: true, Err: err} }
	if err := queue.ValidateType(typ); err != nil {
		return refuse(err)
	}
	for i := range msgs {
		m := &msgs[i]
		if m.Type != "" && m.Type != typ {
			return refuse(fmt.Errorf("message %d is of type %q, not %q; insert each type by itself", i, shorten.Text(m.Type), typ))
		}
		if m.ID.IsZero() {
			return refuse(fmt.Errorf("message %d: %w: it is zero; a Publisher assigns IDs", i, queue.ErrInvalidID))
		}
		if m.Incomplete {
			return refuse(fmt.Errorf("message %d: %w", i, queue.ErrIncomplete))
		}
		if !m.Due.IsZero() {
			return refuse(fmt.Errorf("message %d has a Due; use Delay", i))
		}
		if err := valid(m, typ); err != nil {
			return refuse(fmt.Errorf("message %d: %w", i, err))
		}
	}
	return nil
}

// valid checks m as a message of typ.
func valid(m *queue.Message, typ string) error {
	of := *m
	of.Type = typ
	return of.Validate()
}

// CheckFetch is what every backend calls first in Fetch: the type is valid and the limit makes
// sense.
func CheckFetch(typ string, limit queue.Limit) error {
	if limit.Messages < 1 || limit.Bytes < 0 {
		return fmt.Errorf("fetch: limit of %d messages and %d bytes, want at least 1 message and no negative bytes", limit.Messages, limit.Bytes)
	}
	return queue.ValidateType(typ)
}

// CheckDepth is what every backend calls first in Depth: the type is valid and max makes sense.
func CheckDepth(typ string, most int) error {
	if most < 0 {
		return fmt.Errorf("depth: max is %d, want 0 or more", most)
	}
	return queue.ValidateType(typ)
}

// TooManyHeaders says what is wrong with a stored message that has n headers, "" if they are not
// too many. A backend asks it before it decodes them: such a message is Incomplete, as what
// somebody else has stored must not take more memory than Size counts.
func TooManyHeaders(n int) string {
	if n <= queue.MaxHeaderCount {
		return ""
	}
	return fmt.Sprintf("it has %d headers, at most %d are allowed", n, queue.MaxHeaderCount)
}

// CheckDeadLetters is what every backend calls first in MoveToDeadLetters: the type is valid, and
// every letter is of that type and complete. It returns the letters as they are to be stored, at
// the given time. Sizes are not checked: that a message is too large for a file may be why it is
// one.
func CheckDeadLetters(typ string, letters []queue.DeadLetter, at time.Time) ([]queue.DeadLetter, error) {
	if err := queue.ValidateType(typ); err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	letters = slices.Clone(letters)
	for i := range letters {
		l := &letters[i]
		switch {
		case l.Type != "" && l.Type != typ:
			return nil, fmt.Errorf("dead letters: letter %d is of type %q, not %q; move each type by itself", i, shorten.Text(l.Type), typ)
		case l.ID.IsZero():
			return nil, fmt.Errorf("dead letters: letter %d: %w: it is zero", i, queue.ErrInvalidID)
		case l.Incomplete:
			return nil, fmt.Errorf("dead letters: letter %d: %w", i, queue.ErrIncomplete)
		}
		l.Type, l.Time = typ, time.UnixMilli(at.UnixMilli())
		l.Reason, l.Worker = storable(l.Reason), storable(l.Worker)
	}
	return letters, nil
}

// storable makes s storable everywhere: valid UTF-8 without NUL, of at most MaxReason bytes.
func storable(s string) string {
	s = strings.ReplaceAll(s[:min(len(s), queue.MaxReason)], "\x00", " ")
	return strings.ToValidUTF8(s, "")
}

// CheckSettingsPatch is what every backend calls first in PatchSettings. It returns c as it is to
// be stored.
func CheckSettingsPatch(typ string, c queue.SettingsPatch) (queue.SettingsPatch, error) {
	if err := queue.ValidateType(typ); err != nil {
		return c, err
	}
	if c.DrainPaused == nil && c.PublishPaused == nil && c.MaxBacklog == nil {
		return c, errors.New("change settings: nothing to change")
	}
	if c.MaxBacklog != nil && (*c.MaxBacklog < 0 || *c.MaxBacklog > queue.MaxBacklogLimit) {
		return c, fmt.Errorf("change settings of type %s: a backlog of %d; use 1 to %d messages, or 0 for no bound", typ, *c.MaxBacklog, queue.MaxBacklogLimit)
	}
	c.Why = storable(c.Why)
	return c, nil
}

// Apply returns s as it is after c at the given time.
func Apply(c queue.SettingsPatch, s queue.Settings, at time.Time) queue.Settings {
	set(&s.DrainPaused, c.DrainPaused)
	set(&s.PublishPaused, c.PublishPaused)
	set(&s.MaxBacklog, c.MaxBacklog)
	s.Why, s.Changed = c.Why, time.UnixMilli(at.UnixMilli())
	return s
}

func set[T any](v, to *T) {
	if to != nil {
		*v = *to
	}
}

// Limits of a member.
const (
	MaxMemberID     = 64  // bytes of an ID
	maxMemberErrors = 50  // types with an error; Heartbeat leaves out the others
	maxMemberError  = 500 // bytes of an error; Heartbeat cuts off the rest
)

// CheckHeartbeat is what every backend calls first in Heartbeat. It returns m as it is to be
// stored, at the given time.
func CheckHeartbeat(m queue.Member, at time.Time) (queue.Member, error) {
	if m.Instance == "" || len(m.Instance) > MaxMemberID || storable(m.Instance) != m.Instance {
		return m, fmt.Errorf("heartbeat: ID %q; use 1 to %d bytes of UTF-8", shorten.Text(m.Instance), MaxMemberID)
	}
	if m.MaxTypes < 0 {
		return m, errors.New("heartbeat: MaxTypes is negative")
	}
	m.Host, m.Version = storable(m.Host), storable(m.Version)
	m.Started = time.UnixMilli(m.Started.UnixMilli())
	m.Seen = time.UnixMilli(at.UnixMilli())
	m.Errors = memberErrors(m.Errors)
	return m, nil
}

// memberErrors makes errors storable, always the same ones of too many; nil if there are none.
func memberErrors(errs map[string]string) map[string]string {
	var out map[string]string
	for _, typ := range slices.Sorted(maps.Keys(errs)) {
		if len(out) == maxMemberErrors {
			break
		}
		if queue.ValidateType(typ) != nil {
			continue
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[typ] = storable(errs[typ][:min(len(errs[typ]), maxMemberError)])
	}
	return out
}

// CheckForeignKeys is what every backend calls first in ForeignKeys.
func CheckForeignKeys(typ string, most int) error {
	if most < 1 {
		return fmt.Errorf("foreign keys: at most %d are asked for, want 1 or more", most)
	}
	return queue.ValidateType(typ)
}

// NotForeignKey is the error of RemoveForeignKeys for a key that is a message's, or of another
// type.
func NotForeignKey(typ, key string) error {
	return fmt.Errorf("%q is not one of the foreign keys of type %s: nothing was removed", shorten.Text(key), typ)
}

// CheckDelay is what every backend calls first in Delay: every message is valid, has an ID and a
// Due, and is complete. It returns the messages as they are to be stored. The error is a refusing
// *InsertError, and nothing may be stored then.
func CheckDelay(msgs []queue.Message) ([]queue.Message, error) {
	out := make([]queue.Message, len(msgs))
	for i, m := range msgs {
		err := m.Validate()
		switch {
		case err != nil:
		case m.ID.IsZero():
			err = fmt.Errorf("%w: it is zero; a Publisher assigns IDs", queue.ErrInvalidID)
		case m.Incomplete:
			err = queue.ErrIncomplete
		case m.Due.IsZero():
			err = errors.New("it has no Due; use Insert")
		default:
			err = fitsPromotion(&m, len(m.Payload)) // rule: what is taken can be promoted
		}
		if err != nil {
			return nil, &queue.InsertError{Refused: true, Err: fmt.Errorf("delayed message %d: %w", i, err)}
		}
		m.Due = time.UnixMilli(m.Due.UnixMilli())
		out[i] = m
	}
	return out, nil
}

// CheckPromote is what every backend calls first in Promote and Delayed.
func CheckPromote(limit queue.Limit) error {
	if limit.Messages < 1 || limit.Bytes < 0 {
		return fmt.Errorf("delayed messages: limit of %d messages and %d bytes, want at least 1 message and no negative bytes", limit.Messages, limit.Bytes)
	}
	return nil
}
