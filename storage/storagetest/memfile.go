package storagetest

import (
	"errors"
	"io"
	"slices"
	"syscall"

	"github.com/fencepost/fencepost/storage"
)

// inode is a file of a Mem. It may have several names and open descriptors. Programs see cache; disk survives a crash.
type inode struct {
	ino      uint64
	nlink    uint64
	cache    []byte // its length is the size that programs see
	disk     []byte // its length is the size that survives
	dirty    map[int64]bool
	failed   map[int64]bool // with FailedStay: blocks that do not reach the device
	reserved int64
	errors   int // failed writebacks
	seen     int // how many of them were reported to any descriptor
}

func (n *inode) info() storage.Info {
	return storage.Info{Size: int64(len(n.cache)), Dev: 1, Ino: n.ino, Nlink: n.nlink}
}

func (n *inode) dirtyBlocks() []int64 {
	var blocks []int64
	for b := range n.dirty {
		blocks = append(blocks, b)
	}
	slices.Sort(blocks)
	return blocks
}

// flush copies block b, as it was when the file had length bytes, from the cache to the device.
func (n *inode) flush(b, size, length int64) {
	from, to := b*size, min((b+1)*size, length)
	if from < to && !n.failed[b] {
		n.extend(to)
		copy(n.disk[from:to], n.cache[from:to])
	}
}

// extend makes the surviving length at least size.
func (n *inode) extend(size int64) {
	if int64(len(n.disk)) < size {
		n.disk = append(n.disk, make([]byte, size-int64(len(n.disk)))...)
	}
}

// memFile is an open file.
type memFile struct {
	m        *Mem
	n        *inode
	name     string
	life     int
	writable bool
	closed   bool
	seen     int // failed writebacks that this descriptor has reported
}

// begin locks the file system and returns an error if f is unusable. The caller unlocks.
func (f *memFile) begin(op string) error {
	f.m.mu.Lock()
	switch {
	case f.life != f.m.life:
		return pathError(op, f.name, ErrCrashed)
	case f.closed:
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

// Append implements storage.File: it writes to the cache. On a full device it appends what fits, as Linux does.
func (f *memFile) Append(p []byte) (int, int64, error) {
	defer f.m.mu.Unlock()
	if err := f.begin("write"); err != nil {
		return 0, 0, err
	}
	if !f.writable {
		return 0, 0, pathError("write", f.name, syscall.EBADF)
	}
	n := f.n
	if room := f.m.free + n.reserved - int64(len(n.cache)); int64(len(p)) > room {
		if room <= 0 {
			return 0, 0, pathError("write", f.name, syscall.ENOSPC)
		}
		p = p[:room] // as Linux does: a short write, and the error on the next one
	}
	from := int64(len(n.cache))
	n.cache = append(n.cache, p...)
	end := int64(len(n.cache))
	for b := from / f.m.block; b*f.m.block < end; b++ {
		n.dirty[b] = true
	}
	f.m.reserve(n, end)
	return len(p), end, nil
}

// reserve extends the device space reserved for n up to end.
func (m *Mem) reserve(n *inode, end int64) {
	if end > n.reserved {
		m.free -= end - n.reserved
		n.reserved = end
	}
}

// ReadAt implements storage.File: it reads the cache.
func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	defer f.m.mu.Unlock()
	if err := f.begin("read"); err != nil {
		return 0, err
	}
	if off >= int64(len(f.n.cache)) {
		return 0, io.EOF
	}
	k := copy(p, f.n.cache[off:])
	if k < len(p) {
		return k, io.EOF
	}
	return k, nil
}

// Datasync implements storage.File: it writes all dirty blocks to the device. If an earlier writeback failed, it reports that, once per
// descriptor, and the bytes stay lost: as in Linux, a second call reports success.
func (f *memFile) Datasync() error {
	defer f.m.mu.Unlock()
	if err := f.begin("fdatasync"); err != nil {
		return err
	}
	n := f.n
	for _, b := range n.dirtyBlocks() {
		n.flush(b, f.m.block, int64(len(n.cache)))
		delete(n.dirty, b)
	}
	if f.seen == n.errors || f.m.ErrorOnce && n.seen == n.errors {
		n.extend(int64(len(n.cache)))
		return nil
	}
	f.seen, n.seen = n.errors, n.errors
	return pathError("fdatasync", f.name, syscall.EIO)
}

// Allocate implements storage.File. It fails if the device has too little space left.
func (f *memFile) Allocate(off, n int64) error {
	defer f.m.mu.Unlock()
	if err := f.begin("fallocate"); err != nil {
		return err
	}
	switch {
	case f.m.NoAllocate:
		return pathError("fallocate", f.name, syscall.EOPNOTSUPP)
	case off+n-f.n.reserved > f.m.free:
		return pathError("fallocate", f.name, syscall.ENOSPC)
	}
	f.m.reserve(f.n, off+n)
	return nil
}

// DropCache drops the clean pages that are completely within the range, as Linux does: the first one stays if the range
// begins in its middle.
func (f *memFile) DropCache(off, n int64) error {
	defer f.m.mu.Unlock()
	if err := f.begin("fadvise"); err != nil {
		return err
	}
	size := int64(len(f.n.cache))
	first, last := (off+pageSize-1)/pageSize, (off+n)/pageSize
	if n == 0 {
		last = (size + pageSize - 1) / pageSize
	}
	for page := first; page < last; page++ {
		f.dropPage(page*pageSize, min((page+1)*pageSize, size))
	}
	return nil
}

// dropPage drops one page from the cache, so that the next read returns the content of the device: blocks whose writeback failed have
// their old content again. A page with a dirty block stays.
func (f *memFile) dropPage(from, to int64) {
	if from >= to {
		return
	}
	for b := from / f.m.block; b*f.m.block < to; b++ {
		if f.n.dirty[b] {
			return
		}
	}
	for b := from / f.m.block; b*f.m.block < to; b++ {
		delete(f.n.failed, b)
	}
	page := f.n.cache[from:to]
	clear(page)
	if from < int64(len(f.n.disk)) {
		copy(page, f.n.disk[from:])
	}
}

// Stat implements storage.File.
func (f *memFile) Stat() (storage.Info, error) {
	defer f.m.mu.Unlock()
	if err := f.begin("stat"); err != nil {
		return storage.Info{}, err
	}
	return f.n.info(), nil
}

// Close implements storage.File. It writes nothing to the device.
func (f *memFile) Close() error {
	defer f.m.mu.Unlock()
	if err := f.begin("close"); err != nil && !errors.Is(err, ErrCrashed) {
		return err
	}
	f.closed = true
	return nil
}
