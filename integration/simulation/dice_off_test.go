//go:build !dice

package simulation

// patched tells that the runtime's own dice are the seed's, see package seeded.
const patched = false

func seedRuntime(uint64) {}
