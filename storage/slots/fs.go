package slots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fencepost/fencepost/storage"
)

// FS is a file system for package storage on a [Store]; [New] makes one. Directories have no meaning in
// it: every directory has the same files. FS is safe for concurrent use.
type FS struct {
	ctx     context.Context
	store   Store
	room    *semaphore.Weighted // bounds the bytes of values that are being created
	reading *semaphore.Weighted // bounds the bytes that files cache for reading
	slow    func(time.Duration, error)
}

var _ storage.FS = (*FS)(nil)

// New returns the file system of a store. When ctx ends, all requests end; a writer whose request
// ends that way is poisoned, as after any failed sync.
func New(ctx context.Context, s Store) *FS {
	return &FS{ctx: ctx, store: s, room: semaphore.NewWeighted(mostCreating), reading: semaphore.NewWeighted(mostReading)}
}

// Until returns the file system with another context for its requests. Both share the memory limits of all files.
func (f *FS) Until(ctx context.Context) *FS {
	until := *f
	until.ctx = ctx
	return &until
}

// Observed is Until with an observer of its requests, see [Observe].
func (f *FS) Observed(ctx context.Context, tell func(Request)) *FS {
	observed := f.Until(ctx)
	observed.store = Observe(f.store, tell)
	return observed
}

// Slow returns the file system with a function that is called for each request that has no clear answer after a few seconds, so that a
// program can say what it waits for: within is how long all attempts may take, and err is the error of the last one, nil if it has not ended.
// tell is called concurrently, and the request does not return before it.
func (f *FS) Slow(tell func(within time.Duration, err error)) *FS {
	slow := *f
	slow.slow = tell
	return &slow
}

// mostSlot returns the maximum length of a slot that a writer creates, in bytes.
func (f *FS) mostSlot() int { return min(mostSlot, f.store.MaxValue()) }

// Dir returns the directory argument for functions that take one: the store's address, without secrets,
// so that errors name the store.
func (f *FS) Dir() string { return f.store.String() }

// Linger returns how long data should wait for more data before it is appended; see [Costly].
func (f *FS) Linger() time.Duration { return lingerOf(f.store) }

const (
	generationsFolder = "generations" // below the folder of a type; other folders there are numbers
	oldGenerations    = 3             // how many are searched for files that were never finished
	nonceSize         = 16            // digits
)

// folder identifies the folder with the slots of a file.
type folder struct {
	typ        string
	generation uint64
	nonce      uint64 // several writers can make the same generation; one of them gets the name
}

func (d folder) String() string {
	return fmt.Sprintf("%s/%08d/%016x", d.typ, d.generation, d.nonce)
}

// slot returns the name of the slot at an offset.
func (d folder) slot(off int64) string { return fmt.Sprintf("%s/%020d", d, off) }

// generationSlot returns the name of the value that names the folder of a generation.
func generationSlot(typ string, generation uint64) string {
	return fmt.Sprintf("%s/%s/%08d", typ, generationsFolder, generation)
}

// find returns the folder of the file at a path.
func (f *FS) find(op, name string) (folder, error) {
	base := filepath.Base(name)
	if typ, g, nonce, ok := storage.ParseTempName(base); ok {
		return folder{typ, g, nonce}, nil
	}
	typ, g, ok := storage.ParseName(base)
	if !ok {
		return folder{}, &fs.PathError{Op: op, Path: name, Err: syscall.EINVAL}
	}
	nonce, err := f.nonce(typ, g)
	if err != nil {
		return folder{}, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return folder{typ, g, nonce}, nil
}

// nonce returns the nonce of the folder of a generation, even if the generation was removed.
func (f *FS) nonce(typ string, generation uint64) (uint64, error) {
	name := generationSlot(typ, generation)
	b, err := f.readWhole(name, nonceSize)
	if err != nil {
		return 0, err
	}
	nonce, err := strconv.ParseUint(string(b), 16, 64)
	if err != nil || len(b) != nonceSize {
		return 0, fmt.Errorf("%w: %s of %s has %d bytes that do not name a folder; move it away, or restore it from a copy", storage.ErrIntegrity, name, f.store, len(b))
	}
	return nonce, nil
}

// Open implements storage.FS.
func (f *FS) Open(name string, mode storage.Mode) (storage.File, error) {
	d, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	file := &file{fs: f, name: name, folder: d, writable: mode != storage.ModeRead}
	if mode == storage.ModeCreate {
		return file, nil
	}
	if mode == storage.ModeAppend {
		err = file.refreshEnd()
	} else {
		err = file.refresh()
	}
	if err == nil {
		err = file.begins()
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	// rule: removal is checked after the slots are listed: slots deleted before the listing would be missing from it.
	switch removed, err := f.isRemoved(d.typ, d.generation); {
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	case removed:
		return nil, &fs.PathError{Op: "open", Path: name, Err: errRemoved}
	}
	return file, nil
}

// Link implements storage.FS: it gives a file with a temporary name the name of its generation.
func (f *FS) Link(oldname, newname string) error {
	d, err := f.find("link", oldname)
	if err != nil {
		return err
	}
	typ, g, ok := storage.ParseName(filepath.Base(newname))
	if !ok || typ != d.typ || g != d.generation {
		return &fs.PathError{Op: "link", Path: newname, Err: syscall.EINVAL}
	}
	// rule: the name of a generation is created, never replaced: of several writers, one gets it.
	if err := f.create(generationSlot(typ, g), fmt.Appendf(nil, "%016x", d.nonce)); err != nil {
		return &fs.PathError{Op: "link", Path: newname, Err: err}
	}
	return nil
}

// Remove implements storage.FS. A file with a temporary name stays if it also has the name of its generation,
// or if no file has that name yet, because its writer may be about to take the name.
func (f *FS) Remove(name string) error {
	if typ, g, ok := storage.ParseName(filepath.Base(name)); ok {
		if err := f.removeGeneration(typ, g); err != nil {
			return &fs.PathError{Op: "remove", Path: name, Err: err}
		}
		return nil
	}
	typ, g, nonce, ok := storage.ParseTempName(filepath.Base(name))
	if !ok {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.EINVAL}
	}
	// rule: slots are deleted only if their generation has a name that belongs to another file.
	switch other, err := f.nonce(typ, g); {
	case errors.Is(err, fs.ErrNotExist), err == nil && other == nonce:
		return nil
	case err != nil:
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	d := folder{typ, g, nonce}
	entries, err := f.list(d.String())
	if err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	for _, e := range entries {
		if err := f.delete(e.Name); err != nil {
			return &fs.PathError{Op: "remove", Path: name, Err: err}
		}
	}
	return nil
}

// List implements storage.FS. It returns only those unfinished files that can be removed.
func (f *FS) List(_, typ string) ([]string, error) {
	if typ != "" {
		names, newest, err := f.generations(typ)
		if err != nil {
			return nil, err
		}
		temps, err := f.unfinished(typ, newest)
		return append(names, temps...), err
	}
	types, err := f.folders("")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, typ := range types {
		if _, _, ok := storage.ParseName(storage.FileName(typ)); !ok {
			continue // not the folder of a type
		}
		names, _, err := f.generations(typ)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	return all, nil
}

// generations returns the names of the files of a type, and the newest generation.
func (f *FS) generations(typ string) (names []string, newest uint64, err error) {
	entries, err := f.list(typ + "/" + generationsFolder)
	if err != nil {
		return nil, 0, err
	}
	removed := marked(entries, removedSuffix)
	for _, e := range entries {
		g, ok := generationOf(typ, e.Name)
		if !ok {
			continue // not the name of a generation
		}
		newest = max(newest, g)
		if !removed[e.Name] {
			names = append(names, storage.GenerationName(typ, g))
		}
	}
	// The listing may be stale. A writer must know the newest generation, so later ones are looked up by name.
	//
	// rule: a removed generation is not a missing one: later ones exist.
	for {
		_, err := f.nonce(typ, newest+1)
		if errors.Is(err, fs.ErrNotExist) {
			return names, newest, nil
		}
		if err != nil && !errors.Is(err, storage.ErrIntegrity) {
			return nil, 0, err
		}
		newest++
		switch removed, err := f.isRemoved(typ, newest); {
		case err != nil:
			return nil, 0, err
		case !removed:
			names = append(names, storage.GenerationName(typ, newest))
		}
	}
}

// unfinished returns the temporary names of files that did not get the name of their generation. It
// searches the newest generations only; unfinished files of older ones were found when those were new.
func (f *FS) unfinished(typ string, newest uint64) ([]string, error) {
	var temps []string
	for g := newest; g > 0 && g+oldGenerations > newest; g-- {
		nonces, err := f.folders(fmt.Sprintf("%s/%08d", typ, g))
		if err != nil {
			return nil, err
		}
		if len(nonces) < 2 {
			continue // the file itself
		}
		named, err := f.nonce(typ, g)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the name was removed by hand: which of the folders has the file is unknown, and none can be removed
		}
		if err != nil {
			return nil, err
		}
		for _, n := range nonces {
			nonce, err := strconv.ParseUint(n, 16, 64)
			if err == nil && len(n) == nonceSize && nonce != named {
				temps = append(temps, storage.TempName(typ, g, nonce))
			}
		}
	}
	return temps, nil
}

// Stat implements storage.FS.
func (f *FS) Stat(name string) (storage.Info, error) {
	d, err := f.find("stat", name)
	if err != nil {
		return storage.Info{}, err
	}
	return d.info(0), nil
}

// info describes the file in the folder. It reports no other names (Nlink): in a store, a file that has lost its name was removed,
// not moved.
func (d folder) info(size int64) storage.Info {
	return storage.Info{Size: size, Ino: d.nonce, Dev: d.generation}
}

// Type implements storage.FS.
func (f *FS) Type(string) (storage.FSType, error) {
	return storage.FSType{Name: f.store.String(), Slots: true}, nil
}

// Mkdir implements storage.FS; there is nothing to make.
func (f *FS) Mkdir(string) error { return nil }

// SyncDir implements storage.FS; every name is durable already.
func (f *FS) SyncDir(string) error { return nil }

// offsets returns the slots in the listing of a folder, sorted by offset. It skips values
// without the name of a slot, which do not belong to the file.
//
// rule: a value whose size exceeds the store's maximum is skipped, too. Otherwise every process that lists it would take it for the end of the file.
func (f *FS) offsets(d folder, entries []Entry) []piece {
	prefix := d.String() + "/"
	pieces := make([]piece, 0, len(entries))
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name, prefix)
		off, err := strconv.ParseInt(digits, 10, 64)
		if ok && err == nil && e.Name == d.slot(off) && e.Size > 0 && e.Size <= int64(f.store.MaxValue()) {
			pieces = append(pieces, piece{off, e.Size})
		}
	}
	slices.SortFunc(pieces, comparePieces)
	return pieces
}
