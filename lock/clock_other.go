//go:build !linux

package lock

import (
	"sync/atomic"
	"time"
)

var processStart = time.Now()

// ahead is the furthest that the wall clock has been ahead of the monotonic clock since the start, in nanoseconds.
var ahead atomic.Int64

// validityClock measures the leases of this process. It must not stop while the machine sleeps, and
// Go's monotonic clock may, so it also follows the wall clock forward, but not back. If the wall clock
// is set forward, this process loses its leases early, which is safe.
func validityClock() time.Duration {
	mono, wall := time.Since(processStart), time.Now().Round(0).Sub(processStart.Round(0))
	for {
		old := ahead.Load()
		most := max(old, int64(wall-mono))
		if most == old || ahead.CompareAndSwap(old, most) {
			return mono + time.Duration(most)
		}
	}
}
