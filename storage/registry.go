package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
)

// The registry. A file can prove a lot about itself, but not that it is the right one: an empty
// directory, an old copy and the volume of another environment all look healthy. So the queue's
// database records, for each type, the current file and the index up to which it was durable. A writer
// compares them when it opens the file:
//
//	registered, present             continue
//	registered, absent              *RegistryMismatch: a wrong volume, or a loss
//	present, not registered         register it, once it is durable
//	present, behind its entry       *RegistryMismatch: an old copy
//	present, continues the registered file  continue: a writer died before it could register it (generation.go)

// Registry records, outside the file, which file is the type's current one and its durable end. It
// detects problems that a file cannot detect by itself: a different volume mounted at the same path, an
// old copy restored in place.
type Registry interface {
	// Lookup returns the entry of a type; ok is false if there is none.
	Lookup(ctx context.Context, typ string) (e Entry, ok bool, err error)
	// Register durably stores e if there is no entry yet, and returns the entry now stored.
	Register(ctx context.Context, typ string, e Entry) (Entry, error)
	// Succeed durably replaces the entry with e if its FileID is still old, and returns the entry now
	// stored; ok is false if there is none.
	Succeed(ctx context.Context, typ string, old FileID, e Entry) (now Entry, ok bool, err error)
	// Update raises Epoch and DurableIndex of the entry whose FileID is e.FileID; lower values
	// change nothing. It returns false if the entry has another FileID or there is none.
	Update(ctx context.Context, typ string, e Entry) (updated bool, err error)
}

// Entry is a Registry's record of a type.
type Entry struct {
	FileID       FileID
	Generation   uint64 // of that file, from 1 on; 0 = unknown
	Epoch        uint64 // highest epoch known to have fenced the file
	DurableIndex uint64 // records below this index are durable
	Place        string // last known place of the file, for error messages only
}

// CheckRegistered checks whether Open would accept the files in a directory for a type with this
// registry entry. It reads the newest file from its last checkpoint on, and changes nothing. It
// returns the error that Open would return: a *RegistryMismatch, or a problem of the file. A nil fsys
// stands for OS().
func CheckRegistered(fsys FS, dir, typ string, registered Entry) error {
	w := &Writer{fs: orOS(fsys), dir: dir, typ: typ, epoch: math.MaxUint64} // an epoch above that of any file
	return w.wouldOpen(registered)
}

// wouldOpen is CheckRegistered for the epoch and the callbacks of w, which is not open.
func (w *Writer) wouldOpen(registered Entry) error {
	generation, _, err := w.newest()
	if err != nil {
		return err
	}
	w.path = filepath.Join(w.dir, GenerationName(w.typ, cmp.Or(generation, registered.Generation)))
	if generation == 0 {
		return &RegistryMismatch{Path: w.path, Registered: registered, Missing: true}
	}
	r, err := OpenReader(w.path, ReaderOptions{FS: w.fs, From: math.MaxUint64}) // requests no records
	if err != nil {
		return err
	}
	defer r.Close()
	w.header = r.scan.header
	if err := errors.Join(w.checkHeader(generation), w.checkIdentity(registered)); err != nil {
		return err
	}
	if err := w.passOn(r); err != nil {
		return err
	}
	return w.checkView(&r.scan.view, registered)
}

// passOn reads to the end of r, and passes the state and records to the callbacks of w, as the scan does.
func (w *Writer) passOn(r *Reader) error {
	r.restore = w.opts.Restore
	if w.opts.Replay != nil {
		r.from = 0 // the reader is at the last checkpoint
	}
	for {
		recs, err := r.NextBatch()
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, new(*RetractedError)):
			// rule: this is no reason to refuse. The scan after the fence reads from the device, which does not have these records; this
			// reads the page cache, which may have them as long as the machine runs. The callbacks have accepted them, so they get nothing more.
			r.restore, w.opts.Replay = nil, nil
		case err != nil:
			return err
		}
		if w.opts.Replay == nil {
			continue
		}
		for i := range recs {
			if err := w.opts.Replay(recs[i]); err != nil {
				return err
			}
		}
	}
}

// noRegistry is the registry of tools and tests: it is always empty.
type noRegistry struct{}

func (noRegistry) Lookup(context.Context, string) (Entry, bool, error) { return Entry{}, false, nil }
func (noRegistry) Register(_ context.Context, _ string, e Entry) (Entry, error) {
	return e, nil
}
func (noRegistry) Succeed(_ context.Context, _ string, _ FileID, e Entry) (Entry, bool, error) {
	return e, true, nil
}
func (noRegistry) Update(context.Context, string, Entry) (bool, error) { return true, nil }

// Entry returns the current entry for the registry. The registry must have this entry before a caller
// removes messages elsewhere because they are in the file. Entry is safe for concurrent use.
func (w *Writer) Entry() Entry {
	return Entry{FileID: w.header.fileID, Generation: w.header.generation, Epoch: w.epoch, DurableIndex: w.DurableIndex()}
}

// UpdateRegistry writes the file's durable index to the registry. Open and Close call it, too. A
// failure does not poison the writer. UpdateRegistry is safe for concurrent use.
func (w *Writer) UpdateRegistry(ctx context.Context) error {
	e := w.Entry()
	ok, err := w.opts.Registry.Update(ctx, w.typ, e)
	if err != nil {
		return fmt.Errorf("storage: update the registry entry of %s: %w", w.path, err)
	}
	if ok {
		return nil
	}
	registered, known, err := w.opts.Registry.Lookup(ctx, w.typ)
	if err != nil {
		return fmt.Errorf("storage: read the registry entry of %s: %w", w.path, err)
	}
	switch {
	case !known:
		return &RegistryMismatch{Path: w.path, FileID: w.header.fileID, Unregistered: true}
	case registered.FileID == w.header.fileID:
		return fmt.Errorf("storage: update the registry entry of %s: it changed concurrently; try again", w.path)
	}
	if err := w.checkIdentity(registered); err != nil {
		return err
	}
	_, err = w.register(ctx, registered.FileID, e) // the registry was rolled back while the file was in use
	return err
}

// checkRegistered checks that the file is the registered one, and registers it if none is registered
// yet.
//
// rule: register only durable files: if a registered file disappeared in a crash, that would look like a wrong volume.
func (w *Writer) checkRegistered(ctx context.Context, registered Entry, known bool) (Entry, error) {
	e := Entry{FileID: w.header.fileID, Generation: w.header.generation}
	if !known {
		var err error
		if registered, err = w.opts.Registry.Register(ctx, w.typ, e); err != nil {
			return Entry{}, fmt.Errorf("storage: register %s: %w", w.path, err)
		}
	}
	if w.givesUp() && registered.Generation > w.header.generation {
		w.instead = &registered
		return registered, nil
	}
	if err := w.checkIdentity(registered); err != nil {
		if err = w.adopts(registered, err); err != nil {
			return Entry{}, err
		}
	}
	if registered.FileID != w.header.fileID { // the creator of this successor died before it registered it, or the registry was rolled back
		return w.register(ctx, registered.FileID, e)
	}
	return registered, nil
}

// checkIdentity refuses a file that is neither the registered one nor one that continues it.
func (w *Writer) checkIdentity(registered Entry) error {
	switch {
	case registered.FileID == w.header.fileID:
		return nil
	case registered.Generation > w.header.generation:
		return &RegistryMismatch{Path: w.path, Registered: registered, Older: w.header.generation}
	}
	// rule: a file of a later generation is accepted only if its predecessors lead back to the registered one.
	switch ok, err := w.continues(registered); {
	case err != nil:
		return err
	case ok:
		return nil
	case registered.Generation < w.header.generation:
		return &RegistryMismatch{Path: w.path, Registered: registered, FileID: w.header.fileID, Newer: w.header.generation}
	default:
		return &RegistryMismatch{Path: w.path, Registered: registered, FileID: w.header.fileID}
	}
}

// continues reports whether the files in the directory lead from this one back to the registered one,
// which may itself be missing.
func (w *Writer) continues(registered Entry) (bool, error) {
	if w.header.prevFileID == registered.FileID {
		return true, nil
	}
	names, err := w.fs.List(w.dir, w.typ)
	if err != nil {
		return false, ioError("list directory", w.dir, err)
	}
	before := map[FileID]FileID{}
	for _, name := range names {
		if typ, g, ok := ParseName(name); !ok || typ != w.typ || g <= registered.Generation || g >= w.header.generation {
			continue
		}
		// An unreadable file leads nowhere.
		if h, err := readHeaderAt(w.fs, filepath.Join(w.dir, name)); err == nil && h.typ == w.typ {
			before[h.fileID] = h.prevFileID
		}
	}
	id := w.header.prevFileID
	for range before {
		prev, ok := before[id]
		switch {
		case !ok:
			return false, nil
		case prev == registered.FileID:
			return true, nil
		}
		id = prev
	}
	return false, nil
}

// adopts returns nil if Options.Adopt allows registering this file, which checkIdentity refused with
// mismatch.
//
// rule: a file is adopted only if it has all records that the registry knows to be durable, and no later file is registered.
func (w *Writer) adopts(registered Entry, mismatch error) error {
	var m *RegistryMismatch
	if !w.opts.Adopt || !errors.As(mismatch, &m) || m.Older != 0 {
		return mismatch
	}
	switch l := ReadLink(w.fs, w.path); {
	case l.Err != nil:
		return l.Err
	case l.Next < registered.DurableIndex:
		return &RegistryMismatch{Path: w.path, Registered: registered, Next: l.Next}
	}
	return nil
}
