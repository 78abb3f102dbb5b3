package worker

import (
	"context"
	"hash/crc32"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/share"
	"github.com/rs/zerolog"
)

const (
	watchMin     = 5 * time.Millisecond   // polling for messages while the listener does not work: first interval …
	watchMax     = 500 * time.Millisecond // … and the longest
	acquireSlice = time.Second            // how often a replica that waits for a lock checks that there are still messages
	standbyLook  = 2 * time.Second        // how often it checks a busy type of another replica: a takeover requires observing the lock for a full lease
	partingPoll  = 25 * time.Millisecond  // how often a stopping pool checks whether the queue still answers
)

// replica is the part of a pool that its sessions and its scheduler share: identity, configuration
// and common services. Safe for concurrent use.
type replica struct {
	cfg       Config
	log       zerolog.Logger
	handler   Handler // with all middleware; unset if the messages go to files
	instance  string
	name      string // instance, with host and process, for dead letters
	began     time.Time
	stopping  context.Context // ends when the pool is asked to stop …
	stop      func()          // … by calling this
	stoppedAt time.Time       // when; set before stop is called
	waiting   atomic.Int32    // types that wait for a slot
	polling   chan struct{}   // has maxPolling places, for sessions that keep polling after they have found nothing

	rebalancer    *share.Rebalancer
	listener      *listener
	memory        *memory
	book          *book
	files         *knownFiles
	dest          Files      // where the files are; zero with a handler
	fs            storage.FS // of dest, shared by all sessions
	strays        strays
	subscriptions subscriptions
	outages       outages
}

// toFiles reports whether the messages go to files, not to the handler.
func (p *replica) toFiles() bool {
	_, ok := p.cfg.To.(Files)
	return ok
}

// logOf returns a log whose lines name the type. It is created where lines are written, because a log kept for each type takes 500 B.
func (p *replica) logOf(typ string) zerolog.Logger { return p.log.With().Str("type", typ).Logger() }

// placeAmong returns the index at which this replica begins with n items. Other replicas begin elsewhere.
func (p *replica) placeAmong(n int) int {
	if n == 0 {
		return 0
	}
	return int(crc32.ChecksumIEEE([]byte(p.instance)) % uint32(n))
}

// untilStop returns a context that also ends when the pool is asked to stop.
func (p *replica) untilStop(ctx context.Context) (context.Context, func()) {
	return mergeContext(ctx, p.stopping)
}

// stopped reports whether the pool was asked to stop, or ctx has ended.
func (p *replica) stopped(ctx context.Context) bool {
	return p.stopping.Err() != nil || ctx.Err() != nil
}

// pause waits for d. It returns false if the pool stopped meanwhile.
func (p *replica) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.stopping.Done():
	case <-ctx.Done():
	}
	return false
}

// parting returns a context with timeout most for the last writes about a type or the whole pool: the
// durable index, the release of the lock, the departure from the list of replicas. None of them is
// needed for safety. While the pool stops, the context ends early if the queue does not answer: a
// server that hangs must not delay the stop of a replica that has no messages.
func (p *replica) parting(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	go func() {
		defer cancel()
		select {
		case <-p.stopping.Done():
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

// observe records that a session makes progress, and calls Config.Observe.
func (p *replica) observe(o Observation) {
	p.overcome(o.Type, p.book.progress(o, p.toFiles()), "the type works again")
	if f := p.cfg.Observe; f != nil {
		f(o)
	}
}

// noteHeld records that the lock of a type was acquired, and how long that took.
func (p *replica) noteHeld(typ string, lease *lock.Lease) {
	p.book.noteHeld(typ, lease)
	p.observe(Observation{Type: typ, Step: StepAcquire, Took: time.Since(p.book.wantsNoMore(typ))})
}

// Version is the version of the main module that this program was built from, or "devel" if unknown.
func Version() string { return version() }

// The build information is a text that takes 4 KB to parse, and each session names the version in its file.
var version = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
})
