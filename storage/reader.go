package storage

import (
	"errors"
	"io"
	"math"
	"slices"
	"time"
)

// Reading. A Reader runs the same scan as a Writer that takes over (scan.go), from the start of the
// file or from the last checkpoint before the first requested record, and decodes the accepted
// batches. Records that it returns are accepted now; those below DurableEnd are final.
//
//	OpenReader ──▶ NextBatch … NextBatch ──▶ io.EOF ──the file grows──▶ NextBatch …
//	                 └ *CorruptError, *RetractedError: once, at the damage; the next call continues after it

// ReaderOptions are the options of OpenReader. The zero value reads everything.
type ReaderOptions struct {
	FS   FS     // defaults to OS()
	From uint64 // index of the first record to return, or the file's first if that is higher; opening there reads at most one additional checkpoint interval

	// Since omits records whose time is before it; zero = none. The reader starts at the last
	// checkpoint that is preceded only by earlier records. As with From, it does not notice damage
	// before its start.
	Since time.Time

	// Durable makes the reader return only durable, and therefore final, records: it syncs the file
	// itself, and reads recent records from the device. It requires Linux.
	Durable bool
}

// Reader returns the records of a file in order. The file may be written to meanwhile.
//
// Unless it was opened with Durable, it returns everything accepted now, including records that are
// not durable yet: those at or above DurableEnd may still be lost in a crash, and their indexes
// reused. If a Reader has returned such records, it reports the loss with a *RetractedError.
//
// A Reader is not safe for concurrent use.
type Reader struct {
	path   string
	file   File
	scan   *scanner
	sync   bool // sync the file before reading: ReaderOptions.Durable
	from   uint64
	since  int64 // nanoseconds since 1970; noTime = from the start
	bodies bodyDecoder
	left   []Record // records of the last piece that Next has not returned yet
	at     recHeader
	seal   *SealedError

	ended bool // the scan has reached its limit

	restore func(state []byte) error // if not nil: called with the state of the next checkpoint
}

// OpenReader opens the file at path for reading. It fails with an error of category ErrRefused or
// ErrIntegrity if the file's header is unusable.
func OpenReader(path string, o ReaderOptions) (*Reader, error) {
	o.FS = orOS(o.FS)
	f, err := o.FS.Open(path, ModeRead)
	if err != nil {
		return nil, ioError("open", path, err)
	}
	r := &Reader{path: path, file: f, sync: o.Durable, from: o.From, since: sinceNs(o.Since)}
	if err := r.init(o); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func (r *Reader) init(o ReaderOptions) error {
	h, err := readFileHeader(r.path, r.file)
	if err != nil {
		return err
	}
	info, err := r.file.Stat()
	if err != nil {
		return ioError("stat", r.path, err)
	}
	r.scan = newScanner(r.path, r.file, h, info.Size)
	if r.sync {
		if err := r.settle(); err != nil {
			return err
		}
		// Everything before a checkpoint was durable when it was written. lastCheckpoint drops the
		// rest from the page cache, so it is read again.
		if _, err := r.scan.lastCheckpoint(r.dropCache); err != nil {
			return err
		}
	}
	return r.start()
}

// settle makes the content of the file durable.
func (r *Reader) settle() error { return ioError("sync", r.path, r.file.Datasync()) }

// dropCache makes the next reads come from the device. If another process's sync failed, the page cache
// shows data that the device does not have, and this descriptor gets no error.
func (r *Reader) dropCache(off, n int64) error {
	return ioError("drop the page cache of", r.path, r.file.DropCache(off, n))
}

// sinceNs returns t in nanoseconds since 1970, or the nearest value that fits.
func sinceNs(t time.Time) int64 {
	switch {
	case t.IsZero() || t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// start positions the scanner as close as possible before the first requested record: at a checkpoint,
// or at a batch that the marks of a checkpoint name.
func (r *Reader) start() error {
	if r.from <= r.scan.header.firstIndex && r.since == noTime {
		return nil
	}
	return r.scan.startBefore(r.from, r.since)
}

// startBefore moves the scanner forward to the last checkpoint that is preceded only by records below
// index, or only by records older than since. From there, or from the start, it moves on to the last
// batch at or before index that the marks of the next checkpoint name.
func (s *scanner) startBefore(index uint64, since int64) error {
	off, err := s.lastCheckpoint(func(int64, int64) error { return nil })
	s.walking = true
	defer func() { s.walking = false }()
	var marks []byte // of the checkpoint after the one at off
	for err == nil && off != 0 {
		s.affords(min(walkStep, s.limit-off)) // the bytes read to look there, even for a small checkpoint
		h, body, v, rerr := s.recordAt(off)
		if rerr != nil {
			return rerr
		}
		if v != whole || h.kind != kindCheckpoint {
			return nil // damaged, or the budget is exhausted: the scan from the start reports the problem
		}
		if h.base <= index || h.baseTime != timeUnknown && h.baseTime < since {
			if off > s.pos {
				_, err = s.startAt(off)
			}
			break
		}
		c, derr := decodeCheckpoint(body)
		if derr != nil || c.prevCheckpoint >= off {
			return undecodable(s.path, h)
		}
		marks, off = append(marks[:0], c.marks...), c.prevCheckpoint
	}
	if err != nil {
		return err
	}
	return s.startAtMark(marks, index)
}

// startAtMark moves the scanner forward to the last batch at or before index in marks, if that batch is
// present and proven to be part of the view. Otherwise the scanner does not move; it then reads more, and
// reports any damage.
func (s *scanner) startAtMark(marks []byte, index uint64) error {
	m := lastMark(marks, index)
	if m.offset <= s.pos {
		return nil
	}
	return s.startAtBatch(&m)
}

// NextBatch returns the records of the next batch, at least one. They, and the memory they point to,
// are valid until the next call. A batch with very many records or headers is returned in several
// pieces, to bound memory: see FORMAT.md, section 5.
//
// At the end it returns io.EOF: an incomplete batch, which is being written or whose writer died,
// does not count. Call NextBatch again later to read records appended since.
//
// It returns a *CorruptError or *RetractedError once, at the damage; the next call continues after
// it. If the file became shorter than it was, there is nothing to continue with, and every call
// returns the same *CorruptError.
func (r *Reader) NextBatch() ([]Record, error) {
	if r.file == nil {
		return nil, ErrClosed
	}
	r.left = nil
	for {
		for recs := r.bodies.next(); len(recs) > 0; recs = r.bodies.next() {
			if recs = r.wanted(recs); len(recs) > 0 {
				r.at = r.bodies.head
				return recs, nil
			}
		}
		it, err := r.step()
		switch {
		case err != nil:
			return nil, err
		case it.kind == itemDamage:
			return nil, it.err
		case it.kind != itemRecord:
		case it.head.kind != kindBatch:
			if err := r.noteAnchor(it); err != nil {
				return nil, err
			}
		case it.head.base+uint64(it.head.count) > r.from:
			if err := r.bodies.begin(r.path, it); err != nil {
				return nil, err
			}
		}
	}
}

// wanted returns the requested records among recs: see ReaderOptions.From and Since.
func (r *Reader) wanted(recs []Record) []Record {
	if first := recs[0].Index; r.from > first {
		recs = recs[min(r.from-first, uint64(len(recs))):]
	}
	if r.since != noTime {
		recs = slices.DeleteFunc(recs, func(rec Record) bool { return rec.Time < r.since })
	}
	return recs
}

// step returns the next item of the scan. After the end of the scan it continues if the file has
// grown.
func (r *Reader) step() (*item, error) {
	for {
		if r.ended {
			if err := r.grow(); err != nil {
				return nil, err
			}
		}
		it, err := r.scan.step()
		if r.ended = err == nil && it.kind == itemEnd; !r.ended {
			return it, err
		}
	}
}

// grow moves the scan's limit to the end of the file; it returns io.EOF if the limit is already there.
func (r *Reader) grow() error {
	info, err := r.file.Stat()
	switch {
	case err != nil:
		return ioError("stat", r.path, err)
	case info.Size < r.scan.limit:
		return (&CorruptError{Path: r.path, Offset: info.Size, End: r.scan.limit, LostFirst: r.scan.view.next, LostNext: r.scan.view.next,
			Reason: errShrunk.Error()}).in(r.file)
	case info.Size == r.scan.limit:
		return io.EOF
	}
	if r.sync {
		if err := errors.Join(r.settle(), r.dropCache(r.scan.limit&^(walkStep-1), 0)); err != nil {
			return err
		}
		r.scan.forget()
	}
	r.scan.setLimit(info.Size)
	return nil
}

// noteAnchor records a seal, passes a checkpoint's state to restore, and reports an accepted anchor whose
// body is malformed.
func (r *Reader) noteAnchor(it *item) error {
	var err error
	switch it.head.kind {
	case kindFence:
		_, err = decodeHolder(it.body)
	case kindCheckpoint:
		var c checkpointBody
		if c, err = decodeCheckpoint(it.body); err == nil && r.restore != nil {
			restore := r.restore
			r.restore = nil // by a later checkpoint the caller has rebuilt its state from the records
			return restore(c.state)
		}
	case kindSeal:
		var b sealBody
		if b, err = decodeSeal(it.body); err == nil {
			r.seal = &SealedError{Path: r.path, Successor: b.successor, Generation: b.generation}
		}
	}
	if err != nil {
		return undecodable(r.path, it.head)
	}
	return nil
}

// Next returns the next record, valid until the next call. io.EOF and errors are as for NextBatch.
func (r *Reader) Next() (Record, error) {
	if len(r.left) == 0 {
		recs, err := r.NextBatch()
		if err != nil {
			return Record{}, err
		}
		r.left = recs
	}
	rec := r.left[0]
	r.left = r.left[1:]
	return rec, nil
}

// NextIndex returns the index of the next record in the scan.
func (r *Reader) NextIndex() uint64 { return r.scan.view.next }

// DurableEnd returns the file offset below which everything is durable according to the records
// read so far. Compare it with BatchEnd.
func (r *Reader) DurableEnd() int64 { return r.scan.view.durable }

// BatchEnd returns the file offset after the last returned batch, 0 before the first.
func (r *Reader) BatchEnd() int64 {
	if r.at.kind == kindNone {
		return 0
	}
	return r.at.end()
}

// link returns the description of the file for a Chain. The scan must be at its end.
func (r *Reader) link() Link {
	l := linkOf(r.path, r.scan.header)
	l.Next, l.Sealed = r.NextIndex(), r.seal
	return l
}

// Sealed returns the seal, with the file's successor, once the reader has passed it; nil otherwise.
func (r *Reader) Sealed() *SealedError { return r.seal }

// FirstIndex returns the first index of the file: 0, or in a successor the index at which the
// previous file ended or, after a compaction or repair, at which a replaced file began.
func (r *Reader) FirstIndex() uint64 { return r.scan.header.firstIndex }

// Type returns the type of the records.
func (r *Reader) Type() string { return r.scan.header.typ }

// FileID returns the file's identity.
func (r *Reader) FileID() FileID { return r.scan.header.fileID }

// Close closes the file.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file, r.left = nil, nil
	return ioError("close", r.path, err)
}
