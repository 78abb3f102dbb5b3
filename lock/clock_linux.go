package lock

import (
	"time"

	"github.com/fencepost/fencepost/internal/clock"
)

func validityClock() time.Duration { return clock.Boot() }
