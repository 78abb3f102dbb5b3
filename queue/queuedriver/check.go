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

// CheckInsert checks the arguments of Insert; every backend calls it first. The type must be valid, and
// every message within the limits, with an ID, and of that type (an empty Message.Type means typ). The
// error is an *InsertError with Refused; then the backend must store nothing.
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

// CheckFetch checks the arguments of Fetch; every backend calls it first.
func CheckFetch(typ string, limit queue.Limit) error {
	if limit.Messages < 1 || limit.Bytes < 0 {
		return fmt.Errorf("fetch: limit of %d messages and %d bytes, want at least 1 message and no negative bytes", limit.Messages, limit.Bytes)
	}
	return queue.ValidateType(typ)
}

// CheckDepth checks the arguments of Depth; every backend calls it first.
func CheckDepth(typ string, most int) error {
	if most < 0 {
		return fmt.Errorf("depth: max is %d, want 0 or more", most)
	}
	return queue.ValidateType(typ)
}

// CheckPending checks the arguments of Pending; every backend calls it first.
func CheckPending(types []string, most int) error {
	if most < 1 {
		return fmt.Errorf("pending: at most %d types, want 1 or more", most)
	}
	for _, typ := range types {
		if err := queue.ValidateType(typ); err != nil {
			return err
		}
	}
	return nil
}

// TooManyHeaders returns what is wrong with a stored message that has n headers, or "" if they are not
// too many. A backend calls it before it decodes them, and makes such a message Incomplete: a message
// that another program has stored must not take more memory than Size counts.
func TooManyHeaders(n int) string {
	if n <= queue.MaxHeaderCount {
		return ""
	}
	return fmt.Sprintf("it has %d headers, at most %d are allowed", n, queue.MaxHeaderCount)
}

// CheckDeadLetters checks the arguments of MoveToDeadLetters; every backend calls it first. The type
// must be valid, and every letter of that type and complete. It returns the letters in the form to
// store, with the time at. It does not check sizes: a message may be a dead letter because it is too
// large.
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

// storable makes s storable in every backend: valid UTF-8 without NUL, truncated to MaxReason bytes.
func storable(s string) string {
	s = strings.ReplaceAll(s[:min(len(s), queue.MaxReason)], "\x00", " ")
	return strings.ToValidUTF8(s, "")
}

// CheckSettingsPatch checks the arguments of PatchSettings; every backend calls it first. It returns c
// in the form to store.
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

// Apply returns s changed by c at the given time.
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

// CheckHeartbeat checks the arguments of Heartbeat; every backend calls it first. It returns m in the
// form to store, seen at the given time.
func CheckHeartbeat(m queue.Member, at time.Time) (queue.Member, error) {
	if m.Instance == "" || len(m.Instance) > MaxMemberID || storable(m.Instance) != m.Instance {
		return m, fmt.Errorf("heartbeat: ID %q; use 1 to %d bytes of UTF-8", shorten.Text(m.Instance), MaxMemberID)
	}
	if m.MaxTypes < 0 {
		return m, errors.New("heartbeat: MaxTypes is negative")
	}
	m.Host, m.Version, m.To = storable(m.Host), storable(m.Version), storable(m.To)
	m.Started = time.UnixMilli(m.Started.UnixMilli())
	m.Seen = time.UnixMilli(at.UnixMilli())
	m.Errors = memberErrors(m.Errors)
	return m, nil
}

// memberErrors returns errs in the form to store, or nil if there are none. Of too many, it always
// keeps the same ones.
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

// CheckForeignKeys checks the arguments of ForeignKeys; every backend calls it first.
func CheckForeignKeys(typ string, most int) error {
	if most < 1 {
		return fmt.Errorf("foreign keys: at most %d requested, want 1 or more", most)
	}
	return queue.ValidateType(typ)
}

// NotForeignKey is the error of RemoveForeignKeys for a key that belongs to a message, or to another
// type.
func NotForeignKey(typ, key string) error {
	return fmt.Errorf("%q is not one of the foreign keys of type %s: nothing was removed", shorten.Text(key), typ)
}

// CheckDelay checks the arguments of Delay; every backend calls it first. Every message must be valid
// and complete, with an ID and a Due. It returns the messages in the form to store. The error is an
// *InsertError with Refused; then the backend must store nothing.
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
			err = fitsPromotion(&m, len(m.Payload)) // rule: an accepted message can be promoted
		}
		if err != nil {
			return nil, &queue.InsertError{Refused: true, Err: fmt.Errorf("delayed message %d: %w", i, err)}
		}
		m.Due = time.UnixMilli(m.Due.UnixMilli())
		out[i] = m
	}
	return out, nil
}

// CheckPromote checks the arguments of Promote and Delayed; every backend calls it first.
func CheckPromote(limit queue.Limit) error {
	if limit.Messages < 1 || limit.Bytes < 0 {
		return fmt.Errorf("delayed messages: limit of %d messages and %d bytes, want at least 1 message and no negative bytes", limit.Messages, limit.Bytes)
	}
	return nil
}
