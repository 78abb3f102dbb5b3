// Package seeded patches the standard library for the simulation, so that a seed determines a history.
package seeded

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fencepost/fencepost/tools/internal/overlay"
)

// A schedule is reproducible only if everything that Go itself leaves to chance also follows from the seed: which of several ready cases a
// select takes, where the iteration of a map begins, the numbers of math/rand/v2, the order of timers of the same instant, and that of the
// goroutines. All but the last come from the bubble's own dice; the order of the goroutines follows from running on one processor, without
// a garbage collection or the end of a time slice in between.
//
// So the simulation is built with a few lines of the standard library changed (go build -overlay). Each change names the text that it
// replaces; a version of Go that does not contain it is rejected.
var patches = []struct{ file, old, new string }{
	// The bubble's dice: splitmix64.
	{"runtime/synctest.go", "	active  int // other sources of activity\n}\n", `	active  int // other sources of activity

	dice uint64
}

// diceSeed is where the dice of the next bubble start.
//
//go:linkname diceSeed
var diceSeed uint64

//go:nosplit
func (b *synctestBubble) roll() uint64 {
	b.dice += 0x9e3779b97f4a7c15
	z := b.dice
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
`},
	{"runtime/synctest.go", "		root:    gp,\n	}\n", "		root:    gp,\n		dice:    diceSeed,\n	}\n"},
	// The order of maps, math/rand. Only iterating over a map rolls the dice, not making one: what a process keeps permanently, such as how
	// to encode a type as JSON, it makes in the first schedule that needs it, and in no other.
	{"runtime/rand.go", "	mp := getg().m\n	c := &mp.chacha8\n", "	if getg().bubble != nil {\n		return 1\n	}\n	mp := getg().m\n	c := &mp.chacha8\n"},
	{"runtime/rand.go", "//go:linkname maps_rand internal/runtime/maps.rand\n", `//go:linkname diceRand
func diceRand() uint64 {
	if b := getg().bubble; b != nil {
		return b.roll()
	}
	return rand()
}

//go:linkname maps_rand internal/runtime/maps.rand
`},
	{"internal/runtime/maps/runtime.go", "//go:linkname rand\n", "//go:linkname diceRand runtime.diceRand\nfunc diceRand() uint64\n\n//go:linkname rand\n"},
	{"internal/runtime/maps/table.go", "	it.entryOffset = rand()\n	it.dirOffset = rand()\n", "	it.entryOffset = diceRand()\n	it.dirOffset = diceRand()\n"},
	{"math/rand/rand.go", "//go:linkname runtime_rand runtime.rand\n", "//go:linkname runtime_rand runtime.diceRand\n"},
	{"math/rand/v2/rand.go", "//go:linkname runtime_rand runtime.rand\n", "//go:linkname runtime_rand runtime.diceRand\n"},
	// Hashes, and so the order in larger maps: the same in every process.
	{"runtime/rand.go", "	globalRand.state.Init(*seed)\n", "	for i := range seed {\n		seed[i] = byte(i + 1)\n	}\n	globalRand.state.Init(*seed)\n"},
	// Select.
	{"runtime/select.go", "		j := cheaprandn(uint32(norder + 1))\n", `		var j uint32
		if gp.bubble != nil {
			j = uint32(gp.bubble.roll() % uint64(norder+1))
		} else {
			j = cheaprandn(uint32(norder + 1))
		}
`},
	// Timers.
	{"runtime/time.go", "			t.rand = cheaprand()\n", "			t.rand = uint32(getg().bubble.roll())\n"},
	// Time slices: 10 s instead of 10 ms.
	{"runtime/proc.go", "const forcePreemptNS = 10 * 1000 * 1000 // 10ms\n", "const forcePreemptNS = 10 * 1000 * 1000 * 1000\n"},
	// Waiting for a mutex is waiting for its holder, which may wait for time: a writer of package storage that is stopped in the middle of
	// a write. And the real clock puts no mutex into its starvation mode.
	{"runtime/runtime2.go", "	waitReasonSyncCondWait:          true,\n", `	waitReasonSyncCondWait:          true,
	waitReasonSyncMutexLock:         true,
	waitReasonSyncRWMutexLock:       true,
	waitReasonSyncRWMutexRLock:      true,
`},
	{"internal/sync/mutex.go", "	starvationThresholdNs = 1e6\n", "	starvationThresholdNs = 1e18\n"},
	// The children of a context end in the order of their creation. In a map the order would be that of their addresses.
	{"context/context.go", "	children map[canceler]struct{} // set to nil by the first cancel call\n", "	children map[canceler]uint64 // set to nil by the first cancel call\n	births   uint64\n"},
	{"context/context.go", "				p.children = make(map[canceler]struct{})\n", "				p.children = make(map[canceler]uint64)\n"},
	{"context/context.go", "			p.children[child] = struct{}{}\n", "			p.births++\n			p.children[child] = p.births\n"},
	{"context/context.go", "	for child := range c.children {\n", `	var inOrder []canceler
	for child, birth := range c.children {
		inOrder = append(inOrder, child)
		for i := len(inOrder) - 1; i > 0 && c.children[inOrder[i-1]] > birth; i-- {
			inOrder[i-1], inOrder[i] = inOrder[i], inOrder[i-1]
		}
	}
	for _, child := range inOrder {
`},
	// The process ID is in the fences of files.
	{"os/exec.go", "func Getpid() int { return syscall.Getpid() }\n", "func Getpid() int { return 4711 }\n"},
}

// Tag is the build tag of code that needs the patches.
const Tag = "dice"

// Library returns the patched files of the standard library.
func Library() (overlay.Files, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	library := filepath.Join(strings.TrimSpace(string(out)), "src")
	files := overlay.Files{}
	for _, p := range patches {
		if err := files.Edit(filepath.Join(library, p.file), p.old, p.new); err != nil {
			return nil, fmt.Errorf("this version of Go needs another tools/internal/seeded: %w", err)
		}
	}
	return files, nil
}
