// Package storagetest tests file systems for package storage, and has file systems for the tests of higher layers.
//
// [Run] is the conformance suite. It tests the contract of storage.FS and storage.File, and then runs whole lives of files, from the
// first append to the removal of old files. Each run disturbs one operation:
//
//	                        made, lost, made without an answer, made late, refused, answered with an old listing
//	session ──▶ operation ──┤
//	                        before it or after it: another session takes over, works, removes old files; the power fails
//
// An operation is a call of the file system, or a request that it sends, if the backend can disturb those. Afterwards another session
// completes all messages, and each acknowledged message must exist once, at its index, in files that storage.Verify finds sound.
// Finally, many sessions interleave at random. A test of a backend is one call:
//
//	storagetest.Run(t, storagetest.Backend{New: func(t *testing.T) storagetest.Place {
//		dir := t.TempDir()
//		return storagetest.Place{Dir: dir, FS: func(context.Context) storage.FS { return mine.Open(dir) }}
//	}})
//
// For a store of slots, slotstest.Backend makes the Backend.
//
// [Mem] is a file system in memory that loses unsynced data, as a real one does in a power failure. [Tap] calls hooks before and after
// every call of any file system, to inject a fault or to let another goroutine run.
//
// Mem keeps two views of each file. Reads and writes go to the page cache; Datasync, Writeback and a failed writeback
// move blocks to the device, or lose them:
//
//	Append ──▶ cache, block dirty ──Datasync──▶ cache and device, block clean
//	                  │    └────FailWriteback──▶ cache only, block clean: readable, lost with the cache
//	                  └────────────Crash───────▶ any subset of the dirty blocks is on the device, the rest is lost
package storagetest

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/fencepost/fencepost/storage"
)

// ErrCrashed is returned by every call of a file that was open when Crash was called.
var ErrCrashed = errors.New("storagetest: the machine crashed")

const pageSize = 4096 // of the cache

// Mem is a file system in memory. Its methods are safe for concurrent use.
type Mem struct {
	mu        sync.Mutex
	block     int64
	names     map[string]*inode // as seen by programs
	diskNames map[string]*inode // as they are after a crash
	dirs      map[string]bool
	diskDirs  map[string]bool
	inodes    []*inode
	life      int // number of crashes
	free      int64

	// FSType is the file system that Type reports; it defaults to ext4.
	FSType storage.FSType
	// NoAllocate makes Allocate fail as unsupported.
	NoAllocate bool
	// ErrorOnce reports a failed writeback to one descriptor only, as ext4 may after a journal abort. Otherwise every
	// descriptor that was open before reports it once, as Linux has done since 4.13.
	ErrorOnce bool
	// FailedStay keeps blocks whose writeback failed off the device until they are dropped from the cache, although later syncs
	// succeed. ext4 does so with reserved space: the blocks are written, but stay marked as unwritten.
	FailedStay bool
}

// NewMem returns an empty file system whose device writes blocks of the given size, 512 or 4096 bytes, atomically. It has
// the root directory "/".
func NewMem(block int64) *Mem {
	return &Mem{block: block, names: map[string]*inode{}, diskNames: map[string]*inode{}, dirs: map[string]bool{"/": true},
		diskDirs: map[string]bool{"/": true}, free: 1 << 50, FSType: storage.FSType{Magic: 0xEF53, Name: "ext4"}}
}

// pathError returns an error about a path in the form of the operating system.
func pathError(op, name string, err error) error { return &os.PathError{Op: op, Path: name, Err: err} }

// Open implements storage.FS.
func (m *Mem) Open(name string, mode storage.Mode) (storage.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	switch {
	case mode == storage.ModeCreate && n != nil:
		return nil, pathError("open", name, syscall.EEXIST)
	case mode == storage.ModeCreate && !m.dirs[filepath.Dir(name)], mode != storage.ModeCreate && n == nil:
		return nil, pathError("open", name, syscall.ENOENT)
	case mode == storage.ModeCreate:
		n = &inode{ino: uint64(len(m.inodes) + 1), nlink: 1, dirty: map[int64]bool{}, failed: map[int64]bool{}}
		m.inodes = append(m.inodes, n)
		m.names[name] = n
	}
	// A new descriptor also reports an error that no descriptor has reported yet.
	return &memFile{m: m, n: n, name: name, life: m.life, writable: mode != storage.ModeRead, seen: n.seen}, nil
}

// Link implements storage.FS.
func (m *Mem) Link(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.names[oldname] == nil:
		return pathError("link", oldname, syscall.ENOENT)
	case m.names[newname] != nil:
		return pathError("link", newname, syscall.EEXIST)
	}
	m.names[newname] = m.names[oldname]
	m.names[newname].nlink++
	return nil
}

// Remove implements storage.FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] == nil {
		return pathError("unlink", name, syscall.ENOENT)
	}
	m.names[name].nlink--
	delete(m.names, name)
	return nil
}

// Rename renames a file, and replaces an existing one. Package storage never does that; operators do.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[oldname]
	if n == nil {
		return pathError("rename", oldname, syscall.ENOENT)
	}
	if over := m.names[newname]; over != nil {
		over.nlink--
	}
	delete(m.names, oldname)
	m.names[newname] = n
	return nil
}

// Mkdir implements storage.FS.
func (m *Mem) Mkdir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.dirs[name] || m.names[name] != nil:
		return pathError("mkdir", name, syscall.EEXIST)
	case !m.dirs[filepath.Dir(name)]:
		return pathError("mkdir", name, syscall.ENOENT)
	}
	m.dirs[name] = true
	return nil
}

// SyncDir implements storage.FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[name] {
		return pathError("open", name, syscall.ENOENT)
	}
	syncNames(m.diskNames, m.names, name)
	syncNames(m.diskDirs, m.dirs, name)
	return nil
}

// syncNames makes the names in one directory survive a crash.
func syncNames[T any](disk, now map[string]T, dir string) {
	for name := range disk {
		if _, ok := now[name]; !ok && filepath.Dir(name) == dir {
			delete(disk, name)
		}
	}
	for name, n := range now {
		if filepath.Dir(name) == dir {
			disk[name] = n
		}
	}
}

// List implements storage.FS.
func (m *Mem) List(dir, _ string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[dir] {
		return nil, pathError("open", dir, syscall.ENOENT)
	}
	var names []string
	for name := range m.names {
		if filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Stat implements storage.FS.
func (m *Mem) Stat(name string) (storage.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	if n == nil {
		return storage.Info{}, pathError("stat", name, syscall.ENOENT)
	}
	return n.info(), nil
}

// Type implements storage.FS.
func (m *Mem) Type(dir string) (storage.FSType, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[dir] {
		return storage.FSType{}, pathError("statfs", dir, syscall.ENOENT)
	}
	return m.FSType, nil
}

// Block returns the size of the device's blocks.
func (m *Mem) Block() int64 { return m.block }

// SetFree sets how many more bytes fit on the device, in addition to reserved space.
func (m *Mem) SetFree(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free = n
}

// WriteFile creates a file, or replaces its content, durably.
func (m *Mem) WriteFile(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	if n == nil {
		n = &inode{ino: uint64(len(m.inodes) + 1), nlink: 1}
		m.inodes = append(m.inodes, n)
	}
	n.cache, n.disk, n.dirty, n.failed = slices.Clone(data), slices.Clone(data), map[int64]bool{}, map[int64]bool{}
	m.names[name], m.diskNames[name] = n, n
}

// ReadFile returns the current content of a file as programs see it; nil if it does not exist.
func (m *Mem) ReadFile(name string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.names[name]; n != nil {
		return slices.Clone(n.cache)
	}
	return nil
}

// Names returns the names of all files, sorted.
func (m *Mem) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Dirty returns the numbers of the blocks of a file that are only in the cache and would be written by Datasync.
func (m *Mem) Dirty(name string) []int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	if n == nil {
		return nil
	}
	return n.dirtyBlocks()
}

// Writeback writes some dirty blocks of a file to the device, as the kernel may at any time.
func (m *Mem) Writeback(name string, choose func(block int64) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.names[name]; n != nil {
		for _, b := range n.dirtyBlocks() {
			if choose(b) {
				n.flush(b, m.block, int64(len(n.cache)))
				delete(n.dirty, b)
			}
		}
	}
}

// FailWriteback fails to write the dirty blocks of a file that lose selects; a nil lose selects all. They are clean from then on: still
// in the cache, not on the device. The next Datasync of each descriptor that is open now reports EIO.
func (m *Mem) FailWriteback(name string, lose func(block int64) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	if n == nil {
		return
	}
	for _, b := range n.dirtyBlocks() {
		if lose == nil || lose(b) {
			delete(n.dirty, b)
			n.failed[b] = m.FailedStay
		}
	}
	n.errors++
}

// Crash says which unsynced data survives a power failure. Nil functions answer no, except At.
type Crash struct {
	Keep func(name string, block int64) bool // this dirty block reached the device
	// At returns how long the file was when the block reached the device: bytes appended to it later are lost. Nil: none are lost.
	At       func(name string, block int64) int64
	KeepSize func(name string) bool // the file's length reached the device, even if its blocks did not
	KeepName func(name string) bool // this new name is in its directory, or this removed one is gone
}

// Crash cuts the power and restarts. Open files return ErrCrashed from then on.
func (m *Mem) Crash(c Crash) {
	m.mu.Lock()
	defer m.mu.Unlock()
	yes := func(f func(string) bool, name string) bool { return f != nil && f(name) }
	for name, n := range m.names {
		for _, b := range n.dirtyBlocks() {
			if c.Keep != nil && c.Keep(name, b) {
				size := int64(len(n.cache))
				if c.At != nil {
					size = min(size, c.At(name, b))
				}
				n.flush(b, m.block, size)
			}
			delete(n.dirty, b)
		}
		if len(n.disk) < len(n.cache) && yes(c.KeepSize, name) {
			n.extend(int64(len(n.cache)))
		}
	}
	survive(m.diskNames, m.names, func(name string) bool { return yes(c.KeepName, name) })
	survive(m.diskDirs, m.dirs, func(name string) bool { return yes(c.KeepName, name) })
	for _, dir := range slices.Sorted(maps.Keys(m.diskDirs)) { // parents first
		if !m.diskDirs[filepath.Dir(dir)] {
			delete(m.diskDirs, dir)
		}
	}
	for name := range m.diskNames {
		if !m.diskDirs[filepath.Dir(name)] {
			delete(m.diskNames, name)
		}
	}
	m.names, m.dirs = maps.Clone(m.diskNames), maps.Clone(m.diskDirs)
	for _, n := range m.inodes {
		n.cache, n.dirty, n.failed = slices.Clone(n.disk), map[int64]bool{}, map[int64]bool{}
		n.nlink, n.errors, n.seen, n.reserved = 0, 0, 0, 0
	}
	for _, n := range m.names {
		n.nlink++
	}
	m.life++
}

// survive lets each unsynced change of names reach the device if keep returns true.
func survive[T any](disk, now map[string]T, keep func(string) bool) {
	for name := range disk {
		if _, ok := now[name]; !ok && keep(name) {
			delete(disk, name)
		}
	}
	for name, n := range now {
		if _, ok := disk[name]; !ok && keep(name) {
			disk[name] = n
		}
	}
}

// Clone returns an independent copy without open files, so that several futures of one moment can be tried.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem(m.block)
	c.free, c.FSType, c.NoAllocate, c.ErrorOnce, c.FailedStay = m.free, m.FSType, m.NoAllocate, m.ErrorOnce, m.FailedStay
	c.dirs, c.diskDirs = maps.Clone(m.dirs), maps.Clone(m.diskDirs)
	copies := map[*inode]*inode{}
	for _, n := range m.inodes {
		k := *n
		k.cache, k.disk, k.dirty, k.failed = slices.Clone(n.cache), slices.Clone(n.disk), maps.Clone(n.dirty), maps.Clone(n.failed)
		copies[n] = &k
		c.inodes = append(c.inodes, &k)
	}
	for name, n := range m.names {
		c.names[name] = copies[n]
	}
	for name, n := range m.diskNames {
		c.diskNames[name] = copies[n]
	}
	return c
}
