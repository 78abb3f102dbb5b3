package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"github.com/rs/zerolog"
)

// The file of a session: opened with the lock's token as epoch, checkpointed, rotated, closed.
//
// Opening writes a fence, after which no further record of an earlier holder counts, and replays the
// records after the last checkpoint into the ledger. A checkpoint has the ledger's state; it only
// saves the next holder the replay of earlier records. The append stage writes one when the file is
// due for one, when the ledger has grown by maxGrowth since the last one, and at the end of the session.

// maxGrowth bounds how much the ledger grows between two checkpoints (ledger.Growth). One more batch
// of up to MaxBatch messages may be added, each of which may add several entries. maxReplay bounds the
// growth that a worker accepts after the last checkpoint when it opens a file. It is larger because
// earlier versions wrote checkpoints depending on the size of the file alone.
const (
	maxGrowth  = 100_000
	maxReplay  = 800_000
	maxReasons = 16 << 20 // bytes of reasons kept from skip entries; beyond it dead letters get reasonPutAside
)

const (
	openAttempts    = 5               // attempts to open a file whose epoch is higher than the lock's token
	registryTimeout = 5 * time.Second // for updating the registry of files at the end of a session
)

// fileSink is the sink of a session that appends the messages to the type's file.
type fileSink struct{ *session }

// open opens the file with the token as epoch. If the file has a higher epoch (the lock's collection
// was restored or dropped), the token is raised above it: the file is authoritative.
func (s *session) open(ctx context.Context) error {
	cfg, dest := &s.pool.cfg, &s.pool.dest
	token := s.lease.Token()
	for attempt := 1; ; attempt++ {
		seenAt, err := s.seenAt(ctx)
		if err != nil {
			return err
		}
		fresh := func() *ledger.Ledger {
			l := ledger.New(ledger.Options{GapTimeout: cfg.GapTimeout, DedupeWindow: dest.DedupeWindow, Now: time.Now, Sweep: s.sweeps.Load})
			l.SetClock(seenAt)
			return l
		}
		s.ledger = fresh()
		o := dest.Storage
		o.FS = s.pool.fs
		o.Registry = sessionRegistry{registry{cfg.Queue, s.pool}, s}
		o.Holder = fileHolder(s.pool.instance)
		o.Empty = s.ledger.State()
		var reasons int // bytes of them
		s.reasons = map[queue.ID]string{}
		o.Restore, o.Replay = s.rebuild(s.ledger, func(id queue.ID, payload []byte) {
			if reason := string(payload[:min(len(payload), queue.MaxReason)]); reasons+len(reason) <= maxReasons {
				s.reasons[id], reasons = reason, reasons+len(reason)
			}
		})
		// rule: a writer that is going to be refused leaves no fence at each of its starts, even if only its ledger cannot be rebuilt.
		o.Rehearse = func() (func([]byte) error, func(storage.Record) error) {
			return s.rebuild(fresh(), func(queue.ID, []byte) {})
		}
		w, err := storage.Open(ctx, dest.Dir, s.typ, uint64(token), o)
		s.file.Store(w)
		if err == nil {
			s.ledger.Recall(s.pool.files.recalled(s.typ))
			s.noteFile(w.Path(), w.DurableIndex())
			return nil
		}
		var epoch *storage.EpochError
		if !errors.As(err, &epoch) || attempt == openAttempts {
			return err
		}
		// RaiseToken fails if the lock is lost: then the epoch is the successor's, and the database is fine.
		granted := token
		if token, err = s.lease.RaiseToken(ctx, int64(epoch.InFile)); err != nil {
			return fmt.Errorf("raise the token of type %q above epoch %d: %w", s.typ, epoch.InFile, err)
		}
		s.log.Warn().Uint64("file_epoch", epoch.InFile).Int64("token", granted).Int64("raised", token).
			Msg("the file has a higher epoch than the lock granted, so the lock's token was raised: the database was restored to an earlier state, or workers of another " +
				"database use this directory, too")
	}
}

// rebuild returns the callbacks that rebuild a ledger from the newest file. They call putAside for the skip entries of messages that
// were put aside.
func (s *session) rebuild(l *ledger.Ledger, putAside func(id queue.ID, reason []byte)) (restore func([]byte) error, replay func(storage.Record) error) {
	dir := s.pool.dest.Dir
	restore = func(state []byte) error {
		if err := l.Restore(state); err != nil {
			return fmt.Errorf("the newest file of type %q in %s: %w", s.typ, dir, err)
		}
		return nil
	}
	replay = func(r storage.Record) error {
		if r.Kind == storage.KindLost {
			return nil // a repair gave this record up; its ID is unknown
		}
		id, aside, err := l.Replay(r)
		if aside {
			putAside(id, r.Payload)
		}
		if err == nil && l.Growth() > maxReplay { // rule: a file that no worker writes cannot exhaust a worker's memory
			err = fmt.Errorf("%w: type %q: the newest file in %s has more than %d producers and gaps behind its last checkpoint: workers write one for every %d. "+
				"If an earlier version wrote it, let that version open the file and stop; otherwise restore a copy", storage.ErrIntegrity, s.typ, dir, maxReplay, maxGrowth)
		}
		return err
	}
	return restore, replay
}

// close syncs the file, releases the lock, and only then closes the file. Closing updates the registry
// if the last acknowledgement has not. The next holder waits only for the lock, so it can start meanwhile.
func (s fileSink) close(err error) error {
	s.pool.files.remember(s.typ, s.ledger)
	if err == nil {
		_, err = s.writer().Sync()
	}
	if err == nil {
		// The next holder may start while the durable index of this one is being registered. rule: nothing is written from here on.
		begun, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.lease.Release(begun) // starts the release; unlock calls Release again, and gets the outcome
	}
	// No acknowledged message depends on Close: they are all durable.
	cerr := s.writer().Close()
	if dead := (*storage.PoisonedError)(nil); errors.As(cerr, &dead) {
		// Close does not update the registry for a writer that has failed, but what the writer had
		// synced before is durable.
		ctx, cancel := context.WithTimeout(context.Background(), registryTimeout)
		defer cancel()
		_ = s.writer().UpdateRegistry(ctx) // best effort: no message depends on it
	}
	s.pool.files.sawDurable(s.typ, s.writer().Entry())
	if err == nil && !errors.Is(cerr, storage.ErrFenced) { // the next holder may write to the file before Close has looked at it
		err = cerr
	}
	// A full store poisons the writer, a full disk does not: the remedy is the same.
	if dead := (*storage.PoisonedError)(nil); errors.Is(err, storage.ErrNoSpace) && errors.As(err, &dead) {
		err = dead.Cause
	}
	return err
}

func (s fileSink) describe(e *zerolog.Event) *zerolog.Event {
	return e.Uint64("index", s.writer().NextIndex()).Str("file", s.writer().Path())
}

// writer returns the writer of the current file. A rotation replaces it.
func (s *session) writer() *storage.Writer { return s.file.Load() }

// checkpoint writes the ledger's state into the file, so that the next holder replays only the
// records after it.
func (s *session) checkpoint() error {
	if err := s.writer().Checkpoint(s.ledger.State()); err != nil {
		return err
	}
	s.checkpointed()
	return nil
}

// checkpointed resets the counts that decide when the next checkpoint is due.
func (s *session) checkpointed() {
	s.sinceCheckpoint = 0
	s.ledger.Checkpointed()
}

// rotate continues in a new file if this one has reached its size limit. The new file begins with
// the ledger's state.
func (s *session) rotate(ctx context.Context) error {
	limit := s.pool.dest.MaxBytes
	full := limit > 0 && s.writer().Size() >= limit
	if !full && !s.writer().RotateDue() {
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
	s.log.Info().Uint64("index", next.NextIndex()).Str("file", next.Path()).Msg("the file reached its size limit; continuing in a new one")
	s.emit(Event{Kind: Rotated, Index: next.NextIndex(), Path: next.Path()})
	return nil
}

// noteFile records which file a session has opened, for Status.
func (s *session) noteFile(path string, durable uint64) {
	s.pool.book.note(s.typ, func(r *typeRecord) { r.Path, r.Index = path, durable })
}
