package slots

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/storage"
)

const (
	mostSlot = 8 << 20 // maximum length of a slot that this package creates, in bytes; the limit of the store may be lower
	requests = 16      // maximum number of concurrent requests of one reader

	mostMissing = 1 << 30 // maximum number of bytes missing before a slot that still counts as part of the file
)

// piece is a known slot: its bytes are at [off, off+size) in the file.
type piece struct{ off, size int64 }

// end is the offset after the piece.
func (p piece) end() int64 { return p.off + p.size }

// held returns how many bytes of memory the value takes.
//
// rule: a slot larger than any that this package creates has none of its records. Its bytes count as zeros and are not read.
func (p piece) held() int64 {
	if p.size > mostSlot {
		return 0
	}
	return p.size
}

func comparePieces(a, b piece) int { return cmp.Compare(a.off, b.off) }

// file is an open file: the slots of one folder.
type file struct {
	fs       *FS
	name     string // for errors
	folder   folder
	writable bool
	removed  bool // the file was removed, so any of its slots may be missing

	syncing sync.Mutex // one create at a time; taken before mu

	mu     sync.Mutex
	pieces []piece // by offset
	end    int64   // offset after the last of them
	stray  int64   // offset of a slot too far after the end to belong to the file; 0: none
	later  later   // the slots that are not listed yet, see end.go
	going  []byte  // bytes that are being created, at end
	kept   []byte  // bytes appended after those
	broken error   // a create with an unknown outcome, or an unknown end: nothing may be created after it

	reading sync.Mutex       // taken before mu; guards the fields below, see read.go
	cache   map[int64][]byte // values of slots, by offset
	held    int64            // bytes of FS.reading acquired for the cache
	next    int64            // end of the last slots requested together
	took    time.Duration    // how long that request took
	got     int64            // how many bytes it read
	idle    *time.Timer      // drops the cache
}

var _ storage.InPieces = (*file)(nil)

func (f *file) error(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

// Append implements storage.File: it keeps p until Datasync. It drops the read cache, which a writer does not
// need.
func (f *file) Append(p []byte) (int, int64, error) {
	f.forget()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.writable:
		return 0, 0, f.error("append", fs.ErrPermission)
	case f.broken != nil:
		return 0, 0, f.broken
	}
	f.kept = append(f.kept, p...)
	return len(p), f.tail(), nil
}

// tail returns the end of the file, including all appended bytes. mu is held.
func (f *file) tail() int64 { return f.end + int64(len(f.going)+len(f.kept)) }

// Datasync implements storage.File: it creates slots from the kept bytes. Bytes appended
// meanwhile wait for the next call, and then share one slot.
func (f *file) Datasync() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	f.going, f.kept = f.kept, nil
	at, going, err := f.end, f.going, f.broken
	f.mu.Unlock()
	if err != nil {
		return err
	}
	// rule: one create at a time, at the end: no slot is created after one that may not exist.
	for len(going) > 0 {
		n := min(len(going), f.fs.mostSlot())
		if err := f.fs.create(f.folder.slot(at), going[:n]); err != nil {
			return f.stop(at, err)
		}
		f.mu.Lock()
		f.pieces = append(f.pieces, piece{at, int64(n)})
		at, going = at+int64(n), going[n:]
		f.end, f.going = at, going
		f.mu.Unlock()
	}
	return nil
}

// stop drops the bytes that could not be created at offset at, and finds the end of the file if another writer has moved it.
func (f *file) stop(at int64, err error) error {
	op := "create a slot of"
	now := &file{fs: f.fs, name: f.name, folder: f.folder} // f changes in one step, because Append may run concurrently
	moved := errors.Is(err, errTaken)
	if moved {
		f.mu.Lock()
		now.pieces = slices.Clone(f.pieces)
		f.mu.Unlock()
		op, err = "find the end of", now.refresh()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.going, f.kept = nil, nil
	if !moved || err != nil {
		f.broken = f.error(op, err)
		return f.broken
	}
	f.pieces, f.end, f.stray, f.later = now.pieces, now.end, now.stray, now.later
	return &storage.MovedError{At: at, End: f.end}
}

// refresh finds the slots of the file and its end.
func (f *file) refresh() error {
	entries, err := f.fs.list(f.folder.String())
	if err != nil {
		return err
	}
	return f.take(f.fs.offsets(f.folder, entries), later{})
}

// take merges the slots of a listing with the known ones, and finds the end of the file. The slots of l are listed later.
func (f *file) take(pieces []piece, l later) error {
	f.mu.Lock()
	// A listing may lack slots that are known already.
	for _, p := range f.pieces {
		if i, there := slices.BinarySearchFunc(pieces, p, comparePieces); !there {
			pieces = slices.Insert(pieces, i, p)
		}
	}
	f.pieces, f.end, f.stray, f.later = nil, 0, 0, l
	f.mu.Unlock()
	missing := int64(0)
	for _, p := range pieces {
		if p.off != l.to {
			// rule: a slot that a listing lacks is looked up by its name: the listing may be older than a slot in the middle.
			if err := f.walk(p.off); err != nil {
				return err
			}
		}
		f.mu.Lock()
		if p.off == l.to {
			f.later.behind = f.end
		}
		missing += max(p.off-f.end, 0)
		// rule: a slot far after the end is not part of the file. A writer would continue after it, and every reader would search the
		// gap before it for records, possibly for years.
		if !f.removed && missing > mostMissing {
			f.stray = p.off
			f.mu.Unlock()
			if l.to > 0 {
				// rule: slots left for later count as missing. If the end depends on them, they are listed now.
				return f.refresh()
			}
			break
		}
		f.pieces, f.end = append(f.pieces, p), max(f.end, p.end())
		f.mu.Unlock()
	}
	return f.walk(math.MaxInt64)
}

// begins returns an error if a named file lacks its first slot. Every file has had its first slot before it got its name.
func (f *file) begins() error {
	if _, _, named := storage.ParseName(filepath.Base(f.name)); !named || len(f.pieces) > 0 && f.pieces[0].off == 0 {
		return nil
	}
	d := f.folder
	return fmt.Errorf("%w: the first slot of the file, %s, is missing in %s: it was removed by hand or by another program; restore it from a backup; "+
		"if it is lost permanently, remove %s, too: then the file counts as missing, and its messages can be given up",
		storage.ErrIntegrity, d.slot(0), f.fs.store, generationSlot(d.typ, d.generation))
}

// walk moves from the known end to where no slot exists, or to an offset.
//
// rule: the end is where no slot exists, not where a listing ends.
func (f *file) walk(until int64) error {
	for {
		f.mu.Lock()
		end := f.end
		f.mu.Unlock()
		if end >= until {
			return nil
		}
		p, there, err := f.at(end)
		if err != nil || !there {
			return err
		}
		f.mu.Lock()
		if f.end == end {
			f.pieces, f.end = append(f.pieces, p), p.end()
		}
		f.mu.Unlock()
	}
}

// at looks up the slot at an offset by its name.
func (f *file) at(off int64) (p piece, there bool, err error) {
	n, err := f.fs.size(f.folder.slot(off))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return piece{}, false, nil
	case err == nil && n == 0:
		err = fmt.Errorf("%w: %s of %s is empty, and no writer creates such a value; remove it, and find out who created it", storage.ErrIntegrity, f.folder.slot(off), f.fs.store)
	case err == nil && n > int64(f.fs.store.MaxValue()):
		err = fmt.Errorf("%w: %s of %s says that it has %d bytes, and no value can have more than %d; find out who changed it, and restore a copy", storage.ErrIntegrity, f.folder.slot(off), f.fs.store, n, f.fs.store.MaxValue())
	}
	return piece{off, n}, err == nil, err
}

// Pieces implements storage.InPieces.
func (f *file) Pieces() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pieces) + f.later.slots
}

// Hole implements storage.InPieces.
func (f *file) Hole() (off, end int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pieces {
		if p.off > end && p.off != f.later.to {
			return end, p.off
		}
		end = max(end, p.end())
	}
	return end, max(end, f.stray)
}

// Names implements storage.InPieces. The name of a slot that is missing, or not listed yet, follows from the end of the one before it.
func (f *file) Names(off, end int64) (first, last string) {
	f.mu.Lock()
	pieces, at := slices.Clone(f.pieces), int64(0)
	if f.stray > 0 {
		pieces = append(pieces, piece{f.stray, 1})
	}
	f.mu.Unlock()
	name := func(p piece) {
		if p.off < end && p.end() > off {
			last = f.folder.slot(p.off)
			first = cmp.Or(first, last)
		}
	}
	for _, p := range pieces {
		name(piece{at, p.off - at})
		name(p)
		at = max(at, p.end())
	}
	name(piece{at, math.MaxInt64 - at})
	return first, last
}

// Stat implements storage.File. For a writable file it returns the size that its writer assumes;
// the next create shows whether that is right.
func (f *file) Stat() (storage.Info, error) {
	if !f.writable {
		if err := f.walk(math.MaxInt64); err != nil {
			return storage.Info{}, f.error("stat", err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.folder.info(f.tail()), nil
}

// Allocate implements storage.File; a store cannot reserve space.
func (f *file) Allocate(int64, int64) error { return errors.ErrUnsupported }

// DropCache implements storage.File; slots do not change.
func (f *file) DropCache(int64, int64) error { return nil }

// Close implements storage.File. Bytes that were not synced are lost.
func (f *file) Close() error {
	f.forget()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.going, f.kept, f.broken = nil, nil, f.error("use", fs.ErrClosed)
	return nil
}
