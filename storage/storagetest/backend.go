package storagetest

import (
	"context"
	"os"
	"testing"
	"testing/synctest"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
)

// Backend is a way to store files. Run tests it.
type Backend struct {
	// New returns an empty place. It is called many times in each test.
	New func(t *testing.T) Place
	// Virtual says that nothing waits for a disk, a network or another process. The tests then run in virtual time (testing/synctest),
	// and pauses before retries take no time.
	Virtual bool
	// Most bounds how many operations of a session each test disturbs, one per run; they are spread evenly. 0 means no
	// bound: in memory, and on a local disk. FENCEPOST_TEST_LONG=1 removes the bound. With -short and the race detector it is at most 4.
	Most int
}

// Place is a directory to which several processes write, each with a file system of its own.
type Place struct {
	Dir string // for storage.Open
	// FS returns the file system of a new process. The end of ctx is the end of the process: calls that wait for something must fail
	// soon. Calls of a local disk need not.
	FS func(ctx context.Context) storage.FS
	// Requests is FS with disturbed requests, for a file system that sends requests to a server, where they may arrive late. It is nil if
	// only calls of the file system can be disturbed.
	Requests func(ctx context.Context, h Hooks) Disturbed
	// Crash cuts the power: everything that is not durable is lost. It is nil if the backend cannot do that.
	Crash func()
}

// Hooks are called around operations, in the goroutine that performs them. They let other sessions run, or make the operation fail.
type Hooks struct {
	Before func(Operation) Fate
	After  func(Operation) // after the operation was made, before its answer
}

// Operation is a call of a file system, or a request.
type Operation struct {
	N       int    // its number, from 0, among all operations of the Disturbed
	Name    string // such as "append"; an [Op] for calls
	Changes bool   // it may change what other processes see
	Lists   bool   // its answer is a listing, and may be stale
	Reads   bool   // it may run while another goroutine changes something
}

// Fate is the outcome of an operation.
type Fate int

// The fates of operations.
const (
	Made       Fate = iota // made and answered
	Lost                   // not made; the answer is an unclear error
	Unanswered             // made; the answer is an unclear error
	Late                   // the answer is an unclear error; the operation is made when Deliver is called
	Full                   // refused for lack of space
	Old                    // made; the answer is a listing without its newest entries
)

// String returns the fate in words, for names of tests.
func (f Fate) String() string {
	return [...]string{"made", "lost", "made without an answer", "made late", "refused for want of room", "answered with an old listing"}[f]
}

// Disturbed is a file system whose operations are disturbed. A Tap counts and delays calls, a slotstest.Tap requests.
type Disturbed struct {
	FS storage.FS
	Operations
}

// Operations counts the operations of a Disturbed, and performs the late ones.
type Operations interface {
	Calls() int
	Late() int
	Deliver(i int)
}

// mostRacing bounds Backend.Most with -short and the race detector.
const mostRacing = 4

// Run tests a backend. Each New must have space for the writes of a few sessions, about 100 KiB.
func Run(t *testing.T, b Backend) {
	if race.Enabled && testing.Short() && (b.Most == 0 || b.Most > mostRacing) {
		b.Most = mostRacing
	}
	explorable := func(t *testing.T) {
		if !b.Virtual { // the same again, and takes longer
			race.Skip(t)
		}
	}
	t.Run("files", func(t *testing.T) { b.files(t) })
	t.Run("calls", func(t *testing.T) {
		explorable(t)
		b.explore(t, Place.calls, false)
	})
	t.Run("requests", func(t *testing.T) {
		explorable(t)
		if b.New(t).Requests == nil {
			t.Skip("only its calls can be disturbed")
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

// bubble runs a test in virtual time if the backend is Virtual.
func (b *Backend) bubble(t *testing.T, test func(t *testing.T)) {
	if b.Virtual {
		synctest.Test(t, test)
	} else {
		test(t)
	}
}

// world returns a new place, with a file that one session has already written to.
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
