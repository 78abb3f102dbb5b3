package lock

import (
	"time"

	"github.com/fencepost/fencepost/internal/clock"
)

// validityClock measures the leases of this process. CLOCK_BOOTTIME keeps running while the machine
// sleeps.
func validityClock() time.Duration { return clock.Boot() }
