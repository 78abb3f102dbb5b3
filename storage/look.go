package storage

// A look before the fence. A fence remains in the file permanently. The fence of a writer that is then refused is useless, and a
// worker that restarts repeatedly with an old copy, a damaged file or a restored database would leave one each time. The end of
// the file shows when that could happen:
//
//	a batch, a checkpoint …, as new as the registry's entry   fence at once: nearly always
//	a fence: its writer's Open did not complete               read the file as the scan would; if refused, leave no fence
//	an older epoch or a lower index than registered           the same
//
// The records read are also passed to the caller, if it can rehearse: a state that it cannot rebuild means a refusal, too.
//
// The look can only refuse. A writer that passes it reads the file again after its fence, and is checked again: only the second
// check decides.

// endWindow is how many bytes at the file's end are searched for its last record. A longer record is not recognized; then there is no
// look. A fence takes 160 bytes plus the names in it.
const endWindow = 4 << 10

// look returns the error with which this writer would be refused after its fence. It reads the file only if the end of the file
// shows that this is possible.
func (w *Writer) look(registered Entry) error {
	if w.opts.Salvage || w.opts.Adopt {
		return nil // a single request of an operator, who accepts more than the check does
	}
	last, err := w.lastRecord()
	if err != nil || !w.mayBeRefused(&last, registered) {
		return err
	}
	// The file is opened again: in a store, this writer's view of its end may be older than the registry's entry.
	reader := &Writer{fs: w.fs, dir: w.dir, typ: w.typ, epoch: w.epoch}
	if w.opts.Rehearse != nil {
		// rule: before the fence the caller rebuilds a throwaway state. If the last checkpoint was only in the page cache, the scan may
		// find an earlier one, or none; then records that the scan omits would remain in a state that is used.
		reader.opts.Restore, reader.opts.Replay = w.opts.Rehearse()
	}
	return reader.wouldOpen(registered)
}

// mayBeRefused reports whether, judging by the last record of the file, a refusal is possible, so that a look is worth its reads.
func (w *Writer) mayBeRefused(last *recHeader, registered Entry) bool {
	switch last.kind {
	case kindNone:
		return false
	case kindFence:
		return true
	}
	return last.epoch < registered.Epoch || last.epoch >= w.epoch || last.base+uint64(last.count) < registered.DurableIndex
}

// lastRecord returns the header of the record at the end of the file; its kind is kindNone if there is none, or if it does not begin
// within endWindow.
func (w *Writer) lastRecord() (recHeader, error) {
	info, err := w.file.Stat()
	if err != nil {
		return recHeader{}, ioError("stat", w.path, err)
	}
	s := newScanner(w.path, w.file, w.header, info.Size)
	defer s.borrow()()
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
