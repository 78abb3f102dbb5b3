//go:build !race

package integration

// raceEnabled: the programs are built with the race detector when the tests are.
const raceEnabled = false
