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

// Registry remembers, outside the file, which file is the one of a type and how far it has come. It catches what a file
// cannot know about itself: another volume mounted at the same path, an old copy restored in place.
type Registry interface {
	// Lookup returns the entry of a type; ok is false when there is none.
	Lookup(ctx context.Context, typ string) (e Entry, ok bool, err error)
	// Register stores e if there is no entry yet, durably, and returns the entry that is stored now.
	Register(ctx context.Context, typ string, e Entry) (Entry, error)
	// Succeed replaces the entry by e, durably, if its FileID is still old, and returns the entry that is stored now; ok is
	// false when there is none.
	Succeed(ctx context.Context, typ string, old FileID, e Entry) (now Entry, ok bool, err error)
	// Update raises Epoch and DurableIndex of the entry whose FileID is e.FileID; lower values change nothing. It returns
	// false when the entry has another FileID or there is none.
	Update(ctx context.Context, typ string, e Entry) (updated bool, err error)
}

// Entry is what a Registry remembers of a type.
type Entry struct {
	FileID       FileID
	Generation   uint64 // of that file, from 1 on; 0 = not known
	Epoch        uint64 // highest epoch known to have fenced the file
	DurableIndex uint64 // records below this index are durable
}

// CheckRegistered tells whether Open would accept what is in a directory as the file of a type of which a registry has this entry. It reads the
// newest file from its last checkpoint on, and changes nothing. Its error is the one that Open would fail with: a *RegistryMismatch, or what
// is wrong with the file.
func CheckRegistered(dir, typ string, registered Entry) error {
	return checkRegistered(OS(), dir, typ, registered)
}

func checkRegistered(fsys FS, dir, typ string, registered Entry) error {
	w := &Writer{fs: fsys, dir: dir, typ: typ, epoch: math.MaxUint64} // of an epoch that no file refuses
	generation, _, err := w.newest()
	if err != nil {
		return err
	}
	w.path = filepath.Join(dir, GenerationName(typ, cmp.Or(generation, registered.Generation)))
	if generation == 0 {
		return &RegistryMismatch{Path: w.path, Registered: registered, Missing: true}
	}
	r, err := OpenReader(w.path, ReaderOptions{FS: fsys, From: math.MaxUint64}) // no record is asked for
	if err != nil {
		return err
	}
	defer r.Close()
	w.header = r.scan.header
	if err := errors.Join(w.checkHeader(generation), w.checkIdentity(registered)); err != nil {
		return err
	}
	if _, err := r.NextBatch(); err != io.EOF {
		return err
	}
	return w.checkView(&r.scan.view, registered)
}

// noRegistry is the registry of tools and tests: it knows nothing.
type noRegistry struct{}

func (noRegistry) Lookup(context.Context, string) (Entry, bool, error) { return Entry{}, false, nil }
func (noRegistry) Register(_ context.Context, _ string, e Entry) (Entry, error) {
	return e, nil
}
func (noRegistry) Succeed(_ context.Context, _ string, _ FileID, e Entry) (Entry, bool, error) {
	return e, true, nil
}
func (noRegistry) Update(context.Context, string, Entry) (bool, error) { return true, nil }

// Entry returns what the registry should know of the file by now. It is safe for concurrent use. Whoever takes messages for settled that are in the
// file, and removes them elsewhere, makes sure before that the registry has it.
func (w *Writer) Entry() Entry { return w.entry() }

// UpdateRegistry tells the registry how far the file is durable. Open and Close call it, too. It is safe for concurrent use, and it does not
// poison the writer when it fails.
func (w *Writer) UpdateRegistry(ctx context.Context) error {
	e := w.entry()
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
		return fmt.Errorf("storage: update the registry entry of %s: it was changed at the same moment; try again", w.path)
	}
	if err := w.checkIdentity(registered); err != nil {
		return err
	}
	_, err = w.register(ctx, registered.FileID, e) // it was set back while the file was in use
	return err
}
