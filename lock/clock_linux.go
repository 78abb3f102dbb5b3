package lock

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime reads CLOCK_BOOTTIME, which never jumps and goes on while the machine sleeps. Go's own monotonic clock stands
// still then (golang/go#24595), and a laptop or VM that was suspended would still believe in its leases.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Linux has had it since 2.6.39, and Go needs a newer kernel.
		panic("lock: CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

func observationClock() time.Duration { return bootTime() }

func validityClock() time.Duration { return bootTime() }
