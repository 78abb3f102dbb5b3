package storage

import (
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
	// Remove removes a name.
	Remove(name string) error
	// Mkdir creates one directory with mode 0750.
	Mkdir(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// List returns the names in a directory, in any order.
	List(dir string) ([]string, error)
	// Stat describes what a name stands for now, without following a symbolic link.
	Stat(name string) (Info, error)
	// Type tells which file system a directory is on.
	Type(dir string) (FSType, error)
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
	Append(p []byte) (n int, end int64, err error)
	// Datasync returns after everything written to the file is on the device. An error is reported
	// once per descriptor; whatever was not written is lost from then on even if it can still be
	// read.
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
}
