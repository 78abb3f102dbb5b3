package drills

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
)

// buffer is what a program that runs beside the drill prints.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// refused tells whether a worker's log says that it does not serve the type.
func refused(log string) bool { return strings.Contains(log, "type cannot be served") }
