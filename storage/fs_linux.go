package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OS returns the file system of the operating system.
func OS() FS { return osFS{} }

// osFS uses raw system calls: os.File completes short writes in a loop, and another writer's bytes
// could land in between.
type osFS struct{}

func (osFS) Open(name string, mode Mode) (File, error) {
	flags := unix.O_CLOEXEC | unix.O_NOFOLLOW
	switch mode {
	case ModeRead:
		// O_NONBLOCK: a FIFO at this path must not block the open; it has no effect on regular
		// files.
		flags |= unix.O_RDONLY | unix.O_NONBLOCK
	case ModeAppend:
		// rule: O_APPEND, so that the kernel finds the end and moves it under the inode's lock.
		flags |= unix.O_RDWR | unix.O_APPEND | unix.O_NONBLOCK
	case ModeCreate:
		flags |= unix.O_RDWR | unix.O_APPEND | unix.O_CREAT | unix.O_EXCL
	}
	fd, err := retryEINTR(func() (int, error) { return unix.Open(name, flags, 0o640) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := &osFile{fd: fd, name: name}
	if err := f.init(mode); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return f, nil
}

func (osFS) Link(oldname, newname string) error { return os.Link(oldname, newname) }
func (osFS) Remove(name string) error           { return unix.Unlink(name) }
func (osFS) Mkdir(name string) error            { return os.Mkdir(name, 0o750) }

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) List(dir, _ string) ([]string, error) { return listDirectory(dir) }

func (osFS) Stat(name string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return Info{}, &os.PathError{Op: "lstat", Path: name, Err: err}
	}
	return infoOf(&st), nil
}

func (osFS) Type(dir string) (FSType, error) {
	var st unix.Statfs_t
	// With the dot a file is an error.
	_, err := retryEINTR(func() (int, error) { return 0, unix.Statfs(filepath.Clean(dir)+"/.", &st) })
	if err != nil {
		return FSType{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return typeOf(&st), nil
}

// writable returns an error if this process may not create files in the directory.
func (osFS) writable(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &os.PathError{Op: "create files in", Path: dir, Err: unix.ENOTDIR}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "create files in", Path: dir, Err: err}
	}
	return nil
}

// osFile is a file descriptor. It is not an os.File: see osFS.
type osFile struct {
	fd    int
	name  string
	probe bool // the file system hides journal aborts from fdatasync: ext4
}

func (f *osFile) init(mode Mode) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return &os.PathError{Op: "fstat", Path: f.name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return &os.PathError{Op: "open", Path: f.name, Err: errors.New("not a regular file")}
	}
	var sf unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &sf); err != nil {
		return &os.PathError{Op: "fstatfs", Path: f.name, Err: err}
	}
	f.probe = typeOf(&sf).Magic == magicExt && mode != ModeRead // the probe's reservation requires a writable descriptor
	return nil
}

func (f *osFile) Append(p []byte) (int, int64, error) {
	var n int
	for {
		var err error
		n, err = unix.Write(f.fd, p)
		if err == nil {
			break
		}
		if err != unix.EINTR { // EINTR: not one byte was written, so this is not a second write of the same record
			return max(n, 0), 0, &os.PathError{Op: "write", Path: f.name, Err: err}
		}
	}
	// After an append the kernel leaves the position after this write's own last byte, even if other
	// processes have written meanwhile.
	end, err := unix.Seek(f.fd, 0, io.SeekCurrent)
	if err != nil {
		return n, 0, &os.PathError{Op: "lseek", Path: f.name, Err: err}
	}
	return n, end, nil
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	read := 0
	for read < len(p) {
		n, err := retryEINTR(func() (int, error) { return unix.Pread(f.fd, p[read:], off+int64(read)) })
		if err != nil {
			return read, &os.PathError{Op: "read", Path: f.name, Err: err}
		}
		if n == 0 {
			return read, io.EOF
		}
		read += n
	}
	return read, nil
}

func (f *osFile) Datasync() error {
	// No retry, not even for EINTR (which Linux does not return here): a second call could report
	// success for pages that the first one lost.
	if err := unix.Fdatasync(f.fd); err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.name, Err: err}
	}
	if !f.probe {
		return nil
	}
	// rule: on ext4 fdatasync can return success after another process's sync has aborted the journal (measured: the
	// appended bytes were gone after a remount). Reserving a block that already exists changes
	// nothing, but needs the journal, and fails with EROFS if it was aborted.
	if err := f.Allocate(0, headerSize); err != nil && !errors.Is(err, errors.ErrUnsupported) && !isNoSpace(err) {
		return fmt.Errorf("probe of the ext4 journal after fdatasync: %w", err)
	}
	return nil
}

func (f *osFile) Allocate(off, n int64) error {
	_, err := retryEINTR(func() (int, error) { return 0, unix.Fallocate(f.fd, unix.FALLOC_FL_KEEP_SIZE, off, n) })
	if err != nil {
		return &os.PathError{Op: "fallocate", Path: f.name, Err: err}
	}
	return nil
}

func (f *osFile) DropCache(off, n int64) error {
	_, err := retryEINTR(func() (int, error) { return 0, unix.Fadvise(f.fd, off, n, unix.FADV_DONTNEED) })
	if err != nil {
		return &os.PathError{Op: "fadvise", Path: f.name, Err: err}
	}
	return nil
}

func (f *osFile) Stat() (Info, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return Info{}, &os.PathError{Op: "fstat", Path: f.name, Err: err}
	}
	return infoOf(&st), nil
}

func (f *osFile) Close() error {
	if err := unix.Close(f.fd); err != nil {
		return &os.PathError{Op: "close", Path: f.name, Err: err}
	}
	return nil
}

func infoOf(st *unix.Stat_t) Info {
	return Info{Size: st.Size, Dev: uint64(st.Dev), Ino: st.Ino, Nlink: uint64(st.Nlink)}
}

// typeOf returns the file system of st. It removes the sign extension of f_type on some architectures.
func typeOf(st *unix.Statfs_t) FSType {
	magic := int64(uint32(st.Type))
	return FSType{Magic: magic, Name: fileSystems[magic].name}
}

// retryEINTR repeats a system call that a signal has interrupted. Use it only for calls that are safe to repeat.
func retryEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
