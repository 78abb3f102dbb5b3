package storage

import (
	"io"
)

// ReaderOptions of OpenReader. The zero value reads everything.
type ReaderOptions struct {
	FS   FS     // defaults to OS()
	From uint64 // index of the first record to return; opening there reads at most one checkpoint interval more

	mutant mutant
}

// Reader returns the records of a file in order. It works on a file that is being written to.
//
// It returns everything that is accepted now, which includes records that are not durable yet: those at or above
// DurableEnd may still be lost in a crash, and their indexes used again. If that happens under a Reader that has
// returned them it says so with a *RetractedError.
//
// A Reader is not safe for concurrent use.
type Reader struct {
	path   string
	file   File
	scan   *scanner
	from   uint64
	recs   []Record
	next   int // position in recs
	bodies bodyDecoder
	at     recHeader
	seal   *SealedError

	ended bool // the scan came to its limit
}

// OpenReader opens the file at path for reading. It fails with an error of category ErrRefused or ErrIntegrity when the
// file's header cannot be used.
func OpenReader(path string, o ReaderOptions) (*Reader, error) {
	if o.FS == nil {
		o.FS = OS()
	}
	f, err := o.FS.Open(path, ModeRead)
	if err != nil {
		return nil, ioError("open", path, err)
	}
	r := &Reader{path: path, file: f, from: o.From}
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
	r.scan.mutant = o.mutant
	if o.From > h.firstIndex {
		return r.scan.startBefore(o.From)
	}
	return nil
}

// startBefore positions the scanner at the last checkpoint at or before index, or leaves it at the start.
func (s *scanner) startBefore(index uint64) error {
	off, err := s.lastCheckpoint(func(int64, int64) error { return nil })
	for err == nil && off != 0 {
		h, body, v, rerr := s.recordAt(off)
		if rerr != nil {
			return rerr
		}
		if v != whole || h.kind != kindCheckpoint {
			return nil // damaged: the scan from the start tells what is wrong
		}
		if h.base <= index {
			_, err := s.startAt(off)
			return err
		}
		c, derr := decodeCheckpoint(body)
		if derr != nil || c.prevCheckpoint >= off {
			return undecodable(s.path, &h)
		}
		off = c.prevCheckpoint
	}
	return err
}

// NextBatch returns the next batch's records, at least one. They, and what they point to, are valid until the next call.
//
// At the end it returns io.EOF: a batch that is only partly there, because it is being written or because its writer
// died, is not there. Call it again later to go on with what was appended since.
//
// A *CorruptError or *RetractedError is returned once, where the damage is; calling again goes on behind it.
func (r *Reader) NextBatch() ([]Record, error) {
	if r.file == nil {
		return nil, ErrClosed
	}
	r.recs, r.next = r.recs[:0], 0
	for {
		it, err := r.step()
		switch {
		case err != nil:
			return nil, err
		case it.kind == itemDamage:
			return nil, it.err
		case it.kind != itemRecord:
		case it.head.kind == kindBatch && it.head.base+uint64(it.head.count) > r.from:
			return r.decode(&it)
		case it.head.kind == kindSeal:
			r.noteSeal(&it)
		}
	}
}

// step returns the next item. Where the scan ended it goes on only when the file has grown.
func (r *Reader) step() (item, error) {
	for {
		if r.ended {
			if err := r.grow(); err != nil {
				return item{}, err
			}
		}
		it, err := r.scan.step()
		if r.ended = err == nil && it.kind == itemEnd; !r.ended {
			return it, err
		}
	}
}

// grow moves the scan's limit to the end of the file; it returns io.EOF when it is there already.
func (r *Reader) grow() error {
	info, err := r.file.Stat()
	switch {
	case err != nil:
		return ioError("stat", r.path, err)
	case info.Size < r.scan.limit:
		return &CorruptError{Path: r.path, Offset: info.Size, End: r.scan.limit, LostFirst: r.scan.view.next, LostNext: r.scan.view.next,
			Reason: errShrunk.Error()}
	case info.Size == r.scan.limit:
		return io.EOF
	}
	r.scan.setLimit(info.Size)
	return nil
}

func (r *Reader) decode(it *item) ([]Record, error) {
	var err error
	if r.recs, err = r.bodies.decode(r.recs, r.path, it); err != nil {
		r.recs = r.recs[:0]
		return nil, err
	}
	r.at = it.head
	skip := 0
	if r.from > it.head.base {
		skip = int(r.from - it.head.base)
	}
	r.next = len(r.recs)
	return r.recs[skip:], nil
}

func (r *Reader) noteSeal(it *item) {
	if b, err := decodeSeal(it.body); err == nil {
		r.seal = &SealedError{Path: r.path, Successor: b.successor, Generation: b.generation}
	}
}

// Next returns the next record, valid until the next call. Ends and errors are those of NextBatch.
func (r *Reader) Next() (Record, error) {
	if r.next >= len(r.recs) {
		recs, err := r.NextBatch()
		if err != nil {
			return Record{}, err
		}
		r.next = len(r.recs) - len(recs)
	}
	r.next++
	return r.recs[r.next-1], nil
}

// NextIndex returns the index of the record that the scan comes to next.
func (r *Reader) NextIndex() uint64 { return r.scan.view.next }

// DurableEnd returns the file offset below which everything is known to be durable, as far as the records read so far
// tell. Compare it with BatchEnd.
func (r *Reader) DurableEnd() int64 { return r.scan.view.durable }

// BatchEnd returns the file offset behind the batch that was returned last, 0 before the first.
func (r *Reader) BatchEnd() int64 {
	if r.at.kind == kindNone {
		return 0
	}
	return r.at.end()
}

// Sealed returns the seal, with the file's successor, once it was passed; nil otherwise.
func (r *Reader) Sealed() *SealedError { return r.seal }

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
	r.file = nil
	return ioError("close", r.path, err)
}
