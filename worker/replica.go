package worker

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/share"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
)

const (
	watchMin     = 5 * time.Millisecond   // polling for backlog, while nobody listens: first interval …
	watchMax     = 500 * time.Millisecond // … and the longest
	acquireSlice = time.Second            // a waiting replica looks whether there is still backlog this often
	standbyLook  = 2 * time.Second        // … and at a busy type of another one: if that dies, its lock has to be watched for a whole lease
	partingPoll  = 25 * time.Millisecond  // how often a pool that stops looks whether the queue has gone silent
)

// replica is what a pool shares with its sessions and its scheduler: who it is, what it was told,
// what all of them use. Safe for concurrent use.
type replica struct {
	cfg       Config
	log       zerolog.Logger
	handler   Handler // with all middleware; nil: the messages go to files
	instance  string
	name      string // instance, with host and process, for dead letters
	began     time.Time
	stopping  chan struct{}
	stoppedAt time.Time    // set before stopping is closed
	waiting   atomic.Int32 // types that wait for a slot
	opening   *semaphore.Weighted

	rebalancer    *share.Rebalancer
	listener      *listener
	memory        *memory
	book          *book
	files         *knownFiles
	dest          Files      // where the files are; nothing with a handler
	fs            storage.FS // of dest, for all sessions together
	strays        strays
	subscriptions subscriptions
}

// untilStop returns a context that also ends when the pool is asked to stop.
func (p *replica) untilStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (p *replica) stopped(ctx context.Context) bool {
	select {
	case <-p.stopping:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// pause waits for d; false when the pool stopped meanwhile.
func (p *replica) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.stopping:
	case <-ctx.Done():
	}
	return false
}

// parting returns a context, of at most so long, for what a pool says when it has finished a type
// or all of them: how far the file has come, that the lock is free, that it leaves. Nothing is lost
// without it. While the pool stops it ends early if the queue is silent: a server that hangs must
// not hold up the stop of a replica that has nothing in hand.
func (p *replica) parting(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	go func() {
		defer cancel()
		select {
		case <-p.stopping:
		case <-ctx.Done():
			return
		}
		for !p.rebalancer.Silent(p.stoppedAt) {
			if wait.For(ctx, partingPoll) != nil {
				return
			}
		}
	}()
	return ctx, cancel
}

// observe records that a session is alive, and tells Config.Observe what a step took.
func (p *replica) observe(o Observation) {
	p.book.progress(o)
	if f := p.cfg.Observe; f != nil {
		f(o)
	}
}

// noteHeld tells that the lock of a type was acquired.
func (p *replica) noteHeld(typ string, lease *lock.Lease) {
	p.book.noteHeld(typ, lease)
	p.observe(Observation{Type: typ, Step: StepAcquire, Took: time.Since(p.book.wantsNoMore(typ))})
}

// Version is the module version this program was built from, "devel" if unknown.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
