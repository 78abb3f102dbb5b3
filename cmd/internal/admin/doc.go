// Package admin makes manual changes to dead letters, delayed messages, pending messages, settings and locks. The fencepost commands and
// its pages both call it, so they behave the same.
//
// A value (Letters, Delayed) chooses what a change applies to, and can list it before anything is changed. A change of messages or letters
// waits for its Turn, so that no two changes work on the same type. Its result is an Outcome, also after an error.
package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/queue"
)

// Outcome is the result of a change.
type Outcome struct {
	Chosen  int        // letters or messages that were chosen
	Done    int        // requeued or removed
	Left    int        // attempted, but still there
	Missing []queue.ID // given IDs that were not found
}

// Progress is called with the outcome so far.
type Progress func(Outcome)

// PartialError says that part of a change was made, and why the rest was not.
type PartialError struct{ Err error }

func (e *PartialError) Error() string { return e.Err.Error() }
func (e *PartialError) Unwrap() error { return e.Err }

// State describes the settings of a type in a few words; "-" if none is set.
func State(s queue.Settings) string {
	var parts []string
	switch {
	case s.DrainPaused && s.PublishPaused:
		parts = append(parts, "paused")
	case s.DrainPaused:
		parts = append(parts, "drain paused")
	case s.PublishPaused:
		parts = append(parts, "publish paused")
	}
	if s.MaxBacklog > 0 {
		parts = append(parts, fmt.Sprintf("limit %d", s.MaxBacklog))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// Pause returns the change that pauses (to is true) or resumes draining and publishing. Neither drain nor publish means both.
func Pause(drain, publish, to bool) (c queue.SettingsPatch) {
	if drain || !publish {
		c.DrainPaused = &to
	}
	if publish || !drain {
		c.PublishPaused = &to
	}
	return c
}

// Change changes settings of a type; c.Why is the reason of the change. The reason of a pause stays until the pause ends, or until another pause
// has a reason: neither a limit nor the end of one half explains the other half.
func Change(ctx context.Context, q queue.SettingsStore, typ string, c queue.SettingsPatch) (queue.Settings, error) {
	now, err := q.Settings(ctx, typ)
	if err != nil {
		return queue.Settings{}, err
	}
	c.Why = reason(now, c)
	return q.PatchSettings(ctx, typ, c)
}

// reason returns the reason for the settings of a type after a change.
func reason(now queue.Settings, c queue.SettingsPatch) string {
	is := func(patch *bool) bool { return patch != nil && *patch }
	stays := func(paused bool, patch *bool) bool { return paused && (patch == nil || *patch) }
	switch pauses := is(c.DrainPaused) || is(c.PublishPaused); {
	case pauses && c.Why != "":
		return c.Why
	case stays(now.DrainPaused, c.DrainPaused) || stays(now.PublishPaused, c.PublishPaused):
		return now.Why
	case c.MaxBacklog != nil:
		return c.Why
	}
	return "" // the pause has ended, and with it its reason
}
