package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
)

const (
	openAttempts    = 5               // how often a token is raised above a file that has seen a higher epoch
	registryTimeout = 5 * time.Second // for what a session tells the registry of files at its end
	maxAckIDs       = 5000            // messages per acknowledgement
)

// session is one holder's time with one type's file: from the grant of the lock to its release.
type session struct {
	pool   *Pool
	typ    string
	lease  *lock.Lease
	log    zerolog.Logger
	sink   sink                           // the file, or the handler
	file   atomic.Pointer[storage.Writer] // the append stage replaces it when the file is rotated
	filing chan struct{}                  // full while the file is being replaced, and while the registry is told how far it has come
	ledger *ledger.Ledger                 // owned by the append stage; before and after the pipeline by run

	touched atomic.Int64  // when there was a message, in ns since the pool began
	halted  chan struct{} // closed by halt: the session is to end
	halt    func()
	ended   chan struct{} // closed when it ends, for whatever reason of watch

	inflight inflight                    // batches fetched and not yet acknowledged
	sweeps   atomic.Uint64               // full sweeps begun; a new one begins only when nothing is in flight
	held     atomic.Pointer[ledger.Held] // what waits behind a gap, told to the fetch stage

	memory []*grant // append stage: of the batches that it has

	refused []queue.Letter      // append stage: what is to be buried; all but those with reasonReused have skip entries in the file
	reasons map[queue.ID]string // of the skip entries that were behind the last checkpoint when the file was opened

	traced []func(error) // append stage: Config.Trace is to be told of their end

	keysFull bool // append stage: it was said that keys are forgotten early

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

// group is what the append stage hands to the ack stage: the messages of some batches that may be acknowledged.
type group struct {
	ids     []queue.ID
	batches int
}

// run opens the file, drains, and closes it. drained tells that the type was seen empty.
func (s *session) run(ctx context.Context) (drained bool, err error) {
	defer func(pool context.Context) { s.noteLoss(pool, err) }(ctx)
	// The session lives on the lease's context: loss cancels everything with its cause.
	ctx, cancel := mergeContext(s.lease.Context(), ctx)
	defer cancel()
	opening, opened := s.pool.untilStop(ctx) // nothing is in hand yet
	err = s.sink.open(opening)
	stopped := ctx.Err() == nil && opening.Err() != nil && errors.Is(err, context.Canceled)
	opened()
	switch {
	case stopped:
		return false, nil
	case err != nil:
		return false, withCause(ctx, err)
	}
	s.log = s.log.With().Int64("epoch", s.lease.Token()).Logger()
	s.count(func(st *Stats) { st.Sessions++ })
	s.sink.describe(s.log.Info()).Int("producers", s.ledger.Producers()).Msg("holding the type")
	s.emit(Event{Kind: Acquired})

	var watching sync.WaitGroup
	watched, stopWatching := context.WithCancel(ctx)
	watching.Go(func() { s.watch(watched) })
	drained, err = s.pipeline(ctx)
	stopWatching()
	watching.Wait()
	err = s.sink.close(withCause(ctx, err))
	event := s.log.Info()
	if err != nil {
		event = s.log.Warn().Err(err)
		s.emit(Event{Kind: Lost, Err: err})
	} else {
		s.emit(Event{Kind: Released})
	}
	s.sink.describe(event).Uint64("appended", s.appended).Uint64("duplicates", s.duplicates).
		Uint64("gaps", s.gaps).Msg("gave the type back")
	return drained, err
}

// sink is where a session puts the messages of its type.
type sink interface {
	open(ctx context.Context) error
	// stage turns fetched batches into groups that may be acknowledged.
	stage(ctx context.Context, in <-chan batch, out chan<- group) error
	// ack removes settled messages from the queue.
	ack(ctx context.Context, ids []queue.ID) error
	// close ends what open began, after the pipeline. It returns err, how the pipeline ended, or its own error.
	close(err error) error
	describe(*zerolog.Event) *zerolog.Event
}

// fileSink appends the messages to the type's file.
type fileSink struct{ *session }

// stage ends with the checkpoint that spares the next holder the reading; the last messages are being acknowledged meanwhile.
func (s fileSink) stage(ctx context.Context, in <-chan batch, out chan<- group) error {
	if err := s.appendStage(ctx, in, out); err != nil {
		return err
	}
	if s.sinceCheckpoint == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	return s.checkpoint()
}

// ack tells the registry of files before how much of the file is durable.
//
// rule: the registry knows of a record before its message is acknowledged. Otherwise a copy of the file from a moment before would pass for the
// file, and the message would be gone.
func (s fileSink) ack(ctx context.Context, ids []queue.ID) error {
	keep, err := s.keepFile(ctx)
	if err != nil {
		return err
	}
	defer keep()
	e := s.writer().Entry() // at least up to the last record of these messages, and of those that they are copies of
	ok, err := s.pool.cfg.Queue.AckFile(ctx, s.typ, file(e), ids)
	if err == nil && !ok {
		err = fmt.Errorf("%w: the registry of files does not name %s, file %s, with epoch %d any more; nothing was acknowledged", storage.ErrFenced, s.writer().Path(), e.FileID, e.Epoch)
	}
	return err
}

// keepFile keeps the file from being replaced until the function that it returns is called.
func (s *session) keepFile(ctx context.Context) (done func(), err error) {
	select {
	case s.filing <- struct{}{}:
		return func() { <-s.filing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s fileSink) describe(e *zerolog.Event) *zerolog.Event {
	return e.Uint64("index", s.writer().NextIndex()).Str("file", s.writer().Path())
}

func (s fileSink) close(err error) error {
	s.pool.remember(s.typ, s.ledger)
	if err == nil {
		_, err = s.writer().Sync()
	}
	if err == nil {
		// The next holder may come while the registry is being told how far this one came. rule: nothing is written from here on.
		begun, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.lease.Release(begun) // hold hears of the outcome
	}
	// Close never makes an acknowledged message depend on it: everything acknowledged is durable.
	cerr := s.writer().Close()
	if dead := (*storage.PoisonedError)(nil); errors.As(cerr, &dead) {
		// What a dead writer has made durable is durable, and Close has not told the registry.
		ctx, cancel := context.WithTimeout(context.Background(), registryTimeout)
		defer cancel()
		_ = s.writer().UpdateRegistry(ctx) // no message depends on it
	}
	s.pool.sawDurable(s.typ, s.writer().Entry())
	if cerr != nil && err == nil {
		err = cerr
	}
	return err
}

// writer is the file that is written to now.
func (s *session) writer() *storage.Writer { return s.file.Load() }

// What a worker adds to its ledger between two checkpoints, see ledger.growth, before a batch of MaxBatch messages at most comes on top, each of which
// may be a new producer's, delayed, behind a gap and put aside. And what it takes in from behind the last one when it opens a file: earlier versions
// wrote checkpoints by the size of the file alone.
const (
	maxGrowth  = 100_000
	maxReplay  = 800_000
	maxReasons = 16 << 20 // bytes of the reasons of messages put aside; who has none is told so
)

// open opens the file with the token as epoch. A file that has seen a higher epoch (the lock's collection was restored
// or dropped) raises the token: the file is the judge.
func (s *session) open(ctx context.Context) error {
	cfg := &s.pool.cfg
	token := s.lease.Token()
	reasons := 0 // bytes of them
	for attempt := 1; ; attempt++ {
		s.ledger = ledger.New(ledger.Options{GapTimeout: cfg.GapTimeout, DedupeWindow: cfg.DedupeWindow, Now: time.Now, Sweep: s.sweeps.Load})
		seenAt, err := s.seenAt(ctx)
		if err != nil {
			return err
		}
		s.ledger.SetClock(seenAt)
		o := cfg.Storage
		o.Registry = registry{cfg.Queue, s.pool}
		o.Holder = holder(s.pool.instance)
		o.Empty = s.ledger.State()
		o.Restore = func(state []byte) error {
			if err := s.ledger.Restore(state); err != nil {
				return fmt.Errorf("the newest file of type %q in %s: %w", s.typ, cfg.Dir, err)
			}
			return nil
		}
		o.Replay = func(r storage.Record) error {
			if r.Kind == storage.KindLost {
				return nil // a repair gave it up, and its ID with it
			}
			id, putAside, err := s.ledger.Replay(r)
			if putAside {
				if reason := string(r.Payload[:min(len(r.Payload), queue.MaxReason)]); reasons+len(reason) <= maxReasons {
					s.reasons[id], reasons = reason, reasons+len(reason)
				}
			}
			if err == nil && s.ledger.Growth() > maxReplay { // rule: what no worker writes takes no worker's memory
				err = fmt.Errorf("%w: type %q: the newest file in %s has more than %d producers and gaps behind its last checkpoint: workers write one for every %d. "+
					"If an earlier version wrote it, let that version open the file and stop; otherwise restore a copy", storage.ErrIntegrity, s.typ, cfg.Dir, maxReplay, maxGrowth)
			}
			return err
		}
		s.reasons, reasons = map[queue.ID]string{}, 0
		w, err := storage.Open(ctx, cfg.Dir, s.typ, uint64(token), o)
		s.file.Store(w)
		if err == nil {
			s.ledger.Recall(s.pool.recalled(s.typ))
			s.noteFile(w.Path(), w.DurableIndex())
			return nil
		}
		var epoch *storage.EpochError
		if !errors.As(err, &epoch) || attempt == openAttempts {
			return err
		}
		s.log.Warn().Uint64("file_epoch", epoch.InFile).Int64("token", token).
			Msg("the file has seen a higher epoch than the lock grants, raising the lock's token: the database was set back, or workers of another " +
				"database use this directory, too")
		if token, err = s.lease.RaiseToken(ctx, int64(epoch.InFile)); err != nil {
			return fmt.Errorf("raise the token of type %q above epoch %d: %w", s.typ, epoch.InFile, err)
		}
	}
}

// pipeline runs the three stages until the type is idle or empty, the pool stops, or something fails.
func (s *session) pipeline(ctx context.Context) (drained bool, err error) {
	cfg := &s.pool.cfg
	fetched := make(chan batch, cfg.Prefetch-1) // one more is in the fetch stage's hands
	durable := make(chan group, 1)
	g, ctx := errgroup.WithContext(ctx)
	f := &fetcher{session: s}
	g.Go(func() error {
		defer close(fetched)
		var err error
		drained, err = f.run(ctx, fetched)
		return err
	})
	g.Go(func() error {
		defer close(durable)
		return s.sink.stage(ctx, fetched, durable)
	})
	g.Go(func() error { return s.ackStage(ctx, durable) })
	err = g.Wait()
	for left := range fetched {
		left.memory.give()
	}
	return drained, err
}

// appendStage turns fetched batches into durable records. All batches that are ready share one fsync.
func (s *session) appendStage(ctx context.Context, in <-chan batch, out chan<- group) (err error) {
	defer s.giveMemory()
	defer func() { s.endTrace(withCause(ctx, err)) }()
	var records []storage.Record
	for next := range in {
		var done group
		appended := s.appended
		var err error
		before := s.writer().NextIndex()
		for more := true; more; {
			s.memory = append(s.memory, next.memory)
			// rule: nothing is appended that a worker could not take in when it opens the file.
			if s.ledger.Growth() >= maxGrowth {
				if err := s.checkpoint(); err != nil {
					return err
				}
			}
			if records, err = s.appendBatch(ctx, next.msgs, records[:0], &done); err != nil {
				return err
			}
			if len(done.ids) >= maxAckIDs {
				break
			}
			select {
			case next, more = <-in:
			default:
				more = false
			}
		}
		s.tellHeld()
		if s.writer().NextIndex() != before {
			// rule: fsync before ack.
			// rule: a duplicate waits for the fsync too: its first copy may be in this group.
			began := time.Now()
			durable, err := s.writer().Sync()
			s.observe(StepSync, began, int(s.writer().NextIndex()-before), err)
			if err != nil {
				return err
			}
			s.endTrace(nil)
			if s.appended > appended {
				s.emit(Event{Kind: Committed, Messages: int(s.appended - appended), Index: durable})
			}
			if s.writer().CheckpointDue() {
				if err := s.checkpoint(); err != nil {
					return err
				}
			}
			if err := s.rotate(ctx); err != nil {
				return err
			}
		} else if len(done.ids) > 0 {
			// rule: copies, too, are acknowledged only while the path names the file that has the first ones. Nothing is synced here.
			if _, err := s.writer().Sync(); err != nil {
				return err
			}
		}
		next = batch{}
		s.giveMemory()
		// rule: buried before they are acknowledged, and behind their skip entries.
		if err := s.buryRefused(ctx); err != nil {
			return err
		}
		select {
		case out <- done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// appendBatch judges every message of one fetched batch and writes those that are due as one record batch. It returns the room of records for
// the next one.
func (s *session) appendBatch(ctx context.Context, batch []queue.Message, records []storage.Record, done *group) ([]storage.Record, error) {
	// rule: an idle session keeps nothing of its last batch
	defer func() { clear(records) }()
	seenAt, err := s.seenAt(ctx)
	if err != nil {
		return records, err
	}
	s.ledger.SetClock(seenAt)
	done.batches++
	due := make([]*queue.Message, 0, len(batch))
	for i := range batch {
		m := &batch[i]
		kind, ok := s.admit(m, done)
		if !ok {
			continue
		}
		records = append(records, storage.Record{
			Kind:    kind,
			ID:      m.ID[:],
			Time:    recordTime(m.ID),
			Payload: m.Payload,
			Headers: headers(m.Headers),
		})
		due = append(due, m)
		done.ids = append(done.ids, m.ID)
		if s.skipCopy(&records[len(records)-1], m) {
			continue
		}
		if err := s.filter(m); err != nil {
			var p *PanicError
			if errors.As(err, &p) && s.pool.cfg.OnError == Block {
				return records, fmt.Errorf("filter message %s: %w\n%s", m.ID, err, p.Stack)
			}
			s.refuse(&records[len(records)-1], m, err)
			continue
		}
		s.ledger.Remember(m)
	}
	s.trimLedger()
	if err := s.buryReused(ctx); err != nil {
		return records, err
	}
	if len(records) == 0 {
		return records, nil
	}
	// The lease is checked before every write for efficiency's sake only: a write that is late all the same is void.
	if err := s.lease.Check(0); err != nil {
		return records, err
	}
	s.trace(ctx, due)
	began := time.Now()
	err = s.write(records, due)
	s.observe(StepAppend, began, len(records), err)
	if err != nil {
		return records, err
	}
	s.sinceCheckpoint += uint64(len(records))
	n, b := payloads(records)
	s.appended += n
	s.bytes += b
	s.count(func(st *Stats) { st.Appended += n; st.Bytes += b })
	return records, nil
}

// trimLedger keeps the ledger from growing beyond what a checkpoint can hold.
func (s *session) trimLedger() {
	early := s.ledger.TrimHistory()
	if early.Skipped {
		s.log.Warn().Int("ranges", ledger.MaxSkipped).Msg("more messages were put aside out of order than the file remembers: the oldest are forgotten, and would be " +
			"taken for copies of what is in the file if the database were set back to a time before they were put aside")
	}
	if early.Delayed {
		s.log.Warn().Int("delayed", ledger.MaxDelayed).Msg("more delayed messages out of order than the file remembers: the oldest are forgotten, and would be " +
			"appended again if the database were set back to a time before their promotion")
	}
	if early.Keys && !s.keysFull {
		s.keysFull = true
		s.log.Warn().Int("keys", ledger.MaxKeys).Msg("more idempotency keys within the dedupe window than are remembered: the oldest are forgotten early")
	}
	producers, most := s.ledger.Load()
	if producers >= most/5*4 && !s.producersMany {
		s.producersMany = true
		s.log.Warn().Int("producers", producers).Int("max", most).
			Msg("the file remembers many producers: those that have been silent for longest are forgotten when there are too many; let programs keep a publisher instead of making one for each message")
	}
	forgotten, full := s.ledger.TrimProducers()
	if full {
		s.sweepNow.Store(true)
	}
	if forgotten == 0 {
		return
	}
	s.count(func(st *Stats) { st.Forgotten += uint64(forgotten) })
	if !s.producersFull {
		s.producersFull = true
		s.log.Warn().Int("max", most).Msg("more producers than the file remembers: those that have been silent for longest are forgotten early. One that repeats now what was " +
			"appended has it appended twice, and the next message of one that goes on waits for the gap timeout")
	}
}

// admit asks the ledger about one fetched message: ok tells that it is to be appended or handled now, and kind as what. Otherwise it
// waits, or is a copy, which is acknowledged with done.
func (s *session) admit(m *queue.Message, done *group) (kind storage.Kind, ok bool) {
	switch s.ledger.Admit(m) {
	case ledger.Hold:
		if why := m.Unfit(); why != "" { // rule: what cannot be appended is not passed over in silence
			s.noteUnfit(unfitKey{id: m.ID}, why)
		}
		return 0, false
	case ledger.Duplicate:
		s.duplicates++
		s.count(func(st *Stats) { st.Duplicates++ })
		done.ids = append(done.ids, m.ID)
		return 0, false
	case ledger.Reused:
		s.log.Warn().Stringer("id", m.ID).Msg("the number of this message is in use for an earlier one: was the database, or a producer's --resume file, set back to an earlier state?")
		s.refused = append(s.refused, queue.Letter{Message: *m, Reason: reasonReused, Attempts: 1})
		return 0, false
	case ledger.PutAside:
		reason, known := s.reasons[m.ID]
		if !known {
			reason = reasonPutAside
		}
		s.refused = append(s.refused, queue.Letter{Message: *m, Reason: reason, Attempts: 1})
		return 0, false
	case ledger.AppendAfterGap:
		s.gaps++
		s.count(func(st *Stats) { st.Gaps++ })
		gap := s.ledger.LastGap()
		s.log.Warn().Stringer("id", m.ID).Uint64("gone", gap.Gone).Uint64("not_appendable", gap.Unfit).Msg(gap.String())
		return storage.KindAfterGap, true
	case ledger.AppendLate:
		s.log.Warn().Stringer("id", m.ID).Msg("taking a message that was missing when those behind it were taken")
		return storage.KindAfterGap, true
	}
	return storage.KindMessage, true
}

// checkpoint spares whoever opens the file the reading of what is before it.
func (s *session) checkpoint() error {
	if err := s.writer().Checkpoint(s.ledger.State()); err != nil {
		return err
	}
	s.checkpointed()
	return nil
}

func (s *session) checkpointed() {
	s.sinceCheckpoint = 0
	s.ledger.Checkpointed()
}

// rotate goes on in a new file if this one has reached the size limit. The ledger goes with it.
func (s *session) rotate(ctx context.Context) error {
	limit := s.pool.cfg.MaxFileBytes
	if limit == 0 || s.writer().Size() < limit {
		return nil
	}
	done, err := s.keepFile(ctx)
	if err != nil {
		return err
	}
	defer done()
	next, err := s.writer().Rotate(ctx, s.ledger.State())
	if err != nil {
		return err
	}
	s.file.Store(next)
	s.checkpointed()
	s.log.Info().Uint64("index", next.NextIndex()).Str("file", next.Path()).Msg("the file reached its size limit, going on in a new one")
	s.emit(Event{Kind: Rotated, Index: next.NextIndex(), Path: next.Path()})
	return nil
}

// tellHeld publishes what is held back, so that the fetch stage reads it again.
func (s *session) tellHeld() { s.held.Store(s.ledger.Held()) }

// ackStage removes settled messages from the queue. It never gives up on its own: an acknowledgement that cannot be delivered
// holds the pipeline back, and is given up with the lease or the stop's grace.
func (s *session) ackStage(ctx context.Context, in <-chan group) error {
	var outage outage
	for {
		var g group
		var ok bool
		select {
		case g, ok = <-in:
			if !ok {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		// Groups that are ready share one acknowledgement, as they do one fsync.
		for more := true; more && len(g.ids) < maxAckIDs; {
			var next group
			select {
			case next, more = <-in:
				g.ids, g.batches = append(g.ids, next.ids...), g.batches+next.batches
			default:
				more = false
			}
		}
		for ids := range slices.Chunk(g.ids, maxAckIDs) {
			if err := s.acknowledge(ctx, ids, &outage); err != nil {
				return err
			}
		}
		s.inflight.add(-g.batches)
	}
}

// acknowledge removes settled messages from the queue, and tries again until it has or the session is over.
func (s *session) acknowledge(ctx context.Context, ids []queue.ID, outage *outage) error {
	retry := backoff{min: watchMin, max: watchMax}
	for {
		began := time.Now()
		// rule: a stop calls off no acknowledgement: what is in hand is finished within the grace.
		err := s.sink.ack(ctx, ids)
		s.observe(StepAck, began, len(ids), err)
		if errors.Is(err, storage.ErrFenced) || !outage.note(&s.log, err, "acknowledge") {
			return err
		}
		if err := sleep(ctx, retry.next()); err != nil {
			return err
		}
	}
}

// asked tells whether somebody wants the type to be given back (fencepost locks release --request, a compaction).
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

// registry lets the file check itself against the queue's registry of files.
type registry struct {
	q    queue.Queue
	pool *Pool
}

func (r registry) Lookup(ctx context.Context, typ string) (storage.Entry, bool, error) {
	f, ok, err := r.q.File(ctx, typ)
	return r.pool.atLeast(typ, entry(f)), ok, err
}

func (r registry) Register(ctx context.Context, typ string, e storage.Entry) (storage.Entry, error) {
	f, err := r.q.RegisterFile(ctx, typ, file(e))
	return r.pool.atLeast(typ, entry(f)), err
}

func (r registry) Succeed(ctx context.Context, typ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	f, ok, err := r.q.SucceedFile(ctx, typ, old, file(e))
	return entry(f), ok, err
}

func (r registry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	ctx, done := r.pool.parting(ctx, registryTimeout)
	defer done()
	return r.q.UpdateFile(ctx, typ, file(e))
}

// sawDurable remembers how far a type's file was durable when a session of this pool ended.
func (p *Pool) sawDurable(typ string, e storage.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.durable[typ] = e
}

// atLeast raises what the registry says of a type's file to what this pool has seen itself.
func (p *Pool) atLeast(typ string, e storage.Entry) storage.Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	// rule: a pool does not go on with a file that ends below what it has seen durable, also if the registry was set back with the file. A later
	// generation is somebody's who had the lock, a repair perhaps that has given something up: it stands as it is.
	if seen := p.durable[typ]; e.Generation <= seen.Generation {
		e.DurableIndex = max(e.DurableIndex, seen.DurableIndex)
	}
	return e
}

func entry(f queue.File) storage.Entry {
	return storage.Entry{FileID: f.FileID, Generation: f.Generation, Epoch: f.Epoch, DurableIndex: f.DurableIndex}
}

func file(e storage.Entry) queue.File {
	return queue.File{FileID: e.FileID, Generation: e.Generation, Epoch: e.Epoch, DurableIndex: e.DurableIndex}
}

// recordTime is the time of a message in a record, in ns. One beyond the year 2262, which ns do not reach, is moved there.
func recordTime(id queue.ID) int64 {
	return min(id.Time().UnixMilli(), math.MaxInt64/int64(time.Millisecond)) * int64(time.Millisecond)
}

func holder(instance string) storage.Holder {
	host, _ := os.Hostname()
	return storage.Holder{ID: instance, Host: host, PID: os.Getpid(), Version: Version()}
}

// Version is the module version this program was built from, "devel" if unknown.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// headers sorts by key, so that the same message always gives the same bytes.
func headers(m map[string]string) []storage.Header {
	if len(m) == 0 {
		return nil
	}
	hs := make([]storage.Header, 0, len(m))
	for k, v := range m {
		hs = append(hs, storage.Header{Key: k, Value: v})
	}
	slices.SortFunc(hs, func(a, b storage.Header) int { return strings.Compare(a.Key, b.Key) })
	return hs
}

// payloads counts the messages among the records, and their bytes.
func payloads(records []storage.Record) (n, bytes uint64) {
	for i := range records {
		if records[i].Kind != storage.KindSkipped {
			n++
			bytes += uint64(len(records[i].Payload))
		}
	}
	return n, bytes
}

// mergeContext returns a context that ends with a, with a's cause, or with b, with b's cause.
func mergeContext(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}

// withCause replaces the bare end of a context, which any operation may have returned, by the reason for it.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return cause
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// skipCopy makes r a skip entry if the file has m under another ID: a message with its key, or the delayed message that became m.
func (s *session) skipCopy(r *storage.Record, m *queue.Message) bool {
	if delayed, copied := s.ledger.DelayedCopy(m); copied {
		ledger.MakeSkipEntry(r, fmt.Sprintf("duplicate: the delayed message %s was promoted before", delayed), true)
		s.log.Debug().Stringer("id", m.ID).Stringer("delayed", delayed).Msg("this delayed message is in the file already")
	} else if s.ledger.KeyCopy(m) {
		key := m.Headers[queue.KeyHeader]
		ledger.MakeSkipEntry(r, fmt.Sprintf("duplicate: a message with the idempotency key %q was published before", key), true)
		s.log.Debug().Stringer("id", m.ID).Str("key", key).Msg("a message with this idempotency key is in the file already")
	} else {
		return false
	}
	s.count(func(st *Stats) { st.Repeated++ })
	return true
}

// recalled returns what is remembered of a type's file between its sessions, and remember sets it.
func (p *Pool) recalled(typ string) ledger.Lives {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lives[typ]
}

func (p *Pool) remember(typ string, l *ledger.Ledger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lives[typ] = l.Lives()
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
