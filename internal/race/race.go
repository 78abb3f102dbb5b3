// Package race is for tests that the race detector makes slow.
package race

import "testing"

// Skip skips a long test with -short if it was built with the race detector. It is for tests in which one goroutine
// computes at a time, or whose goroutines do for hours of virtual time, or for thousands of types, what those of other
// tests do more quickly: the race detector would find nothing new in them.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled && testing.Short() {
		t.Skip("takes long with the race detector, which would find nothing new here")
	}
}
