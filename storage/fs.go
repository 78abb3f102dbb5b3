package storage

import (
	"fmt"
	"io"
)

// FS is what the package needs of a file system: exactly the operations whose failure matters, so
// that a test can make each of them fail. Errors are those of the operating system (syscall.Errno
// inside, so that errors.Is works).
type FS interface {
	// Open opens a regular file. A symbolic link as the last element is refused (ELOOP).
	Open(name string, mode Mode) (File, error)
	// Link gives a file a second name; it fails with EEXIST and never replaces.
	Link(oldname, newname string) error
	// Remove removes a name. Only Keep removes that of a file which was finished: see HalfRemover.
	Remove(name string) error
	// Mkdir creates one directory with mode 0750.
	Mkdir(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// List returns the names in a directory of files of a type, finished or not, in any order; an
	// empty typ stands for all types. Other names may be among them.
	List(dir, typ string) ([]string, error)
	// Stat describes what a name stands for now, without following a symbolic link.
	Stat(name string) (Info, error)
	// Type tells which file system a directory is on.
	Type(dir string) (FSType, error)
}

// HalfRemover is what an FS also is if removing a file takes several steps. The file is not listed
// any more after the first one, and Remove of its name goes on where an earlier call ended.
type HalfRemover interface {
	FS
	// HalfRemoved returns the names of files of a type whose removal was begun and not ended.
	HalfRemoved(typ string) ([]string, error)
}

// Mode says how to open a file.
type Mode int

const (
	ModeRead   Mode = iota // for reading
	ModeAppend             // for reading and appending
	ModeCreate             // as ModeAppend, but the file must not exist; mode 0640
)

// File is an open file. ReadAt and Stat may run concurrently with everything but Close.
type File interface {
	io.ReaderAt
	// Append appends p at the end of the file with one write(2), and returns how many bytes of p
	// were taken and the file position behind them as the kernel tells it: p[:n] is at [end-n,
	// end). A short count comes with a nil error; there is no loop that completes it, as foreign
	// bytes could then come between.
	//
	// A file may keep what is appended until Datasync. Then Append always takes all of p, end is
	// where p will be if it becomes durable, and Datasync tells where it is not.
	Append(p []byte) (n int, end int64, err error)
	// Datasync returns after everything that was appended before the call is durable. An error is
	// reported once per descriptor; whatever was not written is lost from then on even if it can
	// still be read. It is a *MovedError if the file kept what was appended, and somebody else has
	// appended meanwhile; then nothing that was kept is in the file, now or later, and nothing is
	// kept any more.
	//
	// It may run while Append runs.
	Datasync() error
	// Allocate reserves room for the bytes [off, off+n) without changing the file's size (fallocate
	// KEEP_SIZE). It matches errors.ErrUnsupported where the file system cannot.
	Allocate(off, n int64) error
	// DropCache makes the next reads of [off, off+n) come from the device; n = 0 means to the end.
	// Whole pages only.
	DropCache(off, n int64) error
	Stat() (Info, error)
	Close() error
}

// Info describes a file.
type Info struct {
	Size  int64  // bytes
	Dev   uint64 // with Ino: identity of the file
	Ino   uint64
	Nlink uint64 // names it has; 0 = removed
}

func (i Info) same(j Info) bool { return i.Dev == j.Dev && i.Ino == j.Ino }

// FSType names a file system.
type FSType struct {
	Magic int64 // f_type of statfs(2)
	Name  string
	Slots bool // a store of slots, which decides by itself whose append is first; Magic says nothing
}

// MovedError says that a file that keeps what is appended does not end where its owner believes.
type MovedError struct {
	At  int64 // where the first byte that was kept should have been
	End int64 // a later end of the file, as far as it is known
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("somebody else has appended at byte %d; the file has %d bytes or more now", e.At, e.End)
}

// InPieces is what a File also is if it consists of pieces that are stored and read one by one, so
// that their number counts as well as their bytes.
type InPieces interface {
	File
	// Pieces returns how many pieces the file has, as far as this File knows. It is safe for
	// concurrent use.
	Pieces() int
	// Hole returns the first bytes [off, end) of the file that are in no piece, although there are
	// later pieces: somebody removed one. off is end if all are there. It takes no reads.
	Hole() (off, end int64)
}

// orOS returns fsys, or the file system of the operating system if that is nil.
func orOS(fsys FS) FS {
	if fsys == nil {
		return OS()
	}
	return fsys
}
