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
// To open it writes a fence, so from then on no record of an earlier holder counts, and reads what
// is behind the last checkpoint into the ledger. A checkpoint holds the ledger's state and only
// saves the next holder that reading. The append stage writes one when the file says that it is
// time, before the ledger has grown by more than a holder may have to read, and at the end.

// What a worker adds to its ledger between two checkpoints, see ledger.growth, before a batch of
// MaxBatch messages at most comes on top, each of which may be a new producer's, delayed, behind a
// gap and put aside. And what it takes in from behind the last one when it opens a file: earlier
// versions wrote checkpoints by the size of the file alone.
const (
	maxGrowth  = 100_000
	maxReplay  = 800_000
	maxReasons = 16 << 20 // bytes of the reasons of messages put aside; a message without one gets reasonPutAside
)

const (
	openAttempts    = 5               // how often a token is raised above a file that has seen a higher epoch
	registryTimeout = 5 * time.Second // for what a session tells the registry of files at its end
)

// fileSink appends the messages to the type's file.
type fileSink struct{ *session }

// open opens the file with the token as epoch. A file that has seen a higher epoch (the lock's
// collection was restored or dropped) raises the token: the file is the judge.
func (s *session) open(ctx context.Context) error {
	cfg, dest := &s.pool.cfg, &s.pool.dest
	token := s.lease.Token()
	reasons := 0 // bytes of them
	for attempt := 1; ; attempt++ {
		s.ledger = ledger.New(ledger.Options{GapTimeout: cfg.GapTimeout, DedupeWindow: dest.DedupeWindow, Now: time.Now, Sweep: s.sweeps.Load})
		seenAt, err := s.seenAt(ctx)
		if err != nil {
			return err
		}
		s.ledger.SetClock(seenAt)
		o := dest.Storage
		o.FS = s.pool.fs
		o.Registry = registry{cfg.Queue, s.pool}
		o.Holder = fileHolder(s.pool.instance)
		o.Empty = s.ledger.State()
		o.Restore = func(state []byte) error {
			if err := s.ledger.Restore(state); err != nil {
				return fmt.Errorf("the newest file of type %q in %s: %w", s.typ, dest.Dir, err)
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
					"If an earlier version wrote it, let that version open the file and stop; otherwise restore a copy", storage.ErrIntegrity, s.typ, dest.Dir, maxReplay, maxGrowth)
			}
			return err
		}
		s.reasons, reasons = map[queue.ID]string{}, 0
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
		s.log.Warn().Uint64("file_epoch", epoch.InFile).Int64("token", token).
			Msg("the file has seen a higher epoch than the lock grants, raising the lock's token: the database was set back, or workers of another " +
				"database use this directory, too")
		if token, err = s.lease.RaiseToken(ctx, int64(epoch.InFile)); err != nil {
			return fmt.Errorf("raise the token of type %q above epoch %d: %w", s.typ, epoch.InFile, err)
		}
	}
}

// close syncs what is written, gives the lock back, and only then closes the file and tells the
// registry how far it came. The next holder waits for the lock and for nothing else, so it can
// begin while the registry is being told.
func (s fileSink) close(err error) error {
	s.pool.files.remember(s.typ, s.ledger)
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
	s.pool.files.sawDurable(s.typ, s.writer().Entry())
	if cerr != nil && err == nil {
		err = cerr
	}
	return err
}

func (s fileSink) describe(e *zerolog.Event) *zerolog.Event {
	return e.Uint64("index", s.writer().NextIndex()).Str("file", s.writer().Path())
}

// writer is the file that is written to now.
func (s *session) writer() *storage.Writer { return s.file.Load() }

// checkpoint saves the next holder the reading of what is before it.
func (s *session) checkpoint() error {
	if err := s.writer().Checkpoint(s.ledger.State()); err != nil {
		return err
	}
	s.checkpointed()
	return nil
}

// checkpointed begins the counts anew that decide when the next checkpoint is due.
func (s *session) checkpointed() {
	s.sinceCheckpoint = 0
	s.ledger.Checkpointed()
}

// rotate goes on in a new file if this one has reached its limits. The ledger goes with it.
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

// noteFile tells which file a session has opened.
func (s *session) noteFile(path string, durable uint64) {
	s.pool.book.note(s.typ, func(r *typeRecord) { r.Path, r.Index = path, durable })
}
