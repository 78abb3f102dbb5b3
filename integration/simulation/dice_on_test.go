//go:build dice

package simulation

import _ "unsafe" // for go:linkname

// patched reports that the runtime's own random choices come from the seed, see package seeded.
const patched = true

//go:linkname diceSeed runtime.diceSeed
var diceSeed uint64

// seedRuntime seeds the random choices of the next bubble.
func seedRuntime(seed uint64) { diceSeed = seed }
