package storage

// Finding the last checkpoint without reading the whole file: the scanner searches backwards from its
// end, in steps, for the marker at the start of every anchor.
//
//	◀── step ──┤◀── step ──┤ end of the file
//	  checkpoint  … batches …  OPEN ─ names the checkpoint before it: jump there
//
// So opening a file takes as long as reading one checkpoint interval, however large the file is.

// startAtLastCheckpoint positions the scanner at the last checkpoint below its limit, or leaves it at
// the start of the file if there is none. reread is called for each range before it is read.
//
// It walks back and searches for the sync marker. An open record or checkpoint that carries its own
// position was written by a writer that knew everything before it. So it is part of the view, unless
// the file is damaged, which the subsequent scan detects when it reaches the record.
func (s *scanner) startAtLastCheckpoint(reread func(off, n int64) error) error {
	off, err := s.lastCheckpoint(reread)
	if err != nil || off == 0 {
		return err
	}
	ok, err := s.startAt(off)
	if err == nil && !ok {
		err = (&CorruptError{Path: s.path, Offset: off, End: s.limit, LostFirst: s.view.next, LostNext: s.view.next,
			Reason: "a later record says that a checkpoint is here, but there is none"}).in(s.src)
	}
	return err
}

// walkStep is how many bytes the backward walk reads at once. It is a multiple of every page size, and
// together with a subsequent anchor header it fits into the scanner's window.
const walkStep = 128 << 10

// lastCheckpoint returns the offset of the last checkpoint below the limit, or 0 if there is none. It also returns 0 if the budget of the
// walk is exhausted, which never happens in a healthy file: then the scan starts at the beginning. The walk itself continues to the
// beginning, to call reread.
func (s *scanner) lastCheckpoint(reread func(off, n int64) error) (int64, error) {
	s.walking = true
	defer func() { s.walking = false }()
	hi := s.limit
	n := int64(0) // length of the range; 0 means to the end of the file
	for hi > headerSize {
		lo := (hi - 1) &^ (walkStep - 1)
		if err := reread(lo, n); err != nil {
			return 0, err
		}
		s.forget()
		h, body, err := s.lastAnchorIn(max(lo, headerSize), hi)
		if err != nil {
			return 0, err
		}
		switch h.kind {
		case kindCheckpoint:
			return h.offset, nil
		case kindOpen:
			o, err := decodeOpen(h.offset, body)
			if err != nil {
				return 0, undecodable(s.path, &h)
			}
			from := o.prevCheckpoint &^ (walkStep - 1)
			if err := s.rereadBelow(from, lo, reread); err != nil {
				return 0, err
			}
			return o.prevCheckpoint, nil
		}
		hi, n = lo, walkStep
	}
	return 0, nil
}

// rereadBelow has the bytes in [from, to) read again, from the source and not from the window.
func (s *scanner) rereadBelow(from, to int64, reread func(off, n int64) error) error {
	if from >= to {
		return nil
	}
	s.forget()
	return reread(from, to-from)
}

// lastAnchorIn returns the last open record or checkpoint that starts in [lo, hi), or a header of kind
// kindNone if there is none.
func (s *scanner) lastAnchorIn(lo, hi int64) (recHeader, []byte, error) {
	b, err := s.peek(lo, int(hi-lo)+markerSize+recHeaderSize)
	if err != nil {
		return recHeader{}, nil, err
	}
	var found []int64
	for i := int64(0); i < hi-lo && i+markerSize <= int64(len(b)); i += recAlign {
		if le64(b[i:]) == s.header.markerLo && le64(b[i+8:]) == s.header.markerHi {
			found = append(found, lo+i)
		}
	}
	for i := len(found) - 1; i >= 0; i-- {
		h, body, v, err := s.recordAt(found[i])
		if err != nil {
			return recHeader{}, nil, err
		}
		if v == whole && (h.kind == kindOpen || h.kind == kindCheckpoint) {
			return *h, body, nil
		}
	}
	return recHeader{}, nil, nil
}
