package storage

// Torn tails and damage. After the last good record of a region there may be bytes that are not a
// record of it. The records that follow decide what they are:
//
//	batch │ batch │ ░░░░░░ │ FENCE e=8 │ OPEN: accepted up to ░    torn: the writer of e=8 read no record there
//	batch │ batch │ ░░░░░░ │ FENCE e=8 │ OPEN: accepted beyond ░   damaged: the writer of e=8 read good records there
//	batch │ batch │ ░░░░░░ │ batch with a durable end above ░      damaged: they were durable when it was written
//	batch │ batch │ ░░░░░░ end of the file                         torn: nothing proves otherwise
//
// A torn tail is void, and not an error. Damage is reported once, with the indexes of the lost records.

// judge compares the content that a new writer's open record h reports before its fence with what the
// scanner found. It returns no item if they agree and there are no void bytes before the fence.
func (s *scanner) judge(h *recHeader, body []byte) (item, bool) {
	w := &s.view
	o, err := decodeOpen(h.offset, body)
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
			Reason: "the earlier records are not those that the writer of the next epoch read"}), true
	case o.fenceOff > w.end:
		return item{kind: itemVoid, off: w.end, end: o.fenceOff}, true
	}
	return item{}, false
}

// damage makes an item of an error.
func (s *scanner) damage(e *CorruptError) item {
	e.Path = s.path
	return item{kind: itemDamage, err: e.in(s.src)}
}

// hunt searches for the record at which the scan resumes after the region ended at pos: the next fence
// with a higher epoch. Only 8-aligned positions count, and only records that carry their own position,
// so that no payload is mistaken for one.
//
// On the way it looks for proof of damage: a record of the same region, or of a later one whose
// fence is missing, that was written when the bytes at pos were known to be durable. The scan resumes
// at the first such record that is whole.
func (s *scanner) hunt() (it item, done bool, err error) {
	again := int64(0) // offset of the first incomplete record
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
		case v == whole && h.kind == kindFence && s.fits(h, body):
			s.resume(h)
			return item{}, false, nil
		case s.proves(h, v):
			s.prove(h)
			if v == whole && h.kind != kindOpen {
				it, more := s.goOn(h)
				return it, more, nil
			}
			if o, err := decodeOpen(h.offset, body); v == whole && err == nil { // its fence is damaged; judge reports the rest
				s.view.phase, s.view.epoch, s.view.session, s.view.fenceOff = fenced, h.epoch, h.session, o.fenceOff
				s.resume(h)
				return item{}, false, nil
			}
		}
		if v == incomplete && again == 0 && s.huntPos != s.pos {
			again = s.huntPos // rule: it may be a write in progress; look again once the file has grown
		}
		s.huntPos += recAlign // rule: a fence may be inside the bytes that a torn record's length claims
	}
}

// resume ends the hunt at h, which fits. Damage proven before h is reported with the next open record.
func (s *scanner) resume(h *recHeader) {
	s.pos, s.hunting = h.offset, false
	if s.proof != nil {
		s.proof.End = h.offset
	}
}

// proves reports whether h, found after pos, was written when the bytes at pos were durable and good.
func (s *scanner) proves(h *recHeader, v verdict) bool {
	if v == notRecord || h.kind == kindFence || h.kind == kindNone || h.offset <= s.pos {
		return false
	}
	sameRegion := h.epoch == s.view.epoch && h.session == s.view.session && s.view.phase != closed
	return (sameRegion || h.epoch > s.view.epoch) && h.durableEnd > s.pos
}

// prove notes that h proves damage. Until there is a record to resume at, everything up to the end of h
// counts as damaged: whatever makes h unusable as such a record is within it.
func (s *scanner) prove(h *recHeader) {
	if s.proof == nil {
		s.proof = &CorruptError{Offset: s.pos, LostFirst: s.view.next, LostNext: s.view.next,
			Reason: "a later " + h.kind.String() + " record was written when these bytes were durable"}
	}
	s.proof.End = max(s.proof.End, min(h.end(), s.limit))
	s.proof.LostNext = max(s.proof.LostNext, h.base)
}

// goOn ends the hunt at h, a whole record of a region that proves the damage before it, and returns
// the damage. more is false if all of it was reported before the file grew.
func (s *scanner) goOn(h *recHeader) (it item, more bool) {
	e := *s.proof
	// rule: without a region's open record nothing says which bytes before the region were good: bytes skipped before its fence may be
	// damaged, too.
	e.Offset, e.End, e.LostNext = s.stop, h.offset, max(h.base, e.LostFirst)
	more = s.untold(&e)
	s.adopt(h)
	if !more {
		return item{}, false
	}
	return s.damage(&e), true
}

// untold removes already reported damage from e, and reports whether any is left.
func (s *scanner) untold(e *CorruptError) bool {
	if s.told == nil {
		return true
	}
	e.Offset, e.LostFirst = min(max(e.Offset, s.told.End), e.End), min(max(e.LostFirst, s.told.LostNext), e.LostNext)
	return e.Offset < e.End || e.LostFirst < e.LostNext
}

// tell returns the proven damage before an open record that shows that no message is lost.
func (s *scanner) tell() item {
	e := *s.proof
	e.LostNext = e.LostFirst
	s.told = &e
	return s.damage(&e)
}

// huntEnd returns proven damage that is not followed by a record to resume at, once, and then the end.
func (s *scanner) huntEnd() item {
	if s.proof != nil && s.told == nil {
		e := *s.proof
		e.Offset = s.stop
		s.told = &e
		return s.damage(&e)
	}
	s.hunting = false // rule: an incomplete record at pos may be complete once the file has grown
	return item{kind: itemEnd}
}

// nextCandidate returns the first 8-aligned position from p on where a record may start, or the
// limit.
func (s *scanner) nextCandidate(p int64) (int64, error) {
	for p+recHeaderSize <= s.limit {
		b, err := s.peekOn(p, recHeaderSize)
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

// findCandidate returns the first aligned offset in b where a record may start and b has room for a
// batch header, or -1.
func (fh *fileHeader) findCandidate(b []byte) int {
	const batch = uint32('F') | 'P'<<8 | 'B'<<16 | '1'<<24
	for i := 0; i+recHeaderSize <= len(b); i += recAlign {
		if v := le64(b[i:]); v == fh.markerLo && le64(b[i+8:]) == fh.markerHi || uint32(v) == batch {
			return i
		}
	}
	return -1
}
