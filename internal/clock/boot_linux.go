package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boot reads CLOCK_BOOTTIME, which never jumps and continues while the machine sleeps. Go's own monotonic clock
// stops then (golang/go#24595), and a suspended laptop or VM would still trust its leases.
func Boot() time.Duration { return read(unix.CLOCK_BOOTTIME) }

func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		// Linux has had both since 2.6.39, and Go needs a newer kernel.
		panic("clock_gettime: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// asleep is how long the machine has slept since it was started.
func asleep() time.Duration {
	for {
		before := read(unix.CLOCK_MONOTONIC)
		boot := Boot()
		if after := read(unix.CLOCK_MONOTONIC); after-before < inaccuracy/2 { // else this thread was paused meanwhile
			return boot - after
		}
	}
}
