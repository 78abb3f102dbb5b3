package storagetest

import (
	"sync/atomic"

	"github.com/fencepost/fencepost/storage"
)

// Op names a call of storage.FS or storage.File.
type Op string

// The calls that a Tap sees.
const (
	OpOpen      Op = "open"
	OpLink      Op = "link"
	OpRemove    Op = "remove"
	OpMkdir     Op = "mkdir"
	OpSyncDir   Op = "syncdir"
	OpList      Op = "list"
	OpStat      Op = "stat"
	OpType      Op = "type"
	OpAppend    Op = "append"
	OpRead      Op = "read"
	OpDatasync  Op = "datasync"
	OpAllocate  Op = "allocate"
	OpDropCache Op = "dropcache"
	OpFileStat  Op = "fstat"
	OpClose     Op = "close"
)

// Call is one call.
type Call struct {
	N    int // its number, from 0, over all calls that went through the tap
	Op   Op
	Name string
	Off  int64
	Len  int64
	Data []byte // OpAppend: what is to be appended; not to be kept or changed
}

// Fault is what happens instead of the call: nothing, but for an append of which Short bytes land; then it returns Err.
// An append with a nil Err returns a short count.
type Fault struct {
	Err   error
	Short int
}

// Tap is a file system around another one. Before, After and Failed, if set, are called around every call, in the goroutine of the
// caller and without any lock held: they may use the underlying file system, and let other writers run to any point.
type Tap struct {
	FS     storage.FS
	Before func(Call) *Fault // non-nil: the call is not made
	After  func(Call)
	Failed func(Call, error) // after a call that was made and returned an error

	n atomic.Int64
}

// Calls returns how many calls went through the tap.
func (t *Tap) Calls() int { return int(t.n.Load()) }

// call runs f between the hooks.
func (t *Tap) call(c Call, f func() error) error {
	c.N = int(t.n.Add(1)) - 1
	if t.Before != nil {
		if fault := t.Before(c); fault != nil {
			return fault.Err
		}
	}
	err := f()
	if err != nil && t.Failed != nil {
		t.Failed(c, err)
	}
	if t.After != nil {
		t.After(c)
	}
	return err
}

// Open implements storage.FS.
func (t *Tap) Open(name string, mode storage.Mode) (f storage.File, err error) {
	err = t.call(Call{Op: OpOpen, Name: name}, func() (err error) {
		f, err = t.FS.Open(name, mode)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &tapFile{t: t, f: f, name: name}, nil
}

// Link implements storage.FS.
func (t *Tap) Link(oldname, newname string) error {
	return t.call(Call{Op: OpLink, Name: newname}, func() error { return t.FS.Link(oldname, newname) })
}

// Remove implements storage.FS.
func (t *Tap) Remove(name string) error {
	return t.call(Call{Op: OpRemove, Name: name}, func() error { return t.FS.Remove(name) })
}

// Mkdir implements storage.FS.
func (t *Tap) Mkdir(name string) error {
	return t.call(Call{Op: OpMkdir, Name: name}, func() error { return t.FS.Mkdir(name) })
}

// SyncDir implements storage.FS.
func (t *Tap) SyncDir(name string) error {
	return t.call(Call{Op: OpSyncDir, Name: name}, func() error { return t.FS.SyncDir(name) })
}

// List implements storage.FS.
func (t *Tap) List(dir, typ string) (names []string, err error) {
	err = t.call(Call{Op: OpList, Name: dir}, func() (err error) {
		names, err = t.FS.List(dir, typ)
		return err
	})
	return names, err
}

// Stat implements storage.FS.
func (t *Tap) Stat(name string) (i storage.Info, err error) {
	err = t.call(Call{Op: OpStat, Name: name}, func() (err error) {
		i, err = t.FS.Stat(name)
		return err
	})
	return i, err
}

// Type implements storage.FS.
func (t *Tap) Type(dir string) (f storage.FSType, err error) {
	err = t.call(Call{Op: OpType, Name: dir}, func() (err error) {
		f, err = t.FS.Type(dir)
		return err
	})
	return f, err
}

// tapFile is an open file of a Tap.
type tapFile struct {
	t    *Tap
	f    storage.File
	name string
}

// Append implements storage.File. A Fault with Short makes only the first bytes land.
func (f *tapFile) Append(p []byte) (n int, end int64, err error) {
	c := Call{N: int(f.t.n.Add(1)) - 1, Op: OpAppend, Name: f.name, Len: int64(len(p)), Data: p}
	var fault *Fault
	if f.t.Before != nil {
		fault = f.t.Before(c)
	}
	switch {
	case fault == nil:
		if n, end, err = f.f.Append(p); err != nil && f.t.Failed != nil {
			f.t.Failed(c, err)
		}
	case fault.Short == 0 && fault.Err != nil:
		return 0, 0, fault.Err
	default:
		n, end, err = f.f.Append(p[:fault.Short])
		if err == nil {
			err = fault.Err
		}
	}
	if f.t.After != nil {
		f.t.After(c)
	}
	return n, end, err
}

func (f *tapFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.t.call(Call{Op: OpRead, Name: f.name, Off: off, Len: int64(len(p))}, func() (err error) {
		n, err = f.f.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *tapFile) Datasync() error {
	return f.t.call(Call{Op: OpDatasync, Name: f.name}, f.f.Datasync)
}

func (f *tapFile) Allocate(off, n int64) error {
	return f.t.call(Call{Op: OpAllocate, Name: f.name, Off: off, Len: n}, func() error { return f.f.Allocate(off, n) })
}

func (f *tapFile) DropCache(off, n int64) error {
	return f.t.call(Call{Op: OpDropCache, Name: f.name, Off: off, Len: n}, func() error { return f.f.DropCache(off, n) })
}

func (f *tapFile) Stat() (i storage.Info, err error) {
	err = f.t.call(Call{Op: OpFileStat, Name: f.name}, func() (err error) {
		i, err = f.f.Stat()
		return err
	})
	return i, err
}

func (f *tapFile) Close() error {
	return f.t.call(Call{Op: OpClose, Name: f.name}, f.f.Close)
}
