package storagetest

import (
	"slices"
	"sync"

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

// Changes reports whether such a call changes what other processes see, or makes it durable. Open does not: a late one returns no file.
func (o Op) Changes() bool {
	return slices.Contains([]Op{OpLink, OpRemove, OpMkdir, OpSyncDir, OpAppend, OpDatasync}, o)
}

// Call is one call.
type Call struct {
	N    int // its number, from 0, among all calls through the tap
	Op   Op
	Name string
	Off  int64
	Len  int64
	Data []byte // OpAppend: the bytes to append; must not be kept or changed
}

// Fault replaces a call. By default nothing is done, except that an append writes the first Short bytes; the call returns Err.
// An append with a nil Err returns a short count.
type Fault struct {
	Err     error
	Short   int
	Applied bool // the call is made, and its answer is lost: it returns Err nevertheless
	Late    bool // for a call that changes something: it is made when Deliver is called
}

// Tap is a file system around another one. Before, After and Failed, if set, are called around every call, in the caller's
// goroutine and without any lock held: they may use the underlying file system, and let other writers run to any point.
type Tap struct {
	FS     storage.FS
	Before func(Call) *Fault // non-nil: the call is not made
	After  func(Call)
	Failed func(Call, error) // called after a call that was made and returned an error

	mu   sync.Mutex
	n    int
	late []lateCall
}

// lateCall is a pending call, of an open file or of the file system.
type lateCall struct {
	of   *tapFile
	make func()
}

// Calls returns how many calls went through the tap.
func (t *Tap) Calls() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// Late returns how many calls are pending.
func (t *Tap) Late() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.late)
}

// Deliver makes pending call i. Its caller no longer waits for the answer.
func (t *Tap) Deliver(i int) {
	t.mu.Lock()
	c := t.late[i]
	t.late = slices.Delete(t.late, i, i+1)
	closes := c.of != nil && c.of.closed && !t.waits(c.of)
	t.mu.Unlock()
	c.make()
	if closes {
		_ = c.of.f.Close()
	}
}

// waits reports whether a call of f is pending. mu is held.
func (t *Tap) waits(f *tapFile) bool {
	return slices.ContainsFunc(t.late, func(c lateCall) bool { return c.of == f })
}

// begin counts a call, and returns the Fault that Before chooses for it.
func (t *Tap) begin(c *Call) *Fault {
	t.mu.Lock()
	c.N = t.n
	t.n++
	t.mu.Unlock()
	if t.Before == nil {
		return nil
	}
	return t.Before(*c)
}

// delay keeps a call for Deliver.
func (t *Tap) delay(of *tapFile, call func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = append(t.late, lateCall{of, call})
}

// call runs f between the hooks.
func (t *Tap) call(c Call, of *tapFile, f func() error) error {
	fault := t.begin(&c)
	if fault != nil && fault.Late && c.Op.Changes() {
		t.delay(of, func() { _ = f() })
	}
	if fault != nil && !fault.Applied {
		return fault.Err
	}
	err := f()
	if err != nil && t.Failed != nil {
		t.Failed(c, err)
	}
	if t.After != nil {
		t.After(c)
	}
	if fault != nil {
		err = fault.Err
	}
	return err
}

// Open implements storage.FS.
func (t *Tap) Open(name string, mode storage.Mode) (f storage.File, err error) {
	err = t.call(Call{Op: OpOpen, Name: name}, nil, func() (err error) {
		f, err = t.FS.Open(name, mode)
		return err
	})
	if err != nil {
		if f != nil { // the caller does not get it
			_ = f.Close()
		}
		return nil, err
	}
	tapped := &tapFile{t: t, f: f, name: name}
	if p, ok := f.(storage.InPieces); ok {
		return struct {
			*tapFile
			pieces
		}{tapped, p}, nil
	}
	return tapped, nil
}

// Link implements storage.FS.
func (t *Tap) Link(oldname, newname string) error {
	return t.call(Call{Op: OpLink, Name: newname}, nil, func() error { return t.FS.Link(oldname, newname) })
}

// Remove implements storage.FS.
func (t *Tap) Remove(name string) error {
	return t.call(Call{Op: OpRemove, Name: name}, nil, func() error { return t.FS.Remove(name) })
}

// Mkdir implements storage.FS.
func (t *Tap) Mkdir(name string) error {
	return t.call(Call{Op: OpMkdir, Name: name}, nil, func() error { return t.FS.Mkdir(name) })
}

// SyncDir implements storage.FS.
func (t *Tap) SyncDir(name string) error {
	return t.call(Call{Op: OpSyncDir, Name: name}, nil, func() error { return t.FS.SyncDir(name) })
}

// List implements storage.FS.
func (t *Tap) List(dir, typ string) (names []string, err error) {
	err = t.call(Call{Op: OpList, Name: dir}, nil, func() (err error) {
		names, err = t.FS.List(dir, typ)
		return err
	})
	return names, err
}

// Stat implements storage.FS.
func (t *Tap) Stat(name string) (i storage.Info, err error) {
	err = t.call(Call{Op: OpStat, Name: name}, nil, func() (err error) {
		i, err = t.FS.Stat(name)
		return err
	})
	return i, err
}

// Type implements storage.FS.
func (t *Tap) Type(dir string) (f storage.FSType, err error) {
	err = t.call(Call{Op: OpType, Name: dir}, nil, func() (err error) {
		f, err = t.FS.Type(dir)
		return err
	})
	return f, err
}

// pieces are the methods that only a storage.InPieces has.
type pieces interface {
	Pieces() int
	Hole() (off, end int64)
	Names(off, end int64) (first, last string)
}

// tapFile is an open file of a Tap.
type tapFile struct {
	t      *Tap
	f      storage.File
	name   string
	closed bool // Close was called; Deliver closes f after the last pending call, if there is one; guarded by Tap.mu
}

// Append implements storage.File. With Fault.Short it appends only the first bytes.
func (f *tapFile) Append(p []byte) (n int, end int64, err error) {
	c := Call{Op: OpAppend, Name: f.name, Len: int64(len(p)), Data: p}
	fault := f.t.begin(&c)
	switch {
	case fault == nil:
		if n, end, err = f.f.Append(p); err != nil && f.t.Failed != nil {
			f.t.Failed(c, err)
		}
	case fault.Late:
		data := slices.Clone(p)
		f.t.delay(f, func() { _, _, _ = f.f.Append(data) })
		return 0, 0, fault.Err
	case fault.Applied:
		_, _, _ = f.f.Append(p)
		err = fault.Err
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
	err = f.t.call(Call{Op: OpRead, Name: f.name, Off: off, Len: int64(len(p))}, f, func() (err error) {
		n, err = f.f.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *tapFile) Datasync() error {
	return f.t.call(Call{Op: OpDatasync, Name: f.name}, f, f.f.Datasync)
}

func (f *tapFile) Allocate(off, n int64) error {
	return f.t.call(Call{Op: OpAllocate, Name: f.name, Off: off, Len: n}, f, func() error { return f.f.Allocate(off, n) })
}

func (f *tapFile) DropCache(off, n int64) error {
	return f.t.call(Call{Op: OpDropCache, Name: f.name, Off: off, Len: n}, f, func() error { return f.f.DropCache(off, n) })
}

func (f *tapFile) Stat() (i storage.Info, err error) {
	err = f.t.call(Call{Op: OpFileStat, Name: f.name}, f, func() (err error) {
		i, err = f.f.Stat()
		return err
	})
	return i, err
}

func (f *tapFile) Close() error {
	return f.t.call(Call{Op: OpClose, Name: f.name}, f, func() error {
		f.t.mu.Lock()
		f.closed = true
		waits := f.t.waits(f)
		f.t.mu.Unlock()
		if waits { // Deliver closes it
			return nil
		}
		return f.f.Close()
	})
}
