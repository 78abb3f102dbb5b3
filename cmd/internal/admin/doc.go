// Package admin makes manual changes to dead letters, delayed messages, pending messages, settings and locks. The fencepost commands and
// its pages both call it, so they behave the same.
//
// A value (Letters, Delayed) chooses what a change applies to, and can list it before anything is changed. A change of messages or letters
// waits for its Turn, so that no two changes work on the same type. Its result is an Outcome, also after an error.
package admin

import (
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
