package storage

// A look before the fence. A fence stays in the file for good. One of a writer that is refused behind it is of no use, and a
// worker that is restarted again and again with an old copy, a damaged file or a database that was set back would leave one
// each time. The end of the file tells when that may be so:
//
//	a batch, a checkpoint …, as new as the registry's entry   fence at once: nearly always
//	a fence: its writer did not get in                        read the file as the scan will, and be refused without a fence
//	an older epoch or a lower index than registered           the same
//
// The look only refuses. Who passes it reads the file again behind the fence, and is checked again: what counts is decided
// there.

// endWindow is how much of the file's end is read for its last record, bytes. A longer record is not recognized: then no look is taken.
// A fence takes 160 bytes and the names in it.
const endWindow = 4 << 10

// look returns the error that this writer would be refused with behind its fence, if the end of the file says that it may
// be refused.
func (w *Writer) look(registered Entry) error {
	if w.opts.Salvage || w.opts.Adopt {
		return nil // an operator asked for it, once, and accepts more than the check does
	}
	last, err := w.lastRecord()
	if err != nil || !w.mayBeRefused(&last, registered) {
		return err
	}
	// The file is opened again: in a store, what this writer knows of its end may be older than the registry's entry.
	reader := &Writer{fs: w.fs, dir: w.dir, typ: w.typ, epoch: w.epoch}
	return reader.wouldOpen(registered)
}

// mayBeRefused tells whether a look is worth its reads, from the last record of the file.
func (w *Writer) mayBeRefused(last *recHeader, registered Entry) bool {
	switch last.kind {
	case kindNone:
		return false
	case kindFence:
		return true
	}
	return last.epoch < registered.Epoch || last.epoch >= w.epoch || last.base+uint64(last.count) < registered.DurableIndex
}

// lastRecord returns the header of the record that the file ends with; its kind is kindNone if there is none, or it does not begin
// within endWindow.
func (w *Writer) lastRecord() (recHeader, error) {
	info, err := w.file.Stat()
	if err != nil {
		return recHeader{}, ioError("stat", w.path, err)
	}
	s := newScanner(w.path, w.file, w.header, info.Size)
	p := max(headerSize, (info.Size-endWindow)&^(recAlign-1))
	for {
		if p, err = s.nextCandidate(p); err != nil || p+recHeaderSize > s.limit {
			return recHeader{}, err
		}
		if h, _, v, err := s.recordAt(p); err != nil || v == whole && h.end() == s.limit {
			return *h, err
		}
		p += recAlign
	}
}
