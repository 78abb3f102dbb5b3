package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// Writing. A batch takes effect in two steps, which two goroutines may run concurrently for different
// batches:
//
//	Append: encode ──▶ reserve room ──▶ one write(2) ──▶ did it land where this writer's end was?
//	Sync:   fdatasync ──▶ is the file still as long as this writer left it? ──▶ everything before the call is durable
//
// If the answer to either question is no, another writer has taken over and appended, or the file was
// cut (see endError). Then this writer is poisoned. It does not find out whether its last records count,
// and need not: the next writer reads the file and decides.

// Writer appends to the file of one type. Open returns it.
//
// Typically one goroutine calls Append and Checkpoint, and the same or another goroutine calls Sync, so
// that a batch is written while the previous one is being synced. All methods are safe for concurrent
// use; calls of Append and Checkpoint wait for each other.
//
// A writer is dead ("poisoned") after any I/O error, and after a record landed where it was not
// expected. Then every call returns the same *PoisonedError: do not acknowledge records appended
// since the last successful Sync; call Close, then Open with a new epoch. Errors of category
// ErrLimit and a *NoSpaceError that is not wrapped do not kill the writer.
type Writer struct {
	typ, dir, path string
	fs             FS
	slots          bool // FSType.Slots
	file           File
	header         *fileHeader
	opts           Options
	epoch, session uint64
	fenceOff       int64
	restored       bool
	sealed         sealBody    // found by the scan; used only during Open
	damage         []error     // with Salvage: damage found by the scan, the first errors …
	damaged        uint64      // … the number of all of them …
	retractions    retractions // … and which scanned records do not count
	decoded        bool        // with Salvage: batches that do not decode are in damage
	stateless      bool        // with Salvage: no checkpoint decodes
	registered     uint64      // the durable index in the registry when Open began
	instead        *Entry      // with AcceptLoss: the registered file, of a later generation, which is missing
	given          *GivenUp    // this file replaces a lost one

	appendMu sync.Mutex // one append at a time; taken before mu
	room     int64      // bytes below this offset are reserved
	buf      []byte
	packer   packer
	bodies   *bodyDecoder // while the writer is being opened
	marks    []mark       // sparse index of the batches since the last checkpoint
	latest   int64        // the highest time of all records in the file; timeUnknown if not all times are known

	syncMu sync.Mutex // one sync at a time; taken before mu, never held with appendMu taken after it

	// mu covers a write together with the check where it landed, and the check of the size after a
	// sync: in the middle of a write the size would look as if another writer had appended. It is never
	// held during a sync.
	mu              sync.Mutex
	dead            *PoisonedError
	closed          bool
	closeErr        error
	end             int64 // where the file must end; the next record's offset
	next            uint64
	chain           uint64
	anchor          int64 // last open record or checkpoint
	checkpoint      int64 // last checkpoint, 0 = none
	sinceCheckpoint int64 // offset from which the next Open must read if no checkpoint is added
	batches         int   // number of batches since that offset
	pieces          int   // number of pieces at that time, if the file is InPieces
	stateSize       int64 // size of the last checkpoint that was written, bytes
	durableEnd      int64
	durableIndex    uint64
}

const (
	minRoom = 1 << 20  // reserve at least this many bytes beyond those needed now …
	maxRoom = 64 << 20 // … and at most this many
	markGap = 64 << 10 // minimum number of bytes between two entries of the sparse index

	registryTimeout = 3 * time.Second // for the last update of the registry in Close
)

// Path returns the file's path.
func (w *Writer) Path() string { return w.path }

// FileID returns the file's identity.
func (w *Writer) FileID() FileID { return w.header.fileID }

// NextIndex returns the index of the next record to be appended.
func (w *Writer) NextIndex() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

// DurableIndex returns the index below which every record is durable.
func (w *Writer) DurableIndex() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.durableIndex
}

// Size returns the length of the file in bytes, up to the last record that this writer wrote.
func (w *Writer) Size() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end
}

// Append appends recs as one batch: after a crash either all of them are in the file or none. If it
// returns nil, the batch was written, but it is durable only after a later Sync. Append keeps no
// reference to recs.
//
// A *LimitError, or a *NoSpaceError that is not wrapped, means that nothing was written and the writer
// is unchanged.
func (w *Writer) Append(recs []Record) error {
	if w.opts.Salvage {
		return fmt.Errorf("%w: %s was opened with Salvage, which allows only Compact", ErrRefused, w.path)
	}
	for i := range recs {
		if recs[i].Kind == KindLost {
			return &LimitError{What: "kind", Got: int64(KindLost), Max: int64(KindLost) - 1, Record: i}
		}
	}
	return w.append(recs)
}

// Idle gives back the memory that Append and Checkpoint keep for the next call. Call it for a writer that
// will have nothing to write for a while: there may be thousands of them.
func (w *Writer) Idle() {
	w.appendMu.Lock()
	defer w.appendMu.Unlock()
	w.forgetBuffers()
}

// append implements Append for records of any kind.
func (w *Writer) append(recs []Record) error {
	w.appendMu.Lock()
	defer w.appendMu.Unlock()
	if err := w.usable(); err != nil || len(recs) == 0 {
		return err
	}
	size, headers, err := checkRecords(recs)
	if err != nil {
		return err
	}
	h := w.head(kindBatch)
	h.count, h.baseTime = uint32(len(recs)), recs[0].Time
	if headers {
		h.flags |= flagHeaders
	}
	b := w.buffer(recHeaderSize + size + recAlign)
	defer w.release()
	n := encodeRecords(b[recHeaderSize:], recs, h.baseTime, headers)
	h.headerLen, h.storedLen, h.rawLen = recHeaderSize, uint32(n), uint32(n)
	if w.opts.Compress {
		if packed, ok := w.packer.pack(b[recHeaderSize : recHeaderSize+n]); ok {
			n = copy(b[recHeaderSize:], packed)
			h.storedLen, h.flags = uint32(n), h.flags|codecZstd
		}
	}
	b = b[:h.size()]
	clear(b[recHeaderSize+n:])
	h.encode(w.header, b)
	w.noteTimes(recs)
	return w.land("append", b, &h)
}

// CheckpointDue reports whether a checkpoint should be written now, so that the next Open has
// little to read.
func (w *Writer) CheckpointDue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.batches > 0 && (w.end-w.sinceCheckpoint >= w.opts.CheckpointBytes || w.batches >= w.opts.CheckpointBatches || w.piecesDue())
}

// Checkpoint writes a checkpoint with the caller's state, at most MaxState bytes, which must
// represent every record appended so far: the next Open passes it to Restore instead of those
// records. Checkpoint first makes them durable, with a Sync if necessary. The checkpoint itself is
// durable after the next Sync.
func (w *Writer) Checkpoint(state []byte) error {
	w.appendMu.Lock()
	defer w.appendMu.Unlock()
	return w.writeCheckpoint(state)
}

// writeCheckpoint is Checkpoint while appendMu is held.
func (w *Writer) writeCheckpoint(state []byte) error {
	if err := w.usable(); err != nil {
		return err
	}
	if len(state) > MaxState {
		return &LimitError{What: "checkpoint state in bytes", Got: int64(len(state)), Max: MaxState, Record: -1}
	}
	// rule: write a checkpoint only when everything before it is durable: a scan that starts at it reads nothing before it.
	if _, err := w.Sync(); err != nil {
		return err
	}
	h := w.head(kindCheckpoint)
	h.baseTime = w.latest
	defer w.release()
	body := appendCheckpoint(w.buffer(len(state) + 64 + 30*len(w.marks))[:0], w.checkpoint, w.marks, state)
	if len(body) > MaxBatchBytes {
		body = appendCheckpoint(body[:0], w.checkpoint, nil, state) // marks are hints
	}
	return w.land("checkpoint", encodeAnchor(w.header, &h, body), &h)
}

// Sync makes everything that was appended before the call durable, and returns the index below
// which every record is durable and not fenced off: these, and only these, may be acknowledged. It
// may run concurrently with Append.
func (w *Writer) Sync() (next uint64, err error) {
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	w.mu.Lock()
	end, next, pending, err := w.end, w.next, w.end != w.durableEnd, w.usableLocked()
	w.mu.Unlock()
	if err != nil {
		return 0, err
	}
	syncErr, named := w.datasync(pending)
	w.mu.Lock()
	defer w.mu.Unlock()
	if moved, ok := errors.AsType[*MovedError](syncErr); ok {
		// rule: a file that buffers appended bytes reports at the sync that it was fenced off.
		return 0, w.poison("sync", &FencedError{Path: w.path, Op: "sync", Expected: moved.At, Found: moved.End})
	}
	if syncErr != nil {
		return 0, w.poison("sync", ioError("fdatasync", w.path, syncErr))
	}
	if err := w.usableLocked(); err != nil {
		return 0, err
	}
	if err := w.checkFile("sync", named); err != nil {
		return 0, err
	}
	w.durableEnd, w.durableIndex = end, next
	return next, nil
}

// datasync makes the file durable if pending is set, and calls checkName.
func (w *Writer) datasync(pending bool) (err, named error) {
	if w.slots {
		// In a store the check is a round trip, so it runs while the slot is created. The name may be removed between the check
		// and the acknowledgement either way; the next Sync detects that.
		asked := make(chan error, 1)
		go func() { asked <- w.checkName() }()
		defer func() { named = <-asked }()
	}
	if pending {
		// rule: any error is final. The pages that were not written are marked clean; a second fdatasync would succeed.
		err = w.file.Datasync()
	}
	if !w.slots && err == nil {
		named = w.checkName()
	}
	return err, named
}

// checkName checks whether the path still names the open file. In a store that takes a request, so mu
// is not held.
func (w *Writer) checkName() error {
	info, err := w.file.Stat()
	if err != nil {
		return ioError("stat", w.path, err)
	}
	return checkNamed(w.fs, w.path, info)
}

// checkFile checks whether the file still belongs to this writer: whether it was fenced off, cut, or
// replaced by another file (named, the result of checkName). mu is held.
func (w *Writer) checkFile(op string, named error) error {
	info, err := w.file.Stat()
	switch {
	case err != nil:
		return w.poison(op, ioError("stat", w.path, err))
	case info.Size != w.end:
		// rule: acknowledge nothing if the size changed. The error of this writer's sync may have been reported to the other writer's
		// descriptor (a journal abort on ext4 is); only the records that the successor reads back count.
		return w.poison(op, w.endError(op, w.end, info.Size, info.Size))
	}
	// rule: acknowledge nothing in a file that the path does not name. In a file that was moved, removed or replaced, appends
	// land exactly where they are expected, but no reader finds them.
	if named != nil {
		return w.poison(op, named)
	}
	return nil
}

// endError returns the error that explains why the file ends at found and not at expected; limit is where
// it ended before this writer appended. mu is held.
//
// rule: a file that is shorter than its durable end was cut, and has lost messages. No other writer did that: its fence makes the file
// longer. A writer that opened the file again would reuse the indexes of the lost messages.
func (w *Writer) endError(op string, expected, found, limit int64) error {
	if w.slots {
		// A store reports an unexpected end only if another writer created a slot there. Slots do not become shorter; the bytes
		// that this writer appended but has not yet created as a slot are dropped.
		return &FencedError{Path: w.path, Op: op, Expected: w.durableEnd, Found: max(limit, w.durableEnd)}
	}
	if limit >= w.durableEnd {
		return &FencedError{Path: w.path, Op: op, Expected: expected, Found: found}
	}
	e := &CutError{Path: w.path, Op: op, Durable: w.durableEnd, Found: limit, LostNext: w.durableIndex}
	l := Link{Path: w.path}
	e.Unknown = l.readEnd(w.file, w.header, limit) != nil
	e.LostFirst = min(l.Next, e.LostNext)
	return e
}

// Close makes appended records durable, updates the registry, and closes the file. It writes no
// checkpoint, which would need the caller's state. On a dead writer it only closes the file and
// returns the *PoisonedError. Later calls return the first result; every other method returns
// ErrClosed (or still the *PoisonedError).
//
// Space reserved beyond the end of the file stays reserved for the next writer. It cannot be
// released: between reading the size and truncating to it, a successor's fence could land, and would
// be cut off.
func (w *Writer) Close() error {
	w.appendMu.Lock()
	defer w.appendMu.Unlock()
	w.mu.Lock()
	closed, dead := w.closed, w.dead
	w.mu.Unlock()
	if closed {
		return w.closeErr
	}
	var err error
	if dead != nil {
		err = dead
	} else if _, err = w.Sync(); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), registryTimeout)
		err = w.UpdateRegistry(ctx)
		cancel()
		// A successor of this file may have been registered since the sync, by the next holder of
		// the lock.
		if other := (*RegistryMismatch)(nil); errors.As(err, &other) && other.Registered.Generation > w.header.generation {
			err = nil
		}
	}
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if cerr := w.file.Close(); err == nil {
		err = ioError("close", w.path, cerr)
	}
	w.closeErr, w.marks = err, nil
	w.forgetBuffers()
	return err
}

// usable returns the error of a dead or closed writer.
func (w *Writer) usable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.usableLocked()
}

// usableLocked is usable with mu held.
func (w *Writer) usableLocked() error {
	switch {
	case w.dead != nil:
		return w.dead
	case w.closed:
		return ErrClosed
	}
	return nil
}

// poison marks this writer as dead and returns its *PoisonedError. mu is held. The descriptor stays open
// until Close, because a sync in another goroutine may be using it.
func (w *Writer) poison(op string, cause error) error {
	if w.dead == nil {
		w.dead = &PoisonedError{Path: w.path, Op: op, Cause: cause}
	}
	return w.dead
}

// head returns the header of the next record, with the fields that do not depend on its content.
func (w *Writer) head(k recKind) recHeader {
	w.mu.Lock()
	defer w.mu.Unlock()
	return recHeader{kind: k, offset: w.end, epoch: w.epoch, session: w.session, base: w.next, durableEnd: w.durableEnd,
		anchorOff: w.anchor, chain: w.chain}
}

// land appends the encoded record b, and checks that it landed at this writer's end. appendMu is held,
// unless w is still being opened.
func (w *Writer) land(op string, b []byte, h *recHeader) error {
	if err := w.reserve(h.offset, len(b)); err != nil {
		if errors.Is(err, ErrNoSpace) {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.poison(op, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usableLocked(); err != nil {
		return err
	}
	// rule: one write(2), no loop: after a short write another writer's bytes could land in between.
	n, end, err := w.file.Append(b)
	switch {
	case err != nil && isNoSpace(err):
		return w.poison(op, noSpace(w.path, int64(len(b)), err))
	case err != nil:
		return w.poison(op, ioError("append to", w.path, err))
	case end != h.offset+int64(n):
		// rule: a record that did not land at its intended offset is void for every reader.
		return w.poison(op, w.endError(op, h.offset+int64(n), end, end-int64(n)))
	case n != len(b):
		return w.poison(op, &ShortWriteError{Offset: h.offset, Want: len(b), Wrote: n})
	}
	w.end = h.end()
	w.chain = h.link()
	switch h.kind {
	case kindBatch:
		w.next += uint64(h.count)
		w.noteBatch(h)
	case kindCheckpoint:
		w.checkpoint, w.anchor, w.stateSize = h.offset, h.offset, int64(h.rawLen)
		w.noteCheckpoint(h.end())
	case kindOpen:
		w.anchor = h.offset
	}
	return nil
}

// noteBatch counts a batch towards the next checkpoint, and adds a mark to the sparse index if one is due.
func (w *Writer) noteBatch(h *recHeader) {
	w.batches++
	if k := len(w.marks); k == 0 || h.offset-w.marks[k-1].offset >= markGap {
		w.marks = append(w.marks, mark{index: h.base, offset: h.offset, time: h.baseTime})
	}
}

// noteTimes updates latest for records that are in the file, or about to be.
func (w *Writer) noteTimes(recs []Record) {
	// rule: an unknown time stays unknown: a reader with Since skips the records before a checkpoint with an earlier highest
	// time.
	for i := range recs {
		if w.latest != timeUnknown {
			w.latest = max(w.latest, recs[i].Time)
		}
	}
}

// noteCheckpoint resets the counts for the next checkpoint; end is the offset after the current one. mu is held.
func (w *Writer) noteCheckpoint(end int64) {
	w.batches, w.sinceCheckpoint, w.marks = 0, end, w.marks[:0]
	if f, ok := w.file.(InPieces); ok {
		w.pieces = f.Pieces()
	}
}

// reserve reserves space for n bytes at off, so that a full disk is detected before a single byte of a
// record is written. It reserves ahead, in proportion to the size of the file.
func (w *Writer) reserve(off int64, n int) error {
	need := off + int64(n)
	if need <= w.room {
		return nil
	}
	ahead := min(max(off/4, minRoom), maxRoom)
	err := w.file.Allocate(off, int64(n)+ahead)
	if err != nil && isNoSpace(err) {
		ahead = 0
		err = w.file.Allocate(off, int64(n))
	}
	switch {
	case err == nil:
		w.room = need + ahead
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		w.room = math.MaxInt64 // the write itself detects a full disk; a short write leaves a torn tail and poisons
		return nil
	case isNoSpace(err):
		return noSpace(w.path, int64(n), err)
	default:
		return ioError("reserve room in", w.path, err)
	}
}
