package storage

import (
	"cmp"
	"errors"
	"hash/crc32"
	"io"
)

// This file decides what is in a log: the view. It is a pure function of the bytes, and the only one: Writer, Reader and
// Verify all run it.
//
// A log is a sequence of regions, each begun by the fence of one writer and its open record, and continued by that
// writer's batches and checkpoints. At each position exactly one record fits:
//
//	closed ──fence, epoch above all before──▶ fenced ──its open record──▶ open ─┬─batch, checkpoint─▶ open
//	  ▲                                                                         └─seal──────────────▶ closed for good
//	  └──────────────────── anything else (also a higher fence: straight to fenced)
//
// The first thing that does not fit ends the region. From there the scanner hunts for the next fence; the bytes between
// are void. They are void in health: a torn write, a batch that landed behind somebody's fence. They are damage if a
// record behind them proves that they had been good: a durable end or an accepted end above them.

// phase says which record may come next.
type phase uint8

const (
	closed phase = iota // only a fence
	fenced              // the open record of the fence before
	opened              // a batch, a checkpoint or a seal of the region
)

// view is all that the rest of the log depends on.
type view struct {
	phase      phase
	sealed     bool   // no region is opened any more
	epoch      uint64 // of the last accepted fence: the highest
	session    uint64
	next       uint64 // index of the next record
	chain      uint64 // link of the last accepted record that is not a fence
	end        int64  // of that record: the accepted end
	fenceOff   int64  // of the last accepted fence
	anchor     int64  // last accepted open or checkpoint, 0 = none
	checkpoint int64  // last accepted checkpoint, 0 = none
	durable    int64  // highest durable end that an accepted record told
}

// item is one step of the scanner: an accepted record, a void range before one, or an error in between.
type item struct {
	kind itemKind
	head recHeader // itemRecord
	body []byte    // itemRecord: the stored body; valid until the next step
	off  int64     // itemVoid: the range
	end  int64
	err  error // itemDamage: *CorruptError or *RetractedError
}

type itemKind uint8

const (
	itemEnd    itemKind = iota // nothing more up to the limit
	itemRecord                 // accepted
	itemVoid                   // bytes that a later open record confirms to be nothing
	itemDamage                 // integrity violation; the scan goes on behind it
)

// verdict is what the bytes at a position are by themselves, without any context.
type verdict uint8

const (
	notRecord  verdict = iota
	incomplete         // a good header, or the start of one, and then the limit
	headOnly           // a good header, and a body that does not match it
	whole
)

const (
	scanWindow = 256 << 10 // bytes read at once: within the second-level cache, so that the checksum reads it from there
)

// scanner runs over a log from pos up to limit.
type scanner struct {
	path   string
	src    io.ReaderAt
	header *fileHeader
	limit  int64 // bytes from here on do not exist for the scanner
	view   view
	pos    int64 // of the next record expected

	buf    []byte // window of the file at bufOff
	bufOff int64
	own    []byte // what buf is in where a record is large; kept, as there may be more of them
	large  func() // if not nil: called before the window becomes larger than largeBatch

	readsAhead bool // let another goroutine read; stopAhead must be called in the end
	ahead      *readAhead
	chunk      []byte // the buffer that the window is in, when it came from ahead
	direct     int64  // below this offset nothing is read ahead

	judged  int64         // the open record at this offset was judged already
	hunting bool          // the region ended at pos
	huntPos int64         // where the hunt goes on
	stop    int64         // where the first hunt behind the last accepted record that is not a fence began, 0 = none did
	proof   *CorruptError // of damage that was not returned yet, or is told
	told    *CorruptError // what was returned of proof, when nothing was there to go on with
	budget  int64
}

// newScanner starts at the first record.
func newScanner(path string, src io.ReaderAt, h *fileHeader, limit int64) *scanner {
	s := &scanner{path: path, src: src, header: h, pos: headerSize, buf: make([]byte, 0, min(scanWindow, limit))}
	s.view = view{next: h.firstIndex, end: headerSize, durable: headerSize}
	s.setLimit(limit)
	return s
}

// setLimit moves the limit, which only grows.
//
// rule: a hunt in any bytes takes linear time. The budget bounds the checksums spent on candidates that turn out to be none.
func (s *scanner) setLimit(limit int64) {
	if room := min(scanWindow, limit); int64(cap(s.buf)) < room { // the file was small when the scanner was made
		s.buf = append(make([]byte, 0, room), s.buf...)
	}
	s.budget += 4 * (limit - s.limit)
	s.limit = limit
}

// startAt starts at a checkpoint instead, whose view it takes over. It reports false when there is none at off.
func (s *scanner) startAt(off int64) (bool, error) {
	h, _, v, err := s.recordAt(off)
	if err != nil || v != whole || h.kind != kindCheckpoint {
		return false, err
	}
	s.adopt(&h)
	return true, nil
}

// startAtBatch starts at a batch that a side index names. It reports false when the batch is not exactly the one named, or
// when nothing proves that it is part of the view.
func (s *scanner) startAtBatch(e *indexEntry) (bool, error) {
	h, _, v, err := s.recordAt(e.offset)
	if err != nil || v != whole || h.kind != kindBatch || h.base != e.index || h.epoch != e.epoch || h.session != e.session || h.chain != e.chain {
		return false, err
	}
	// rule: whole is not enough. Behind a batch that was torn by a power failure there may be one that is whole, and void. Its
	// writer tells, in a later record of the chain, that the batch was durable; a checkpoint tells it at the latest.
	for r := h; ; {
		next, _, err := s.headAt(r.end())
		if err != nil || next.kind == kindNone || next.kind == kindFence || next.epoch != h.epoch || next.session != h.session || next.chain != r.link() {
			return false, err
		}
		if next.durableEnd > h.offset {
			s.adopt(&h)
			return true, nil
		}
		r = next
	}
}

// adopt makes the record h the next one that fits, whatever came before.
func (s *scanner) adopt(h *recHeader) {
	s.view.phase, s.view.sealed = opened, false
	s.view.epoch, s.view.session = h.epoch, h.session
	s.view.next, s.view.chain = h.base, h.chain
	s.view.end = h.offset
	s.view.anchor = h.anchorOff
	s.pos = h.offset
	s.hunting, s.proof, s.told, s.stop = false, nil, nil, 0
}

// step returns the next item. Errors are those of reading; the scan can go on after itemEnd once the limit was moved.
func (s *scanner) step() (item, error) {
	for {
		if s.hunting {
			if it, done, err := s.hunt(); done || err != nil {
				return it, err
			}
		}
		h, body, v, err := s.recordAt(s.pos)
		if err != nil {
			return item{}, err
		}
		if v != whole || !s.fits(&h, body) {
			s.hunting, s.huntPos, s.stop = true, align8(max(s.pos, s.huntPos)), cmp.Or(s.stop, s.pos)
			continue
		}
		if h.kind == kindOpen && s.judged != h.offset {
			s.judged = h.offset
			if it, ok := s.judge(&h, body); ok {
				return it, nil
			}
		}
		if h.kind == kindOpen && s.proof != nil && s.told == nil { // a retraction came before it
			return s.tell(), nil
		}
		s.accept(&h)
		return item{kind: itemRecord, head: h, body: body}, nil
	}
}

// fits tells whether h, a whole record at pos, continues the view.
func (s *scanner) fits(h *recHeader, body []byte) bool {
	w := &s.view
	if h.kind == kindFence {
		// rule: epochs of accepted fences strictly increase.
		return h.epoch > w.epoch
	}
	if h.epoch != w.epoch || h.session != w.session {
		return false
	}
	if h.kind == kindOpen {
		o, err := decodeOpen(body)
		return w.phase == fenced && !w.sealed && err == nil && o.fenceOff == w.fenceOff
	}
	return w.phase == opened && h.base == w.next && h.chain == w.chain
}

// accept moves the view behind h.
func (s *scanner) accept(h *recHeader) {
	w := &s.view
	s.pos, s.huntPos = h.end(), 0
	if h.kind != kindFence {
		s.proof, s.told, s.stop = nil, nil, 0
	}
	w.durable = max(w.durable, h.durableEnd)
	switch h.kind {
	case kindFence:
		w.phase, w.epoch, w.session, w.fenceOff = fenced, h.epoch, h.session, h.offset
		return // the open record tells what counts before it; the chain goes past the fence
	case kindOpen:
		w.phase, w.anchor, w.next = opened, h.offset, h.base
	case kindBatch:
		w.next += uint64(h.count)
	case kindCheckpoint:
		w.anchor, w.checkpoint = h.offset, h.offset
	case kindSeal:
		w.phase, w.sealed = closed, true
	}
	w.chain, w.end = h.link(), h.end()
}

// judge compares what a new writer says it found before its fence with what the scanner found. There is nothing to
// say when they agree and nothing is between.
func (s *scanner) judge(h *recHeader, body []byte) (item, bool) {
	w := &s.view
	o, err := decodeOpen(body)
	switch {
	case err != nil:
		return item{}, false
	case o.acceptedEnd > w.end || h.base > w.next:
		e := &CorruptError{Offset: w.end, End: max(o.acceptedEnd, w.end), LostFirst: w.next, LostNext: max(h.base, w.next),
			Reason: "the writer of the next epoch read valid records here"}
		if s.proof != nil { // one report for all damage before one open record
			e.End = max(e.End, s.proof.End)
		}
		if !s.untold(e) {
			return item{}, false
		}
		s.told = e
		return s.damage(e), true
	case o.acceptedEnd < w.end || h.base < w.next:
		return item{kind: itemDamage, err: &RetractedError{Path: s.path, Offset: h.offset, First: h.base, Next: w.next}}, true
	case s.proof != nil && s.told == nil:
		return s.tell(), true
	case h.chain != w.chain:
		return s.damage(&CorruptError{Offset: headerSize, End: w.end, LostFirst: w.next, LostNext: w.next,
			Reason: "the records before are not those that the writer of the next epoch read"}), true
	case o.fenceOff > w.end:
		return item{kind: itemVoid, off: w.end, end: o.fenceOff}, true
	}
	return item{}, false
}

func (s *scanner) damage(e *CorruptError) item {
	e.Path = s.path
	return item{kind: itemDamage, err: e}
}

// hunt looks for the record that goes on after the region ended at pos: the next fence with a higher epoch. Only
// 8-aligned positions count, and only records that carry their own position, so that no payload is taken for one.
//
// On the way it looks for proof of damage: a record of the same region, or of a later one whose fence is gone, that was
// written when the bytes at pos were known to be durable. The scan resumes at the first such record that is whole.
func (s *scanner) hunt() (it item, done bool, err error) {
	again := int64(0) // the first record that is only partly there
	for {
		if s.huntPos, err = s.nextCandidate(s.huntPos); err != nil {
			return item{}, true, err
		}
		if s.huntPos+recHeaderSize > s.limit {
			if again != 0 {
				s.huntPos = again
			}
			return s.huntEnd(), true, nil
		}
		h, body, v, err := s.recordAt(s.huntPos)
		switch {
		case err != nil:
			return item{}, true, err
		case v == whole && h.kind == kindFence && s.fits(&h, body):
			s.resume(&h)
			return item{}, false, nil
		case s.proves(&h, v):
			s.prove(&h)
			if v == whole && h.kind != kindOpen {
				it, more := s.goOn(&h)
				return it, more, nil
			}
			if o, err := decodeOpen(body); v == whole && err == nil { // its fence is what is damaged; judge says more
				s.view.phase, s.view.epoch, s.view.session, s.view.fenceOff = fenced, h.epoch, h.session, o.fenceOff
				s.resume(&h)
				return item{}, false, nil
			}
		}
		if v == incomplete && again == 0 && s.huntPos != s.pos {
			again = s.huntPos // rule: it may be a write in progress; look again when the file has grown
		}
		s.huntPos += recAlign // rule: a fence may be inside a record that its length announces and that was never completed
	}
}

// resume ends the hunt at h, which fits. What has been proved about the bytes before is told with the next open record.
func (s *scanner) resume(h *recHeader) {
	s.pos, s.hunting = h.offset, false
	if s.proof != nil {
		s.proof.End = h.offset
	}
}

// proves tells whether h, found behind pos, was written when the bytes at pos were durable and good.
func (s *scanner) proves(h *recHeader, v verdict) bool {
	if v == notRecord || h.kind == kindFence || h.kind == kindNone || h.offset <= s.pos {
		return false
	}
	sameRegion := h.epoch == s.view.epoch && h.session == s.view.session && s.view.phase != closed
	return (sameRegion || h.epoch > s.view.epoch) && h.durableEnd > s.pos
}

// prove notes that h proves damage. As long as there is nothing to go on with, all up to the end of h may be damaged: what
// makes it no record to go on with is in it.
func (s *scanner) prove(h *recHeader) {
	if s.proof == nil {
		s.proof = &CorruptError{Offset: s.pos, LostFirst: s.view.next, LostNext: s.view.next,
			Reason: "a " + h.kind.String() + " record behind it was written when these bytes were durable"}
	}
	s.proof.End = max(s.proof.End, min(h.end(), s.limit))
	s.proof.LostNext = max(s.proof.LostNext, h.base)
}

// goOn ends the hunt at h, a whole record of a region that proves the damage before it, and returns the damage. There is nothing
// to return if it was told before the file had grown.
func (s *scanner) goOn(h *recHeader) (it item, more bool) {
	e := *s.proof
	// rule: without its open record nothing tells what was good before a region: also what was passed over before its fence may be
	// damaged.
	e.Offset, e.End, e.LostNext = s.stop, h.offset, max(h.base, e.LostFirst)
	more = s.untold(&e)
	s.adopt(h)
	if !more {
		return item{}, false
	}
	return s.damage(&e), true
}

// untold takes from e what was told already, and reports whether anything is left.
func (s *scanner) untold(e *CorruptError) bool {
	if s.told == nil {
		return true
	}
	e.Offset, e.LostFirst = min(max(e.Offset, s.told.End), e.End), min(max(e.LostFirst, s.told.LostNext), e.LostNext)
	return e.Offset < e.End || e.LostFirst < e.LostNext
}

// tell returns the damage that is proved before an open record by which no message is missing.
func (s *scanner) tell() item {
	e := *s.proof
	e.LostNext = e.LostFirst
	s.told = &e
	return s.damage(&e)
}

// huntEnd reports proven damage that nothing follows, once, and then the end.
func (s *scanner) huntEnd() item {
	if s.proof != nil && s.told == nil {
		e := *s.proof
		e.Offset = s.stop
		s.told = &e
		return s.damage(&e)
	}
	s.hunting = false // rule: what is incomplete at pos may have been completed when the file has grown
	return item{kind: itemEnd}
}

// nextCandidate returns the first 8-aligned position from p on where a record may start, or the limit.
func (s *scanner) nextCandidate(p int64) (int64, error) {
	for p+recHeaderSize <= s.limit {
		b, err := s.peek(p, recHeaderSize, true)
		if err != nil {
			return 0, err
		}
		if i := s.header.findCandidate(b); i >= 0 {
			return p + int64(i), nil
		}
		p += int64(len(b)-recHeaderSize)&^(recAlign-1) + recAlign
	}
	return p, nil
}

// findCandidate returns the first aligned offset in b, with a whole header behind it, where a record may start, or -1.
func (fh *fileHeader) findCandidate(b []byte) int {
	const batch = uint32('F') | 'P'<<8 | 'B'<<16 | '1'<<24
	for i := 0; i+recHeaderSize <= len(b); i += recAlign {
		if v := le64(b[i:]); v == fh.markerLo && le64(b[i+8:]) == fh.markerHi || uint32(v) == batch {
			return i
		}
	}
	return -1
}

// recordAt decodes the record at p and judges its bytes by themselves. Body and header are valid for headOnly (no
// body) and whole.
func (s *scanner) recordAt(p int64) (h recHeader, body []byte, v verdict, err error) {
	h, v, err = s.headAt(p)
	if v != headOnly {
		return h, nil, v, err
	}
	return s.bodyOf(h, p)
}

// headAt decodes the header of the record at p. It is good, and of a kind, for headOnly and, if all of it is there, for
// incomplete; otherwise its kind is kindNone.
func (s *scanner) headAt(p int64) (h recHeader, v verdict, err error) {
	b, err := s.peek(p, markerSize+recHeaderSize, false)
	if err != nil {
		return recHeader{}, notRecord, err
	}
	if len(b) < recHeaderSize {
		return recHeader{}, incomplete, nil
	}
	kind, hb := s.header.kindAt(b)
	if kind == kindNone {
		return recHeader{}, notRecord, nil
	}
	if len(hb) < recHeaderSize {
		return recHeader{}, incomplete, nil
	}
	h = decodeRecHeader(kind, hb)
	// rule: a record that is not where its writer put it is void.
	if h.headCRC != headCRC(s.header.seed, hb) || h.offset != p {
		return recHeader{}, notRecord, nil
	}
	if !h.inRange() {
		return recHeader{}, notRecord, nil
	}
	if h.end() > s.limit {
		return h, incomplete, nil
	}
	return h, headOnly, nil
}

// bodyOf completes recordAt: it reads and checks what the header covers.
func (s *scanner) bodyOf(h recHeader, p int64) (recHeader, []byte, verdict, error) {
	if s.hunting {
		if s.budget -= h.size(); s.budget < 0 {
			return h, nil, headOnly, nil
		}
	}
	b, err := s.peek(p, int(h.size()), false)
	if err != nil {
		return h, nil, notRecord, err
	}
	b = b[h.lead():]
	if crc32.Update(s.header.seed, castagnoli, b[recHeaderSize:]) != h.bodyCRC {
		return h, nil, headOnly, nil
	}
	n := int(h.headerLen)
	return h, b[n : n+int(h.storedLen)], whole, nil
}

var errShrunk = errors.New("the file became shorter than it was")

// peek returns the n bytes at p, fewer at the limit; with more set, whatever else the window holds behind them. They are
// valid until the next peek.
func (s *scanner) peek(p int64, n int, more bool) ([]byte, error) {
	n = int(min(int64(n), s.limit-p))
	if n <= 0 {
		return nil, nil
	}
	at := p - s.bufOff
	if at < 0 || at+int64(n) > int64(len(s.buf)) {
		if err := s.fill(p, n); err != nil {
			return nil, err
		}
		at = 0
	}
	if more {
		return s.buf[at:], nil
	}
	return s.buf[at : at+int64(n)], nil
}

// fill moves the window to p, with at least n bytes in it.
func (s *scanner) fill(p int64, n int) error {
	if s.readsAhead && s.fillAhead(p, n) {
		return nil
	}
	kept := 0
	if at := p - s.bufOff; at >= 0 && at < int64(len(s.buf)) {
		kept = copy(s.buf, s.buf[at:])
	}
	if n > cap(s.buf) { // n is bounded by the file's size and by the limit of a record
		if n > largeBatch && s.large != nil {
			s.large()
		}
		if cap(s.own) < n {
			s.own = make([]byte, roomFor(n))
		}
		s.buf = s.own[:copy(s.own, s.buf[:kept])]
	}
	want := int(min(max(int64(n), scanWindow), int64(cap(s.buf)), s.limit-p))
	s.buf = s.buf[:want]
	s.bufOff = p
	got, err := s.src.ReadAt(s.buf[kept:want], p+int64(kept))
	if kept+got < want {
		s.buf = s.buf[:0] // never leave bytes in the window that were not read
		if err == io.EOF || err == nil {
			return &CorruptError{Path: s.path, Offset: p + int64(kept+got), End: s.limit, LostFirst: s.view.next, LostNext: s.view.next,
				Reason: errShrunk.Error()}
		}
		return ioError("read", s.path, err)
	}
	return nil
}

// roomFor returns the size of a buffer for n bytes, which are at most maxRecord.
//
// Buffers grow by a factor of four: all that a reader has had take little more than the largest, however late the garbage collector comes.
func roomFor(n int) int {
	room := scanWindow
	for room < n {
		room *= 4
	}
	return max(n, min(room, maxRecord))
}

// forget drops the window, so that the next bytes are read again.
func (s *scanner) forget() { s.buf, s.bufOff = s.buf[:0], 0 }
