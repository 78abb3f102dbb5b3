package storage

import (
	"hash/crc32"
	"io"
	"sync"
)

// The window is the part of the file that a scanner has in memory: 256 KiB, or a whole record if that
// is larger. Records are used in place, without a copy, so the result of a scanner's step is valid until
// the next step. A verdict classifies the bytes at a position by themselves: no record, a header without
// its body, an incomplete record at the end of the file, or a whole record.

// recordAt decodes the record at p and judges its bytes by themselves. For whole, header and body are
// valid until the next call; for headOnly, only the header is.
func (s *scanner) recordAt(p int64) (h *recHeader, body []byte, v verdict, err error) {
	h, v, err = s.headAt(p)
	if v != headOnly {
		return h, nil, v, err
	}
	body, v, err = s.bodyOf(h, p)
	return h, body, v, err
}

// headAt decodes the header of the record at p. The verdict headOnly means that the header is good, and
// that the record ends within the limit. For incomplete, the header is good if all of it is present. In
// all other cases its kind is kindNone. The header is valid until the next call.
func (s *scanner) headAt(p int64) (h *recHeader, v verdict, err error) {
	h = &s.head
	h.kind = kindNone
	b, err := s.peek(p, markerSize+recHeaderSize)
	if err != nil {
		return h, notRecord, err
	}
	if len(b) < recHeaderSize {
		return h, incomplete, nil
	}
	kind, hb := s.header.kindAt(b)
	if kind == kindNone {
		return h, notRecord, nil
	}
	if len(hb) < recHeaderSize {
		return h, incomplete, nil
	}
	h.decode(kind, hb)
	// rule: a record that is not where its writer put it is void.
	if h.headCRC != s.header.headCRC(kind, hb) || h.offset != p {
		h.kind = kindNone
		return h, notRecord, nil
	}
	if !h.inRange() {
		h.kind = kindNone
		return h, notRecord, nil
	}
	if h.end() > s.limit {
		return h, incomplete, nil
	}
	return h, headOnly, nil
}

// bodyOf completes recordAt: it reads and checks the body that the header h at p describes.
func (s *scanner) bodyOf(h *recHeader, p int64) ([]byte, verdict, error) {
	if !s.affords(h.size()) {
		return nil, headOnly, nil
	}
	b, err := s.peek(p, int(h.size()))
	if err != nil {
		return nil, notRecord, err
	}
	b = b[h.lead():]
	if crc32.Update(s.header.seed, castagnoli, b[recHeaderSize:]) != h.bodyCRC {
		return nil, headOnly, nil
	}
	n := int(h.headerLen)
	return b[n : n+int(h.storedLen)], whole, nil
}

// affords charges n bytes to the budget of the current search, and reports whether it may read them.
//
// rule: a search in any bytes takes linear time. Otherwise each false candidate could announce a body up to the end of the file.
func (s *scanner) affords(n int64) bool {
	switch {
	case s.walking:
		s.walkBudget -= n
		return s.walkBudget >= 0
	case s.hunting:
		s.budget -= n
		return s.budget >= 0
	}
	return true
}

// peek returns the n bytes at p, fewer at the limit. They are valid until the next peek.
func (s *scanner) peek(p int64, n int) ([]byte, error) {
	if at := p - s.bufOff; at >= 0 && at+int64(n) <= int64(len(s.buf)) { // the window ends at the limit
		return s.buf[at : at+int64(n)], nil
	}
	b, err := s.peekOn(p, n)
	return b[:min(n, len(b))], err
}

// peekOn is peek, and returns the rest of the window after the n bytes, too.
func (s *scanner) peekOn(p int64, n int) ([]byte, error) {
	if p >= s.limit { // the distance may overflow a 32-bit int
		return nil, nil
	}
	n = int(min(int64(n), s.limit-p))
	if at := p - s.bufOff; at >= 0 && at+int64(n) <= int64(len(s.buf)) {
		return s.buf[at:], nil
	}
	err := s.fill(p, n)
	return s.buf, err
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
	// A window is no larger than the rest of the file: Open uses several scanners, which read little at the end of the file.
	if room := int(min(scanWindow, s.limit-p)); cap(s.buf) < room {
		s.buf = append(make([]byte, 0, room), s.buf[:kept]...)
	}
	if n > cap(s.buf) { // the file's size and the limit of a record bound n
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
			return (&CorruptError{Path: s.path, Offset: p + int64(kept+got), End: s.limit, LostFirst: s.view.next, LostNext: s.view.next,
				Reason: errShrunk.Error()}).in(s.src)
		}
		return ioError("read", s.path, err)
	}
	return nil
}

// roomFor returns the size of a buffer for n bytes, which are at most maxRecord.
//
// Buffers grow by a factor of four: all buffers of a reader together take little more than the largest,
// even if the garbage collector runs late.
func roomFor(n int) int {
	room := scanWindow
	for room < n {
		room *= 4
	}
	return max(n, min(room, maxRecord))
}

// windows are unused windows. Opening a file takes three scanners, and a process may open thousands.
var windows = sync.Pool{New: func() any { return new([scanWindow]byte) }}

// borrow gives the scanner a pooled window. After giveBack, results of the scanner must not be used.
func (s *scanner) borrow() (giveBack func()) {
	w := windows.Get().(*[scanWindow]byte)
	s.buf = w[:0]
	return func() {
		s.buf = nil
		windows.Put(w)
	}
}

// forget empties the window, so that the next bytes are read from the file again.
func (s *scanner) forget() { s.buf, s.bufOff = s.buf[:0], 0 }
