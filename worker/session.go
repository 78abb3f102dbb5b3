package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
)

const (
	openAttempts  = 5               // how often a token is raised above a file that has seen a higher epoch
	registryEvery = 5 * time.Second // how often the registry learns how much of the file is durable
	maxAckIDs     = 5000            // messages per acknowledgement
)

// session is one holder's time with one type's file: from the grant of the lock to its release.
type session struct {
	pool   *Pool
	typ    string
	lease  *lock.Lease
	log    zerolog.Logger
	file   atomic.Pointer[storage.Writer] // the append stage replaces it when the file is rotated
	ledger *ledger                        // owned by the append stage; before and after the pipeline by run

	inflight inflight                  // batches fetched and not yet acknowledged
	held     atomic.Pointer[heldState] // what waits behind a gap, told to the fetch stage

	appended, duplicates, gaps, bytes uint64 // owned by the append stage
	sinceCheckpoint                   uint64
}

// heldState is what the fetch stage needs to know of messages that were held back.
type heldState struct {
	first   queue.ID // re-read from here
	overdue bool     // all of them have outlasted the gap timeout: they are incomplete for good
}

// group is what the append stage hands to the ack stage: the messages of some batches that may be acknowledged.
type group struct {
	ids     []queue.ID
	batches int
}

// run opens the file, drains, and closes it. drained tells that the type was seen empty.
func (s *session) run(ctx context.Context) (drained bool, err error) {
	// The session lives on the lease's context: loss cancels everything with its cause.
	ctx, cancel := mergeContext(s.lease.Context(), ctx)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return false, withCause(ctx, err)
	}
	s.log = s.log.With().Uint64("epoch", s.writer().Epoch()).Logger()
	s.pool.count(func(st *Stats) { st.Sessions++ })
	s.log.Info().Uint64("index", s.writer().NextIndex()).Int("producers", len(s.ledger.last)).Str("file", s.writer().Path()).
		Msg("holding the type")

	drained, err = s.pipeline(ctx)
	if err = withCause(ctx, err); err == nil {
		err = s.finish()
	}
	// Close never makes an acknowledged message depend on it: everything acknowledged is durable.
	if cerr := s.writer().Close(); cerr != nil && err == nil {
		err = cerr
	}
	event := s.log.Info()
	if err != nil {
		event = s.log.Warn().Err(err)
	}
	event.Uint64("index", s.writer().NextIndex()).Uint64("appended", s.appended).Uint64("duplicates", s.duplicates).
		Uint64("gaps", s.gaps).Msg("gave the type back")
	return drained, err
}

// writer is the file that is written to now.
func (s *session) writer() *storage.Writer { return s.file.Load() }

// open opens the file with the token as epoch. A file that has seen a higher epoch (the lock's collection was restored
// or dropped) raises the token: the file is the judge.
func (s *session) open(ctx context.Context) error {
	cfg := &s.pool.cfg
	token := s.lease.Token()
	for attempt := 1; ; attempt++ {
		s.ledger = newLedger(cfg.GapTimeout, time.Now)
		s.ledger.noContiguity = cfg.mutant.noContiguity
		seenAt, err := s.seenAt(ctx)
		if err != nil {
			return err
		}
		o := cfg.Storage
		o.Registry = registry{cfg.Queue}
		o.Holder = holder(s.pool.instance)
		o.Restore = s.ledger.restore
		o.Replay = func(r storage.Record) error {
			if r.Kind == storage.KindLost {
				return nil // a repair gave it up, and its ID with it
			}
			id, err := recordID(r)
			if err == nil {
				s.ledger.note(id, seenAt)
			}
			return err
		}
		w, err := storage.Open(ctx, cfg.Dir, s.typ, uint64(token), o)
		s.file.Store(w)
		var epoch *storage.EpochError
		if !errors.As(err, &epoch) || attempt == openAttempts {
			return err
		}
		s.log.Warn().Uint64("file_epoch", epoch.InFile).Int64("token", token).
			Msg("the file has seen a higher epoch than the lock grants, raising the lock's token")
		if token, err = s.lease.RaiseToken(ctx, int64(epoch.InFile)); err != nil {
			return fmt.Errorf("raise the token of type %q above epoch %d: %w", s.typ, epoch.InFile, err)
		}
	}
}

// pipeline runs the three stages until the type is idle or empty, the pool stops, or something fails.
func (s *session) pipeline(ctx context.Context) (drained bool, err error) {
	cfg := &s.pool.cfg
	fetched := make(chan []queue.Message, cfg.Prefetch-1) // one more is in the fetch stage's hands
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
		return s.appendStage(ctx, fetched, durable)
	})
	g.Go(func() error { return s.ackStage(ctx, durable) })
	err = g.Wait()
	return drained, err
}

// appendStage turns fetched batches into durable records. All batches that are ready share one fsync.
func (s *session) appendStage(ctx context.Context, in <-chan []queue.Message, out chan<- group) error {
	var records []storage.Record
	for batch := range in {
		var done group
		var err error
		before := s.writer().NextIndex()
		for more := true; more; {
			if records, err = s.appendBatch(ctx, batch, records[:0], &done); err != nil {
				return err
			}
			if len(done.ids) >= maxAckIDs {
				break
			}
			select {
			case batch, more = <-in:
			default:
				more = false
			}
		}
		s.tellHeld()
		if s.pool.cfg.mutant.ackBeforeSync {
			select {
			case out <- done:
				done = group{}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if s.writer().NextIndex() != before {
			// rule: fsync before ack. Duplicates of this group wait for it too: their first copy may be in it.
			if _, err := s.writer().Sync(); err != nil {
				return err
			}
			if s.writer().CheckpointDue() {
				if err := s.writer().Checkpoint(s.ledger.state()); err != nil {
					return err
				}
				s.sinceCheckpoint = 0
			}
			if err := s.rotate(ctx); err != nil {
				return err
			}
		}
		select {
		case out <- done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// appendBatch judges every message of one fetched batch and writes those that are due as one record batch.
func (s *session) appendBatch(ctx context.Context, batch []queue.Message, records []storage.Record, done *group) ([]storage.Record, error) {
	seenAt, err := s.seenAt(ctx)
	if err != nil {
		return records, err
	}
	done.batches++
	for i := range batch {
		m := &batch[i]
		kind := storage.KindMessage
		switch s.ledger.judge(m, seenAt) {
		case hold:
			continue
		case duplicate:
			s.duplicates++
			s.pool.count(func(st *Stats) { st.Duplicates++ })
			done.ids = append(done.ids, m.ID)
			continue
		case appendAfterGap:
			kind = storage.KindAfterGap
			s.gaps++
			s.pool.count(func(st *Stats) { st.Gaps++ })
			s.log.Warn().Stringer("id", m.ID).Msg("appending with a declared gap: earlier messages of this producer are gone from the queue")
		case appendLate:
			kind = storage.KindAfterGap
			s.log.Warn().Stringer("id", m.ID).Msg("appending a message that was missing when its gap was declared")
		}
		records = append(records, storage.Record{
			Kind:    kind,
			ID:      m.ID[:],
			Time:    m.ID.Time().UnixNano(),
			Payload: m.Payload,
			Headers: headers(m.Headers),
		})
		s.bytes += uint64(len(m.Payload))
		done.ids = append(done.ids, m.ID)
	}
	if len(records) == 0 {
		return records, nil
	}
	// The lease is checked before every write for efficiency's sake only: a write that is late all the same is void.
	if err := s.lease.Check(0); err != nil {
		return records, err
	}
	if err := s.writer().Append(records); err != nil {
		return records, err
	}
	s.appended += uint64(len(records))
	s.sinceCheckpoint += uint64(len(records))
	n, b := uint64(len(records)), payloadBytes(records)
	s.pool.count(func(st *Stats) { st.Appended += n; st.Bytes += b })
	return records, nil
}

// rotate goes on in a new file if this one has reached the size limit. The ledger goes with it.
func (s *session) rotate(ctx context.Context) error {
	limit := s.pool.cfg.MaxFileBytes
	if limit == 0 || s.writer().Size() < limit {
		return nil
	}
	next, err := s.writer().Rotate(ctx, s.ledger.state())
	if err != nil {
		return err
	}
	s.file.Store(next)
	s.sinceCheckpoint = 0
	s.log.Info().Uint64("index", next.NextIndex()).Str("file", next.Path()).Msg("the file reached its size limit, going on in a new one")
	return nil
}

// tellHeld publishes what is held back, so that the fetch stage reads it again.
func (s *session) tellHeld() {
	first, ok := s.ledger.firstHeld()
	if !ok {
		s.held.Store(nil)
		return
	}
	s.held.Store(&heldState{first: first, overdue: s.ledger.overdue()})
}

// ackStage removes durable messages from the queue, and keeps the registry informed. It never gives up on its own: an
// acknowledgement that cannot be delivered holds the pipeline back, and is given up with the lease or the stop's grace.
func (s *session) ackStage(ctx context.Context, in <-chan group) error {
	tick := time.NewTicker(registryEvery)
	defer tick.Stop()
	var outage outage
	for {
		var g group
		var ok bool
		select {
		case g, ok = <-in:
			if !ok {
				return nil
			}
		case <-tick.C:
			s.updateRegistry(ctx)
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		for ids := range slices.Chunk(g.ids, maxAckIDs) {
			retry := backoff{min: watchMin, max: watchMax}
			for outage.note(&s.log, s.pool.cfg.Queue.Ack(ctx, s.typ, ids), "acknowledge") {
				if err := sleep(ctx, retry.next()); err != nil {
					return err
				}
			}
		}
		s.inflight.add(-g.batches)
	}
}

// finish writes the session's last checkpoint, so that the successor reads one anchor interval and no more.
func (s *session) finish() error {
	if s.sinceCheckpoint == 0 {
		return nil
	}
	return s.writer().Checkpoint(s.ledger.state())
}

// updateRegistry tells the registry how much of the file is durable. It protects against restored old copies, and losing an
// update only weakens that check, so errors are not the session's.
func (s *session) updateRegistry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, registryEvery)
	defer cancel()
	if err := s.writer().UpdateRegistry(ctx); err != nil && ctx.Err() == nil {
		s.log.Debug().Err(err).Msg("registry not updated")
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
type registry struct{ q queue.Queue }

func (r registry) Lookup(ctx context.Context, typ string) (storage.Entry, bool, error) {
	f, ok, err := r.q.File(ctx, typ)
	return entry(f), ok, err
}

func (r registry) Register(ctx context.Context, typ string, e storage.Entry) (storage.Entry, error) {
	f, err := r.q.RegisterFile(ctx, typ, file(e))
	return entry(f), err
}

func (r registry) Succeed(ctx context.Context, typ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	f, ok, err := r.q.SucceedFile(ctx, typ, old, file(e))
	return entry(f), ok, err
}

func (r registry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	return r.q.UpdateFile(ctx, typ, file(e))
}

func entry(f queue.File) storage.Entry {
	return storage.Entry{FileID: f.FileID, Generation: f.Generation, Epoch: f.Epoch, DurableIndex: f.DurableIndex}
}

func file(e storage.Entry) queue.File {
	return queue.File{FileID: e.FileID, Generation: e.Generation, Epoch: e.Epoch, DurableIndex: e.DurableIndex}
}

// recordID reads the message ID of a record. A file of this type that holds other IDs was not written by a worker.
func recordID(r storage.Record) (queue.ID, error) {
	if len(r.ID) != len(queue.ID{}) {
		return queue.ID{}, fmt.Errorf("%w: record %d has an ID of %d bytes, a message ID has %d; this file was not written by a worker",
			storage.ErrIntegrity, r.Index, len(r.ID), len(queue.ID{}))
	}
	return queue.ID(r.ID), nil
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

func payloadBytes(records []storage.Record) (n uint64) {
	for i := range records {
		n += uint64(len(records[i].Payload))
	}
	return n
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
