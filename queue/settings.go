package queue

import (
	"context"
	"time"
)

// Settings are what operators have set for a type. The zero value is the default.
type Settings struct {
	DrainPaused   bool      // workers do not serve the type
	PublishPaused bool      // publishers reject its messages with ErrPaused
	MaxBacklog    int       // publishers wait while this many messages are pending, then reject with ErrBacklogFull; 0 = no bound
	Why           string    // the reason for the last change
	Changed       time.Time // when, by the backend's clock, to the millisecond
}

// IsZero reports whether nothing is set. Why and Changed do not count.
func (s Settings) IsZero() bool { return !s.DrainPaused && !s.PublishPaused && s.MaxBacklog == 0 }

// SettingsPatch changes some of a type's Settings; nil leaves a setting as it is.
type SettingsPatch struct {
	DrainPaused   *bool
	PublishPaused *bool
	MaxBacklog    *int
	Why           string // longer texts are truncated to MaxReason bytes
}

// MaxBacklogLimit is the largest MaxBacklog. It is bounded because a publisher has to count that many
// messages.
const MaxBacklogLimit = 10_000_000

// SettingsStore is the role of a Queue that keeps the settings of types. It enforces nothing:
// publishers and workers read the settings every few seconds and follow them.
type SettingsStore interface {
	// Settings returns the settings of one type, or the zero value if nothing was set.
	Settings(ctx context.Context, typ string) (Settings, error)

	// AllSettings returns the settings of all types for which something is set, in one read.
	AllSettings(ctx context.Context) (map[string]Settings, error)

	// PatchSettings changes some settings, durably and atomically, and returns the result: two
	// concurrent changes of different settings both take effect. It registers the type.
	PatchSettings(ctx context.Context, typ string, c SettingsPatch) (Settings, error)
}
