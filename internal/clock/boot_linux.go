package clock

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Boot reads CLOCK_BOOTTIME, which never jumps and continues while the machine sleeps. Go's own monotonic clock stops then
// (golang/go#24595), so a suspended laptop or VM would still trust its leases.
func Boot() time.Duration { return read(unix.CLOCK_BOOTTIME) }

// read reads a clock without notifying the scheduler, because the call never blocks. unix.ClockGettime notifies it, and on a busy
// machine other goroutines then run before this one continues: a read takes longer, and a schedule of the simulation is not
// reproducible.
func read(clock int32) time.Duration {
	var ts unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		// Linux has had both since 2.6.39, and Go needs a newer kernel.
		panic("clock_gettime: " + errno.Error())
	}
	return time.Duration(ts.Nano())
}

// asleep returns how long the machine has slept since it was started.
func asleep() time.Duration {
	for {
		before := read(unix.CLOCK_MONOTONIC)
		boot := Boot()
		if after := read(unix.CLOCK_MONOTONIC); after-before < inaccuracy/2 { // otherwise this thread was paused in between
			return boot - after
		}
	}
}
