package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"github.com/rs/zerolog"
)

// session is one holder's time with one type's file: from the grant of the lock to its release.
type session struct {
	pool   *replica // what the sessions of a pool share
	typ    string
	lease  *lock.Lease
	log    zerolog.Logger
	sink   sink                           // the file, or the handler
	file   atomic.Pointer[storage.Writer] // the append stage replaces it when the file is rotated
	filing chan struct{}                  // full while the file is being replaced, and while its durable index is registered
	ledger *ledger.Ledger                 // owned by the append stage; before and after the pipeline by run

	touched atomic.Int64  // when there was a message, in ns since the pool began
	halted  chan struct{} // closed by halt: the session is to end
	halt    func()
	ended   chan struct{} // closed when it ends, for whatever reason of watch

	inflight inflight                    // batches fetched and not yet acknowledged
	sweeps   atomic.Uint64               // full sweeps begun; a new one begins only when nothing is in flight
	held     atomic.Pointer[ledger.Held] // what waits behind a gap, told to the fetch stage

	memory []*grant // append stage: of the batches that it has

	refused []queue.DeadLetter  // append stage: what is to be buried; all but those with reasonReused have skip entries in the file
	reasons map[queue.ID]string // of the skip entries that were behind the last checkpoint when the file was opened

	traced []func(error) // append stage: what Files.Trace has returned, to be called when they end

	keysFull  bool // append stage: it was said that keys are forgotten early
	looseFull bool // append stage: it was said that loose messages are forgotten early

	producersMany, producersFull bool // append stage: it was said that producers are many, and that they are forgotten early

	sweepNow atomic.Bool // the append stage wants a full sweep

	appended, duplicates, gaps, bytes uint64 // owned by the append stage
	sinceCheckpoint                   uint64

	unfit *unfit // of the type; outlasts the session
}

// batch is what the fetch stage hands on.
type batch struct {
	msgs   []queue.Message
	memory *grant // for as long as the pool has them
}

// giveMemory gives back what the append stage has, which keeps nothing of the batches.
func (s *session) giveMemory() {
	for _, c := range s.memory {
		c.give()
	}
	s.memory = s.memory[:0]
}

// group is what the append stage hands to the ack stage: the messages of some batches that may be
// acknowledged.
type group struct {
	ids     []queue.ID
	batches int
}

// sink is where a session puts the messages of its type.
type sink interface {
	open(ctx context.Context) error
	// stage turns fetched batches into groups that may be acknowledged.
	stage(ctx context.Context, in <-chan batch, out chan<- group) error
	// ack removes settled messages from the queue.
	ack(ctx context.Context, ids []queue.ID) error
	// close ends what open began, after the pipeline. It returns err, how the pipeline ended, or
	// its own error.
	close(err error) error
	describe(*zerolog.Event) *zerolog.Event
}

// asked tells whether the type was asked for (fencepost locks release --request,
// a compaction).
func (s *session) asked() bool {
	select {
	case <-s.lease.ReleaseRequested():
		return true
	default:
		return false
	}
}

// seenAt is the backend's clock in ms; it only ages ledger entries.
func (s *session) seenAt(ctx context.Context) (int64, error) {
	t, err := s.pool.cfg.Queue.Now(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the queue's clock: %w", err)
	}
	return t.UnixMilli(), nil
}

// mergeContext returns a context that ends with a, with a's cause, or with b, with b's cause.
func mergeContext(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}

// withCause replaces the bare end of a context, which any operation may have returned, by the
// reason for it.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return cause
	}
	return err
}

// pause waits for d, or until the session is to end.
func (s *session) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ended:
	case <-ctx.Done():
	}
}

// touch notes that there was a message.
func (s *session) touch() { s.touched.Store(int64(time.Since(s.pool.began))) }

// QuietFor is how long there was no message.
func (s *session) QuietFor() time.Duration {
	return time.Since(s.pool.began) - time.Duration(s.touched.Load())
}

// Halt ends the session soon.
func (s *session) Halt() { s.halt() }

// emit tells Config.Events.
func (s *session) emit(e Event) {
	e.Type, e.Token = s.typ, s.lease.Token()
	s.pool.book.noteEvent(e)
	s.pool.subscriptions.tell(e)
	if f := s.pool.cfg.Events; f != nil {
		f(e)
	}
}

// observe tells Config.Observe, and that the session is alive. Nothing is allocated.
func (s *session) observe(step Step, began time.Time, messages int, err error) {
	s.pool.observe(Observation{s.typ, step, time.Since(began), messages, err})
}

// noteUnfit is called each time that a message is fetched that cannot be appended.
func (s *session) noteUnfit(k unfitKey, why string) {
	if s.unfit.note(k, why, s.pool.cfg.GapTimeout) {
		warnUnfit(&s.log, k, why)
		s.pool.book.reviewUnfit(s.typ, s.unfit, &s.log)
	}
}

// noteForeign is called each time that a fetch passes a foreign key.
func (s *session) noteForeign(key string) { s.noteUnfit(unfitKey{key: key}, whyForeign) }

// reviewUnfit is called at the end of a full sweep; leave tells that the session ends with it.
func (s *session) reviewUnfit(leave bool) {
	for _, k := range s.unfit.end(leave) {
		warnUnfit(&s.log, k, s.unfit.why(k))
	}
	s.pool.book.reviewUnfit(s.typ, s.unfit, &s.log)
}

func (s *session) count(f func(*Stats)) { s.pool.book.countType(s.typ, f) }

// noteLoss counts a session that ended early. That the pool ends is no loss.
func (s *session) noteLoss(ctx context.Context, err error) {
	if cause := lossCause(err); cause != "" && ctx.Err() == nil {
		s.pool.book.note(s.typ, func(r *typeRecord) { r.Losses[cause]++ })
	}
}

// ending tells whether the session is to end at the next occasion.
//
// rule: an end is final, also when the type is resumed meanwhile. What a stage has given up on because of it is left to the next session:
// this one's ledger counts it as handled.
func (s *session) ending(ctx context.Context) bool {
	select {
	case <-s.ended:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// untilEnded returns a context that also ends when the session is to end.
func (s *session) untilEnded(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// noteFailing tells that a message fails, and is tried again.
func (s *session) noteFailing(err error) {
	s.pool.book.note(s.typ, func(r *typeRecord) {
		r.failing = true
		r.failed(err)
	})
}
