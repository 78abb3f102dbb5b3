//go:build dice

package simulation

import _ "unsafe" // for go:linkname

// patched tells that the runtime's own dice are the seed's, see package seeded.
const patched = true

//go:linkname diceSeed runtime.diceSeed
var diceSeed uint64

// seedRuntime sets where the dice of the next bubble start.
func seedRuntime(seed uint64) { diceSeed = seed }
