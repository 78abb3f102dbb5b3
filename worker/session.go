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

// session serves one type from the grant of its lock to the release. Its methods are in the files of
// the three stages; the comments on the fields say which stage owns them.
type session struct {
	pool       *replica
	typ        string
	lease      *lock.Lease
	log        zerolog.Logger
	sink       sink                           // the file, or the handler
	file       atomic.Pointer[storage.Writer] // the append stage replaces it when the file is rotated
	registered atomic.Pointer[storage.Entry]  // the file's entry as the session has last written it into the registry
	filing     chan struct{}                  // full while the file is being replaced, and while its durable index is being registered
	ledger     *ledger.Ledger                 // owned by the append stage; by run before and after the pipeline

	touched atomic.Int64  // when the last message was fetched, in ns since the pool began
	halted  chan struct{} // closed by halt: the session must end without waiting for a successor
	halt    func()
	ended   context.Context // when it ends, the fetch stage stops, and the session ends in order
	end     func()          // ends it; called by watch

	resting  bool                        // set by the fetch stage when it ends because the type is quiet; cleared before the stages restart
	inflight inflight                    // batches fetched and not yet acknowledged
	sweeps   atomic.Uint64               // full sweeps begun; a new one begins only when nothing is in flight
	held     atomic.Pointer[ledger.Held] // which messages a gap holds back; the append stage writes, the fetch stage reads

	memory []*grant // append stage: memory of the batches that it has received

	refused []queue.DeadLetter  // append stage: dead letters to store; all but those with reasonReused have skip entries in the file
	reasons map[queue.ID]string // reasons in the skip entries that were replayed when the file was opened

	traced []func(error) // append stage: functions returned by Files.Trace, to be called when the batches are durable

	keysFull  bool // append stage: the warning about keys forgotten early was logged
	looseFull bool // append stage: the same for loose messages

	producersMany, producersFull bool // append stage: the same for many producers, and for those forgotten early

	sweepNow atomic.Bool // the append stage requests a full sweep

	appended, duplicates, gaps uint64 // owned by the append stage
	unsynced, unsyncedBytes    uint64 // append stage: messages in the file that are not counted yet, because they may not be durable
	sinceCheckpoint            uint64

	unfit *unfit // of the type; belongs to the pool's book
}

// batch is one fetch, on its way from the fetch stage to the append stage.
type batch struct {
	msgs   []queue.Message
	memory *grant // must be given back when the pool no longer has the messages
}

// giveMemory gives back the memory of the batches that the append stage has finished.
func (s *session) giveMemory() {
	for _, c := range s.memory {
		c.give()
	}
	clear(s.memory)
	s.memory = s.memory[:0]
}

// group is what the append stage sends to the ack stage: messages that may be acknowledged. batches is
// how many batches are settled with them.
type group struct {
	ids     []queue.ID
	batches int
}

// sink is where a session puts the messages of its type: fileSink or handlerSink.
type sink interface {
	open(ctx context.Context) error
	// stage turns fetched batches into groups that may be acknowledged.
	stage(ctx context.Context, in <-chan batch, out chan<- group) error
	// ack removes settled messages from the queue.
	ack(ctx context.Context, ids []queue.ID) error
	// close is called after the pipeline with the pipeline's error. It returns that or, if it is
	// nil, its own.
	close(err error) error
	describe(*zerolog.Event) *zerolog.Event
}

// asked reports whether the release of the lock was requested: by another replica, an operator, or a
// compaction.
func (s *session) asked() bool {
	select {
	case <-s.lease.ReleaseRequested():
		return true
	default:
		return false
	}
}

// seenAt is the queue's clock in ms. It is only used to age ledger entries.
func (s *session) seenAt(ctx context.Context) (int64, error) {
	t, err := s.pool.cfg.Queue.Now(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the queue's clock: %w", err)
	}
	return t.UnixMilli(), nil
}

// mergeContext returns a context that ends with a, with a's cause, or with b, with b's cause. It needs no
// goroutine: a pool has one such context for each of thousands of types.
func mergeContext(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}

// withCause returns the cause of ctx in place of a bare context.Canceled, which says nothing about
// the reason.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return cause
	}
	return err
}

// cancelled reports whether err is the end of ctx, which has ended.
func cancelled(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

// pause waits for d, or until the session is to end.
func (s *session) pause(ctx context.Context, d time.Duration) { s.await(ctx, d, nil) }

// await is like pause, but also ends when news receives a value.
func (s *session) await(ctx context.Context, d time.Duration, news <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ended.Done():
	case <-ctx.Done():
	case <-news:
	}
}

// touch records that a message was fetched.
func (s *session) touch() { s.touched.Store(int64(time.Since(s.pool.began))) }

// QuietFor returns how long no message has been fetched.
func (s *session) QuietFor() time.Duration {
	return time.Since(s.pool.began) - time.Duration(s.touched.Load())
}

// Halt makes the session end soon, without waiting for a successor.
func (s *session) Halt() { s.halt() }

// emit passes an event to Config.Events, the subscribers and Status.
func (s *session) emit(e Event) {
	e.Type, e.Token = s.typ, s.lease.Token()
	s.pool.book.noteEvent(e)
	s.pool.subscriptions.tell(e)
	if f := s.pool.cfg.Events; f != nil {
		f(e)
	}
}

// observe passes a step to Config.Observe and Status. It does not allocate.
func (s *session) observe(step Step, began time.Time, messages int, err error) {
	s.pool.observe(Observation{s.typ, step, time.Since(began), messages, err})
}

// noteUnfit is called each time a message that cannot be appended is fetched.
func (s *session) noteUnfit(k unfitKey, why string) {
	if s.unfit.note(k, why, s.pool.cfg.GapTimeout) {
		warnUnfit(&s.log, k, why)
		s.pool.book.reviewUnfit(s.typ, s.unfit, &s.log)
	}
}

// noteForeign is called each time a fetch skips a foreign key.
func (s *session) noteForeign(key string) { s.noteUnfit(unfitKey{key: key}, whyForeign) }

// reviewUnfit is called at the end of a full sweep; leave means that the session ends after it.
func (s *session) reviewUnfit(leave bool) {
	for _, k := range s.unfit.end(leave) {
		warnUnfit(&s.log, k, s.unfit.why(k))
	}
	s.pool.book.reviewUnfit(s.typ, s.unfit, &s.log)
}

// count updates the counters of the type and the pool.
func (s *session) count(f func(*Stats)) { s.pool.book.countType(s.typ, f) }

// noteLoss counts a session that an error ended early, unless the whole pool is ending.
func (s *session) noteLoss(ctx context.Context, err error) {
	if cause := lossCause(err); cause != "" && ctx.Err() == nil {
		s.pool.book.note(s.typ, func(r *typeRecord) { r.Losses[cause]++ })
	}
}

// ending reports whether the session should end at the next opportunity.
//
// rule: an end is final, even if the type is resumed meanwhile. Messages that a stage has given up because of it are left to the next
// session: the ledger of this one counts them as handled.
func (s *session) ending(ctx context.Context) bool {
	return s.ended.Err() != nil || ctx.Err() != nil
}

// untilEnded returns a context that also ends when the session is to end.
func (s *session) untilEnded(ctx context.Context) (context.Context, func()) {
	return mergeContext(ctx, s.ended)
}

// noteFailing records, for Status, that a message, or an operation on it, fails and is retried.
func (s *session) noteFailing(err error) {
	s.pool.book.note(s.typ, func(r *typeRecord) {
		r.failing, r.beat = true, time.Now()
		r.failed(err)
	})
}
