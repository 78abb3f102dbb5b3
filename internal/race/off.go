//go:build !race

package race

// Enabled reports whether this was built with the race detector.
const Enabled = false
