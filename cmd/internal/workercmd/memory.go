package workercmd

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryLimit, in bytes, is where the garbage collector begins to work harder: garbage must not push a worker to 300 MiB (docs/limits.md).
	memoryLimit = 176 << 20

	memoryEvery = time.Second // how often the limit is compared with the memory in use
)

// limitFor returns the limit for a worker that has live bytes in its heap, and other bytes that count towards the limit.
//
// rule: the limit is above the memory in use, or the collector would run all the time. Files that remember millions of keys, and the stacks of
// ten thousand types, take more than memoryLimit.
func limitFor(live, other uint64) int64 {
	return max(memoryLimit, int64(live+max(live/4+16<<20, 48<<20)+other))
}

// limitMemory sets a limit for the garbage collector, unless the user has set one, until stop is called.
func limitMemory() (stop func()) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	before := debug.SetMemoryLimit(memoryLimit)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		every := time.NewTicker(memoryEvery)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				adjustLimit()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		debug.SetMemoryLimit(before)
	}
}

// adjustLimit sets the limit for the memory left by the last garbage collection. It skips small changes, because setting the limit briefly
// stops the program.
func adjustLimit() {
	now, want := debug.SetMemoryLimit(-1), limitFor(inUse())
	if want > now+now/16 || want < now-now/16 {
		debug.SetMemoryLimit(want)
	}
}

// inUse returns the bytes of the heap that were in use after the last garbage collection, and the other bytes that count towards the
// collector's limit and that it cannot free: stacks, holes between the heap's objects, the runtime's own data.
func inUse() (live, other uint64) {
	const heap = "/memory/classes/heap/"
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: heap + "objects:bytes"}, {Name: heap + "free:bytes"}, {Name: heap + "released:bytes"}}
	metrics.Read(s)
	other = s[1].Value.Uint64()
	for _, rest := range s[2:] {
		other -= rest.Value.Uint64()
	}
	return s[0].Value.Uint64(), other
}
