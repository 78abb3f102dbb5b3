package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// FS is a file system for this package: exactly the operations whose failure matters, so that a test
// can make each of them fail. [OS] returns the operating system's; slots.New returns one on a store.
// Errors are those of the operating system (they wrap a syscall.Errno, so that errors.Is works). All
// methods are safe for concurrent use.
type FS interface {
	// Open opens a regular file. A symbolic link as the last element is refused (ELOOP).
	Open(name string, mode Mode) (File, error)
	// Link gives a file a second name. If that name exists it fails with EEXIST; it never replaces a file.
	Link(oldname, newname string) error
	// Remove removes a name. Only Keep removes the name of a finished file: see HalfRemover.
	Remove(name string) error
	// Mkdir creates one directory with mode 0750.
	Mkdir(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// List returns the names in a directory of files of a type, finished or not, in any order; an
	// empty typ stands for all types. Other names may be among them.
	List(dir, typ string) ([]string, error)
	// Stat describes the named file, without following a symbolic link.
	Stat(name string) (Info, error)
	// Type returns the file system of a directory.
	Type(dir string) (FSType, error)
}

// HalfRemover is implemented by an FS that removes a file in several steps. After the first step
// the file is no longer listed, and Remove of its name continues where an earlier call ended.
type HalfRemover interface {
	FS
	// HalfRemoved returns the names of files of a type whose removal began and did not finish.
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
	// Append appends p at the end of the file with one write(2). It returns the number of bytes of p
	// that were written, and the file position after them as the kernel reports it: p[:n] is at
	// [end-n, end). The error of a short write is nil. Append must not complete it with a second
	// write, because another writer's bytes could land in between.
	//
	// A file may buffer appended bytes until Datasync. Then Append always takes all of p, end is
	// where p will end if it becomes durable, and Datasync reports an error if it does not.
	Append(p []byte) (n int, end int64, err error)
	// Datasync returns when everything that was appended before the call is durable. An error is
	// reported once per descriptor; after it, bytes may be lost even if they can still be read. It
	// is a *MovedError if the file buffered appended bytes and another writer has appended
	// meanwhile; then none of the buffered bytes are in the file, now or later, and the buffer is
	// empty.
	//
	// It may run concurrently with Append.
	Datasync() error
	// Allocate reserves space for the bytes [off, off+n) without changing the file's size
	// (fallocate KEEP_SIZE). Its error matches errors.ErrUnsupported if the file system cannot do that.
	Allocate(off, n int64) error
	// DropCache makes the next reads of [off, off+n) come from the device; n = 0 means to the end. It
	// affects whole pages only.
	DropCache(off, n int64) error
	Stat() (Info, error)
	Close() error
}

// Info describes a file.
type Info struct {
	Size  int64  // bytes
	Dev   uint64 // with Ino: identity of the file
	Ino   uint64
	Nlink uint64 // number of names; 0 = removed
}

func (i Info) same(j Info) bool { return i.Dev == j.Dev && i.Ino == j.Ino }

// FSType names a file system.
type FSType struct {
	Magic int64 // f_type of statfs(2)
	Name  string
	Slots bool // a store of slots, which itself decides which append is first; Magic has no meaning
}

// MovedError says that a file that buffers appended bytes does not end where its writer expects.
type MovedError struct {
	At  int64 // where the first buffered byte should have been
	End int64 // a later end of the file, if known
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("another writer has appended at byte %d; the file now has at least %d bytes", e.At, e.End)
}

// InPieces is implemented by a File that consists of pieces stored and read one by one, so that
// their number matters as well as their bytes.
type InPieces interface {
	File
	// Pieces returns the number of pieces, as far as this File knows; it may estimate the number of
	// those that it has not listed. It is safe for concurrent use.
	Pieces() int
	// Hole returns the first bytes [off, end) of the file that are in no piece although later pieces
	// exist: one was removed. off equals end if there is no hole. Hole reads nothing. It is reliable
	// only for a File opened for reading: one for appending may not have listed all pieces.
	Hole() (off, end int64)
	// Names returns the names of the first and the last piece that have, or should have, bytes of
	// [off, end), so that an operator can find them. It reads nothing.
	Names(off, end int64) (first, last string)
}

// listDirectory implements FS.List for a directory of the operating system.
func listDirectory(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

// orOS returns fsys, or OS() if fsys is nil.
func orOS(fsys FS) FS {
	if fsys == nil {
		return OS()
	}
	return fsys
}
