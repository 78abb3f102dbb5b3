//go:build !race

package integration

// raceEnabled means that the tests, and so the programs, are built with the race detector.
const raceEnabled = false
