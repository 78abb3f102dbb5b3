// Package admin changes by hand what is stored: dead letters, delayed messages, pending messages, settings, locks. The commands of
// fencepost and its pages both call it, so they cannot differ in what they do.
//
// A value (Letters, Delayed) chooses what a change is about, and lists it before anything is done. A change of messages or letters
// waits for its Turn, so that no two of them work on the same type. Its result is an Outcome, also after an error.
package admin

import (
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/queue"
)

// Outcome is what a change did.
type Outcome struct {
	Chosen  int        // letters or messages that it was about
	Done    int        // requeued or removed
	Left    int        // tried, and still there
	Missing []queue.ID // IDs that were named, and not found
}

// Progress is called with what a change did so far.
type Progress func(Outcome)

// PartialError says that a part of a change is done, and why the rest is not.
type PartialError struct{ Err error }

func (e *PartialError) Error() string { return e.Err.Error() }
func (e *PartialError) Unwrap() error { return e.Err }

// State is what is set for a type, in a few words; "-" if nothing is.
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

// Pause returns the change that pauses draining and publishing, or ends that. Neither drain nor publish means both.
func Pause(drain, publish, to bool) (c queue.SettingsPatch) {
	if drain || !publish {
		c.DrainPaused = &to
	}
	if publish || !drain {
		c.PublishPaused = &to
	}
	return c
}
