package workercmd

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

func TestMemoryLimitIsAboveWhatIsInUse(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	stop := limitMemory()
	if now := debug.SetMemoryLimit(-1); now != memoryLimit {
		t.Errorf("a worker that has nothing has a limit of %d bytes, want %d", now, memoryLimit)
	}
	const much = 300 << 20
	ballast := make([]byte, much)
	runtime.GC()
	adjustLimit()
	if now := debug.SetMemoryLimit(-1); now < much+much/4 || now > 2*much {
		t.Errorf("a worker that has %d bytes in use has a limit of %d", much, now)
	}
	runtime.KeepAlive(ballast)
	ballast = nil
	runtime.GC()
	adjustLimit()
	if now := debug.SetMemoryLimit(-1); now != memoryLimit {
		t.Errorf("a worker that has nothing any more has a limit of %d bytes, want %d", now, memoryLimit)
	}
	stop()
	if now := debug.SetMemoryLimit(-1); now != before {
		t.Errorf("the limit is %d afterwards, was %d", now, before)
	}
}

// A limit that the stacks alone exceed would leave the heap only its live bytes: the collector would run all the time.
func TestMemoryLimitIsAboveStacks(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	defer limitMemory()()
	const goroutines, stack = 6000, 32 << 10
	var deep sync.WaitGroup
	up, down := make(chan struct{}), make(chan struct{})
	for range goroutines {
		deep.Go(func() { wait(up, down) })
	}
	for range goroutines {
		<-up
	}
	runtime.GC()
	debug.SetMemoryLimit(memoryLimit) // not the limit that the worker set while there were fewer stacks: adjustLimit would skip a change of up to a sixteenth
	adjustLimit()
	if now := debug.SetMemoryLimit(-1); now < memoryLimit+goroutines*stack/4 {
		t.Errorf("a worker with %d stacks of %d bytes has a limit of %d", goroutines, stack, now)
	}
	close(down)
	deep.Wait()
}

// wait needs a stack of 32 KiB.
//
//go:noinline
func wait(up chan<- struct{}, down <-chan struct{}) {
	var frame [17 << 10]byte
	up <- struct{}{}
	<-down
	runtime.KeepAlive(&frame)
}

func TestMemoryLimitOfTheUserStays(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "900MiB")
	before := debug.SetMemoryLimit(900 << 20) // as the runtime does when it starts
	defer debug.SetMemoryLimit(before)
	stop := limitMemory()
	defer stop()
	if now := debug.SetMemoryLimit(-1); now != 900<<20 {
		t.Errorf("the user's limit of 900 MiB is %d bytes now", now)
	}
}
