package storage

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// A new file appears whole or not at all:
//
//	header ──▶ .orders.fpl.….tmp ──fsync──▶ link(2) to orders.fpl ──▶ fsync of the directory ──▶ first fence
//
// link(2) fails if the name exists. So if several processes create a file concurrently, one wins, and
// all of them continue with its file.

// syncNames makes the file's name durable.
//
// rule: names come before content. The process that created the file, or a directory above it, may have died before
// it synced the directory, or may not have synced it yet. So every writer that opens the file syncs its directory, and
// one that finds no fence in it syncs all directories above. A fence therefore proves that the names are durable.
func (w *Writer) syncNames() error {
	if err := w.fs.SyncDir(w.dir); err != nil {
		return ioError("sync directory", w.dir, err)
	}
	info, err := w.file.Stat()
	if err != nil {
		return ioError("stat", w.path, err)
	}
	if info.Size > headerSize {
		return nil
	}
	return w.syncParents()
}

// syncParents makes the names of the file's directory and of those above it durable.
func (w *Writer) syncParents() error {
	for dir := w.dir; filepath.Dir(dir) != dir; {
		dir = filepath.Dir(dir)
		err := w.fs.SyncDir(dir)
		// A parent that this user cannot read, or of a kind that has nothing to sync, was not created
		// by a writer.
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EROFS) {
			return ioError("sync directory", dir, err)
		}
	}
	return nil
}

func readHeaderAt(fsys FS, path string) (*fileHeader, error) {
	f, err := fsys.Open(path, ModeRead)
	if err != nil {
		return nil, ioError("open", path, err)
	}
	defer f.Close()
	return readFileHeader(path, f)
}

func readFileHeader(path string, f File) (*fileHeader, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, ioError("stat", path, err)
	}
	b := make([]byte, min(info.Size, headerSize))
	if len(b) > 0 {
		if _, err := f.ReadAt(b, 0); err != nil {
			return nil, ioError("read the header of", path, err)
		}
	}
	h, err := decodeFileHeader(path, b)
	if damaged, ok := errors.AsType[*HeaderError](err); ok {
		damaged.Pieces = piecesOf(f, 0, headerSize)
	}
	return h, err
}

// checkHeader checks that the file has the type and generation in its name, and needs no feature that this writer does not know.
func (w *Writer) checkHeader(generation uint64) error {
	if w.header.typ != w.typ || w.header.generation != generation {
		return &WrongTypeError{Path: w.path, Want: w.typ, Found: w.header.typ, Generation: w.header.generation}
	}
	if unknown := w.header.roCompat &^ knownROCompat; unknown != 0 {
		return &VersionError{Path: w.path, Major: w.header.major, Minor: w.header.minor, Incompat: unknown}
	}
	return nil
}

// create creates the file in the steps above. It is no error if another process was first.
func (w *Writer) create() error {
	if err := w.mkdirs(w.dir); err != nil {
		return err
	}
	h, err := w.newHeader()
	if err != nil {
		return err
	}
	tmp := filepath.Join(w.dir, TempName(w.typ, h.generation, le64(h.fileID[:])))
	if err := w.writeTemp(tmp, h.encode()); err != nil {
		_ = w.fs.Remove(tmp) // it may not exist; the error of the write is the one that matters
		return err
	}
	// rule: link(2), never rename: it fails if another process was first, and never replaces a file.
	err = w.fs.Link(tmp, w.path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // the second: that process has removed the temporary file
		err = nil
	}
	if err != nil {
		return errors.Join(ioError("create", w.path, err), ignoreNotExist(w.fs.Remove(tmp)))
	}
	return ioError("remove", tmp, ignoreNotExist(w.fs.Remove(tmp)))
}

// newHeader returns the header of a new file, with a random identity and sync marker.
func (w *Writer) newHeader() (*fileHeader, error) {
	h := &fileHeader{major: majorVersion, minor: minorVersion, generation: 1, createdNs: time.Now().UnixNano(), typ: w.typ, schema: w.opts.Schema}
	if _, err := rand.Read(h.fileID[:]); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	if _, err := rand.Read(h.marker[:]); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	return h, nil
}

// writeTemp creates a durable file under a temporary name, with only a header.
func (w *Writer) writeTemp(tmp string, header []byte) error {
	f, err := w.fs.Open(tmp, ModeCreate)
	if err != nil {
		return ioError("create", tmp, err)
	}
	err = appendWhole(f, header)
	if err == nil {
		err = f.Datasync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return ioError("write", tmp, err)
}

// appendWhole appends to a file that has only a temporary name. No other process writes to it, so a short write is an ordinary error.
func appendWhole(f File, b []byte) error {
	n, _, err := f.Append(b)
	if err == nil && n < len(b) {
		err = &ShortWriteError{Want: len(b), Wrote: n}
	}
	return err
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mkdirs creates dir and its missing parents.
func (w *Writer) mkdirs(dir string) error {
	err := w.fs.Mkdir(dir)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := w.mkdirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = w.fs.Mkdir(dir)
	}
	if errors.Is(err, fs.ErrExist) {
		if _, err := w.fs.Type(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %s is a symbolic link to a directory that does not exist; mount or create that one, or name another (%w)", ErrRefused, dir, err)
		}
		return nil
	}
	return ioError("create directory", dir, err)
}
