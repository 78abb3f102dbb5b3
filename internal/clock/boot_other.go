//go:build !linux

package clock

import "time"

var processStart = time.Now()

// Boot is Go's monotonic clock. It may stop while the machine sleeps.
func Boot() time.Duration { return time.Since(processStart) }

func asleep() time.Duration { return 0 }
