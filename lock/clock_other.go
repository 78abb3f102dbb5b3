//go:build !linux

package lock

import "time"

var processStart = time.Now()

// validityClock measures the leases of this process. It must not stop while the machine sleeps, and
// Go's monotonic clock may, so it also follows the wall clock forward. If the wall clock is set
// forward, this process loses its leases early, which is safe.
func validityClock() time.Duration {
	wall := time.Now().Round(0).Sub(processStart.Round(0))
	return max(time.Since(processStart), wall)
}
