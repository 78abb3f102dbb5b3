//go:build !dice

package simulation

// patched reports that the runtime's own random choices come from the seed, see package seeded.
const patched = false

func seedRuntime(uint64) {}
