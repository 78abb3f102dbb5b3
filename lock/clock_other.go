//go:build !linux

package lock

import "time"

var processStart = time.Now()

// validityClock must not stand still while the machine sleeps, so it also follows the wall clock
// forward. A wall clock that is set forward costs the leases of this process, never their safety.
func validityClock() time.Duration {
	wall := time.Now().Round(0).Sub(processStart.Round(0))
	return max(time.Since(processStart), wall)
}
