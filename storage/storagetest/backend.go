package storagetest

import (
	"context"
	"os"
	"testing"
	"testing/synctest"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
)

// Backend is a way to keep files, which Run tests.
type Backend struct {
	// New returns an empty place. It is called many times in each test.
	New func(t *testing.T) Place
	// Virtual says that nothing waits for a disk, a network or another process. Then the tests run in virtual time (testing/synctest),
	// and pauses before retries take none.
	Virtual bool
	// Most bounds how many operations of a session are disturbed, one after the other, in each test; they are spread evenly. 0 is no
	// bound: in memory, and on a local disk. FENCEPOST_TEST_LONG=1 removes it.
	Most int
}

// Place is a directory in which several processes write. Each has a file system of its own.
type Place struct {
	Dir string // for storage.Open
	// FS returns the file system as a new process has it. The end of ctx is the end of the process: calls that wait for something fail
	// soon. Those of a local disk do not have to.
	FS func(ctx context.Context) storage.FS
	// Requests is FS with disturbed requests, if the file system makes requests of something else, which may be late. It is nil if a
	// call of the file system is all there is to disturb.
	Requests func(ctx context.Context, h Hooks) Disturbed
	// Crash cuts the power, and loses what is not durable. It is nil if nothing can.
	Crash func()
}

// Hooks are called around operations, in the goroutine that makes them. They let other sessions run, or make the operation fail.
type Hooks struct {
	Before func(Operation) Fate
	After  func(Operation) // after the operation was made, before its answer
}

// Operation is a call of a file system, or a request.
type Operation struct {
	N       int    // its number, from 0, over all that are disturbed
	Name    string // such as "append"; of calls an [Op]
	Changes bool   // it may change what others see
	Lists   bool   // its answer is a listing, and may be old
	Reads   bool   // it may run while another goroutine changes something
}

// Fate is what becomes of an operation.
type Fate int

// The fates of operations.
const (
	Made       Fate = iota // and answered
	Lost                   // not made; the answer is an unclear error
	Unanswered             // made; the answer is an unclear error
	Late                   // the answer is an unclear error; it is made when Deliver says so
	Full                   // refused for want of room
	Old                    // made; the answer is a listing without its newest entries
)

// String is for the names of tests.
func (f Fate) String() string {
	return [...]string{"made", "lost", "made without an answer", "made late", "refused for want of room", "answered with an old listing"}[f]
}

// Disturbed is a file system whose operations are disturbed. Tap counts and delays calls, slotstest.Tap requests.
type Disturbed struct {
	FS storage.FS
	Operations
}

// Operations counts the operations of a Disturbed, and makes those that are late.
type Operations interface {
	Calls() int
	Late() int
	Deliver(i int)
}

// Run tests a backend. Each New must be able to hold what a few sessions write, about 100 KiB.
func Run(t *testing.T, b Backend) {
	t.Run("files", func(t *testing.T) { b.files(t) })
	t.Run("calls", func(t *testing.T) { b.explore(t, Place.calls, false) })
	t.Run("requests", func(t *testing.T) {
		if b.New(t).Requests == nil {
			t.Skip("its calls are all there is to disturb")
		}
		b.explore(t, Place.requests, true)
	})
}

func isLong() bool { return os.Getenv("FENCEPOST_TEST_LONG") == "1" }

// run runs a test of the backend in parallel with others.
func (b *Backend) run(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		b.bubble(t, test)
	})
}

// bubble runs a test in virtual time, if it may.
func (b *Backend) bubble(t *testing.T, test func(t *testing.T)) {
	if b.Virtual {
		synctest.Test(t, test)
	} else {
		test(t)
	}
}

// world returns a new place, with a file that one session has written to.
func (b *Backend) world(t *testing.T) (*oracle.World, Place) {
	t.Helper()
	p := b.New(t)
	x := oracle.New(p.Dir)
	x.Published = 6
	h, err := x.Open(p.fs())
	if err == nil {
		err = oracle.Steps(h.Begin, h.Writer.Close)
	}
	if err != nil {
		t.Fatalf("the first session, which is not disturbed: %v", err)
	}
	x.Published = 24
	return x, p
}

// fs returns the file system of a process that is not disturbed.
func (p Place) fs() storage.FS { return p.FS(context.Background()) }
