package workercmd

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryLimit is where the garbage collector begins to work harder, bytes: what a worker has done with is not to add up to 300 MiB (docs/limits.md).
	memoryLimit = 176 << 20

	memoryEvery = time.Second // how often the limit is compared with what is in use
)

// limitFor is the limit for a worker that has so much in use, bytes.
//
// rule: a limit below what is in use is none: the collector would run all the time. Files that remember millions of keys take more than memoryLimit.
func limitFor(live uint64) int64 {
	return max(memoryLimit, int64(live+live/4+16<<20))
}

// limitMemory tells the garbage collector of a limit, unless the user has set one, until stop is called.
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

// adjustLimit sets the limit for what the last garbage collection has left, if it is another one: setting it stops everything for a moment.
func adjustLimit() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	now, want := debug.SetMemoryLimit(-1), limitFor(live[0].Value.Uint64())
	if want > now+now/16 || want < now-now/16 {
		debug.SetMemoryLimit(want)
	}
}
