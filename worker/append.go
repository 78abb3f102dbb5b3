package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// The append stage of a session with a file: it turns fetched batches into durable records.
//
//	fetch.go ──batch──▶ ledger: is it new? ──▶ filter ──▶ write ──▶ one fsync for all that is ready ──▶ dead letters ──group──▶ ack.go
//
// A message that the ledger or the filter refuses is not in the file, but its number may be, in a
// skip entry: see deadletter.go.

// stage runs the append stage. At the end of the session it then writes a checkpoint, so that the next
// holder need not replay these records. Meanwhile the ack stage acknowledges the last messages.
func (s fileSink) stage(ctx context.Context, in <-chan batch, out chan<- group) error {
	if err := s.appendStage(ctx, in, out); err != nil {
		return err
	}
	if s.resting {
		s.writer().Idle()
		return ctx.Err()
	}
	if s.sinceCheckpoint == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	return s.checkpoint()
}

// appendStage turns fetched batches into durable records. All batches that are ready share one
// fsync.
func (s *session) appendStage(ctx context.Context, in <-chan batch, out chan<- group) (err error) {
	defer s.giveMemory()
	defer func() { s.endTrace(withCause(ctx, err)) }()
	var records []storage.Record
	for next := range in {
		index := s.writer().NextIndex()
		var done group
		if records, err = s.appendReady(ctx, next, in, records, &done); err != nil {
			return err
		}
		s.tellHeld()
		if err := s.makeDurable(ctx, index, &done); err != nil {
			return err
		}
		s.giveMemory()
		// rule: refused messages are buried before they are acknowledged, and after their skip entries are durable.
		if err := s.buryRefused(ctx); err != nil {
			return err
		}
		if err := sendGroup(ctx, out, done); err != nil {
			return err
		}
	}
	return nil
}

// appendReady appends the batch next, and the batches after it that are ready. It adds the messages that
// they settle to done, and returns records, emptied, so that its memory can be reused.
func (s *session) appendReady(ctx context.Context, next batch, in <-chan batch, records []storage.Record, done *group) (_ []storage.Record, err error) {
	for {
		s.memory = append(s.memory, next.memory)
		// rule: the records after a checkpoint never exceed what a worker accepts when it opens the file.
		if s.ledger.Growth() >= maxGrowth {
			if err := s.checkpoint(); err != nil {
				return records, err
			}
		}
		if records, err = s.appendBatch(ctx, next.msgs, records[:0], done); err != nil || len(done.ids) >= maxAckIDs {
			return records, err
		}
		select {
		case another, open := <-in:
			if !open {
				return records, nil
			}
			next = another
		default:
			return records, nil
		}
	}
}

// makeDurable syncs the records from index on. Then it writes a checkpoint and rotates the file, each only
// if it is due.
func (s *session) makeDurable(ctx context.Context, index uint64, done *group) error {
	if s.writer().NextIndex() == index {
		if len(done.ids) == 0 {
			return nil
		}
		// rule: copies, too, are acknowledged only while the path names the file that has their originals. This Sync writes nothing.
		_, err := s.writer().Sync()
		return err
	}
	// rule: fsync before ack.
	// rule: a duplicate waits for the fsync too: its first copy may be in this group.
	began := time.Now()
	durable, err := s.writer().Sync()
	s.observe(StepSync, began, int(s.writer().NextIndex()-index), err)
	if err != nil {
		return err
	}
	s.endTrace(nil)
	if n, b := s.unsynced, s.unsyncedBytes; n > 0 {
		s.appended, s.unsynced, s.unsyncedBytes = s.appended+n, 0, 0
		s.count(func(st *Stats) { st.Appended += n; st.Bytes += b })
		s.emit(Event{Kind: Committed, Messages: int(n), Index: durable})
	}
	if s.writer().CheckpointDue() {
		if err := s.checkpoint(); err != nil {
			return err
		}
	}
	return s.rotate(ctx)
}

// appendBatch consults the ledger about every message of one fetched batch and writes the admitted ones
// as one record batch, without a sync. It returns records, emptied, so that its memory can be reused.
func (s *session) appendBatch(ctx context.Context, batch []queue.Message, records []storage.Record, done *group) ([]storage.Record, error) {
	// rule: an idle session keeps nothing of its last batch
	defer func() { clear(records) }()
	seenAt, err := s.seenAt(ctx)
	if err != nil {
		return records, err
	}
	s.ledger.SetClock(seenAt)
	done.batches++
	records, due, err := s.judge(batch, records, done)
	if err != nil {
		return records, err
	}
	s.trimLedger(len(done.ids) > 0)
	if err := s.buryReused(ctx); err != nil {
		return records, err
	}
	if len(records) == 0 {
		return records, nil
	}
	// Checking the lease saves a useless write, nothing more. A write after the lease has expired is
	// harmless: the successor's fence makes it void.
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
	s.unsynced, s.unsyncedBytes = s.unsynced+n, s.unsyncedBytes+b
	return records, nil
}

// judge adds the records of the admitted messages of a batch to records, and returns these messages as due. Those that the file is not to
// contain get a skip entry.
func (s *session) judge(batch []queue.Message, records []storage.Record, done *group) (_ []storage.Record, due []*queue.Message, err error) {
	due = make([]*queue.Message, 0, len(batch))
	records, done.ids = slices.Grow(records, len(batch)), slices.Grow(done.ids, len(batch))
	unwanted := s.filter(batch)
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
		if unwanted != nil && unwanted[i] != nil {
			if p, ok := errors.AsType[*PanicError](unwanted[i]); ok && s.pool.cfg.OnError == Block {
				return records, nil, fmt.Errorf("filter message %s: %w\n%s", m.ID, unwanted[i], p.Stack)
			}
			s.refuse(&records[len(records)-1], m, unwanted[i])
			continue
		}
		s.ledger.Remember(m)
	}
	return records, due, nil
}

// admit consults the ledger about one fetched message. ok means that the message is to be appended (as
// kind) or handled now. Otherwise it waits in the queue, or is a copy, which is acknowledged with done,
// or will become a dead letter (s.refused).
func (s *session) admit(m *queue.Message, done *group) (kind storage.Kind, ok bool) {
	switch s.ledger.Admit(m) {
	case ledger.Hold:
		if why := m.Unfit(); why != "" { // rule: a message that cannot be appended is never skipped silently
			s.noteUnfit(unfitKey{id: m.ID}, why)
		}
		return 0, false
	case ledger.Duplicate:
		s.duplicates++
		s.count(func(st *Stats) { st.Duplicates++ })
		done.ids = append(done.ids, m.ID)
		return 0, false
	case ledger.Reused:
		s.log.Warn().Stringer("id", m.ID).Msg("the number of this message is in use for an earlier one: was the database, or a producer's --resume file, restored to an earlier state?")
		s.refused = append(s.refused, queue.DeadLetter{Message: *m, Reason: reasonReused, Attempts: 1})
		return 0, false
	case ledger.PutAside:
		reason, known := s.reasons[m.ID]
		if !known {
			reason = reasonPutAside
		}
		s.refused = append(s.refused, queue.DeadLetter{Message: *m, Reason: reason, Attempts: 1})
		return 0, false
	case ledger.AppendAfterGap:
		s.gaps++
		s.count(func(st *Stats) { st.Gaps++ })
		gap := s.ledger.LastGap()
		s.log.Warn().Stringer("id", m.ID).Uint64("gone", gap.Gone).Uint64("not_appendable", gap.Unfit).Msg(gap.String())
		return storage.KindAfterGap, true
	case ledger.AppendLate:
		s.log.Warn().Stringer("id", m.ID).Msg("appending a late message: it was missing when later ones of its producer were appended")
		return storage.KindAfterGap, true
	}
	return storage.KindMessage, true
}

// skipCopy makes r a skip entry if the file already has m under another ID: a message with the same
// idempotency key, or an earlier promotion of the same delayed message.
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

// filter returns the errors of Files.Filter for the messages of a batch, nil if there is no filter. A panic in it becomes a PanicError. The messages share a
// goroutine, because one for each would cost more than most filters do.
func (s *session) filter(batch []queue.Message) []error {
	f := s.pool.dest.Filter
	if f == nil {
		return nil
	}
	errs := make([]error, len(batch))
	for i := 0; i < len(batch); i++ {
		err := guard(func() error {
			for ; i < len(batch); i++ {
				errs[i] = f(batch[i])
			}
			return nil
		})
		if err != nil {
			errs[i] = err // of the message that ended the goroutine; those after it get another one
		}
	}
	return errs
}

// write appends the records of msgs as one batch, or as several if one is too large for the file. A
// message that the file can never take becomes a skip entry, or with OnError Block an error.
func (s *session) write(records []storage.Record, msgs []*queue.Message) error {
	for {
		err := s.writer().Append(records)
		var limit *storage.LimitError
		switch {
		case !errors.As(err, &limit):
			return err
		case limit.Record < 0 && len(records) > 1: // the batch is too large: a fetch does not count all that a record needs
			mid := len(records) / 2
			if err := s.write(records[:mid], msgs[:mid]); err != nil {
				return err
			}
			records, msgs = records[mid:], msgs[mid:]
		case limit.Record < 0 || records[limit.Record].Kind == storage.KindSkipped:
			return err
		case s.pool.cfg.OnError == Block:
			return &BlockedError{msgs[limit.Record].ID, err}
		default:
			s.refuse(&records[limit.Record], msgs[limit.Record], err)
		}
	}
}

// trimLedger makes the ledger forget old entries when it has more than a checkpoint can hold, and
// warns if they are forgotten early; for keys, loose messages and producers only once per session. settled
// is as in sweepAgain.
func (s *session) trimLedger(settled bool) {
	early := s.ledger.TrimHistory()
	if early.Skipped {
		s.log.Warn().Int("ranges", ledger.MaxSkipped).Msg("more messages were put aside out of order than the file remembers: the oldest are forgotten, and would be " +
			"taken for copies of messages in the file if the database were restored to a time before they were put aside")
	}
	if early.Delayed {
		s.log.Warn().Int("delayed", ledger.MaxDelayed).Msg("more delayed messages out of order than the file remembers: the oldest are forgotten, and would be " +
			"appended again if the database were restored to a time before their promotion")
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
	s.trimLoose(settled)
	s.trimProducers(settled, "more producers than the file remembers: those that have been silent for longest are forgotten early. If a forgotten producer repeats "+
		"an appended message, it is appended twice; if it publishes a new one, that waits for the gap timeout")
}

// sweepAgain requests a full sweep, which shows what else can be forgotten. settled means that the last batch has settled messages.
//
// rule: after a batch of messages that only wait, the walk goes on. Otherwise it would never reach those behind them.
func (s *session) sweepAgain(settled bool) {
	if settled {
		s.sweepNow.Store(true)
	}
}

// trimProducers bounds how many producers the ledger remembers, and warns once per session if some are forgotten early.
func (s *session) trimProducers(settled bool, warning string) {
	forgotten, full := s.ledger.TrimProducers()
	if full {
		s.sweepAgain(settled)
	}
	if forgotten == 0 {
		return
	}
	s.count(func(st *Stats) { st.Forgotten += uint64(forgotten) })
	if !s.producersFull {
		s.producersFull = true
		_, most := s.ledger.Load()
		s.log.Warn().Int("max", most).Msg(warning)
	}
}

// trimLoose bounds how many loose messages the ledger remembers.
func (s *session) trimLoose(settled bool) {
	forgotten, full := s.ledger.TrimLoose()
	if full {
		s.sweepAgain(settled)
	}
	if forgotten > 0 && !s.looseFull && s.pool.toFiles() {
		s.looseFull = true
		s.log.Warn().Int("max", ledger.MaxLoose).Msg("more messages of transactions within the retention than the file remembers: the oldest are forgotten early, and would be " +
			"appended again if the database were restored to a time before they were appended")
	}
}

// tellHeld tells the fetch stage which messages a gap holds back, so that it reads them again.
func (s *session) tellHeld() { s.held.Store(s.ledger.Held()) }

// trace calls Files.Trace for a batch, and keeps the function that it returns for endTrace.
func (s *session) trace(ctx context.Context, msgs []*queue.Message) {
	if f := s.pool.dest.Trace; f != nil {
		if done := f(ctx, s.lease, msgs); done != nil {
			s.traced = append(s.traced, done)
		}
	}
}

// endTrace reports the outcome of all batches since the last call: durable (nil), or an error.
func (s *session) endTrace(err error) {
	for _, done := range s.traced {
		done(err)
	}
	s.traced = s.traced[:0]
}

// recordTime returns the time of a message for its record, in ns since 1970. Times beyond the year 2262
// do not fit and become that limit.
func recordTime(id queue.ID) int64 {
	return min(id.Time().UnixMilli(), math.MaxInt64/int64(time.Millisecond)) * int64(time.Millisecond)
}

// headers returns the headers sorted by key, so that the same message always gives the same bytes.
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

// BlockedError is the error of a type whose next message the file cannot take while Config.OnError is
// Block. All later messages of the type wait.
type BlockedError struct {
	ID    queue.ID
	Cause error
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("the file cannot take message %s, which blocks its type: %v", e.ID, e.Cause)
}

func (e *BlockedError) Unwrap() error { return e.Cause }
