//go:build !linux

package storage

import (
	"errors"
	"os"
	"runtime"
)

// OS returns the file system of the operating system. Outside Linux it only reads: the append and
// flush semantics that the writer needs were tested on Linux file systems only.
func OS() FS { return readOnlyFS{} }

type readOnlyFS struct{}

var errReadOnlyPlatform = errors.New("storage: files can be written on Linux only, not on " + runtime.GOOS + "; run the worker on Linux or in a container")

func (readOnlyFS) Open(name string, mode Mode) (File, error) {
	if mode != ModeRead {
		return nil, errReadOnlyPlatform
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return readOnlyFile{f}, nil
}

func (readOnlyFS) Link(string, string) error            { return errReadOnlyPlatform }
func (readOnlyFS) Remove(string) error                  { return errReadOnlyPlatform }
func (readOnlyFS) Mkdir(string) error                   { return errReadOnlyPlatform }
func (readOnlyFS) SyncDir(string) error                 { return errReadOnlyPlatform }
func (readOnlyFS) List(dir, _ string) ([]string, error) { return listDirectory(dir) }
func (readOnlyFS) writable(string) error                { return errReadOnlyPlatform }
func (readOnlyFS) Type(dir string) (FSType, error)      { return FSType{}, errReadOnlyPlatform }

func (readOnlyFS) Stat(name string) (Info, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return Info{}, err
	}
	return Info{Size: st.Size(), Nlink: 1}, nil
}

type readOnlyFile struct{ f *os.File }

func (f readOnlyFile) ReadAt(p []byte, off int64) (int, error) { return f.f.ReadAt(p, off) }
func (f readOnlyFile) Append([]byte) (int, int64, error)       { return 0, 0, errReadOnlyPlatform }
func (f readOnlyFile) Datasync() error                         { return errReadOnlyPlatform }
func (f readOnlyFile) Allocate(int64, int64) error             { return errReadOnlyPlatform }
func (f readOnlyFile) DropCache(int64, int64) error            { return nil }
func (f readOnlyFile) Close() error                            { return f.f.Close() }

func (f readOnlyFile) Stat() (Info, error) {
	st, err := f.f.Stat()
	if err != nil {
		return Info{}, err
	}
	return Info{Size: st.Size(), Nlink: 1}, nil
}
