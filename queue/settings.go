package queue

import (
	"context"
	"time"
)

// Settings are what operators have said about a type. The zero value is a type about which nothing
// was said.
type Settings struct {
	DrainPaused   bool      // workers leave the type alone
	PublishPaused bool      // publishers refuse its messages, with ErrPaused
	MaxBacklog    int       // publishers wait while this many messages are pending, and give up with ErrBacklogFull; 0 = no bound
	Why           string    // what the last change was for
	Changed       time.Time // when, by the backend's clock, to the millisecond
}

// IsZero reports whether nothing is set. Why and Changed do not count.
func (s Settings) IsZero() bool { return !s.DrainPaused && !s.PublishPaused && s.MaxBacklog == 0 }

// SettingsPatch changes some of a type's Settings; nil leaves a setting as it is.
type SettingsPatch struct {
	DrainPaused   *bool
	PublishPaused *bool
	MaxBacklog    *int
	Why           string // at most MaxReason bytes, the rest is cut off
}

// MaxBacklogLimit is the largest MaxBacklog: to see whether more is pending, so many messages are
// counted.
const MaxBacklogLimit = 10_000_000

// SettingsStore is the part of a Queue that keeps what operators say about types. It tells
// publishers and workers, who look every few seconds; it enforces nothing by itself.
type SettingsStore interface {
	// Settings returns those of one type, the zero value if nothing was ever set.
	Settings(ctx context.Context, typ string) (Settings, error)

	// AllSettings returns those of all types for which something is set, in one read.
	AllSettings(ctx context.Context) (map[string]Settings, error)

	// PatchSettings makes one change, durably and at once, and returns the settings behind it: two
	// changes of different settings at the same time both hold. It registers the type.
	PatchSettings(ctx context.Context, typ string, c SettingsPatch) (Settings, error)
}
