package slots

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Reading. A store has no range requests: a slot is read as a whole, and cached while the reader goes through it. If a reader goes
// from slot to slot, the next slots are requested together with the one that it waits for, and more of them each time. The cache
// takes memory, and a program may have a thousand files open, so the memory is bounded:
//
//	memory ──▶ requested slots ──────────────▶ slots ahead, if memory is left ──▶ released: by the next ReadAt, by an Append,
//	           (waits for memory, holding none)                                   or after a while without reads
//
// So the memory of an FS, and of all those derived from it, is bounded, every reader gets its turn, and a single file is read as fast as
// the store allows.

const (
	atFirst  = 4 << 20     // bytes first requested together when a file is read in order; every later request may double them
	together = 32          // maximum number of slots of such a request
	quick    = attempt / 4 // if a request takes at most this long, one of twice the size takes less than the time of one attempt
	keepFor  = time.Second // how long the cache lives after the last ReadAt

	// mostReading is the maximum number of bytes that all files of an FS together cache.
	mostReading = 32 << 20
)

// ReadAt implements storage.File. It includes bytes that are appended and not yet synced. A slot that is missing while later ones
// exist was removed by hand: its bytes read as zeros, which no reader takes for records.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.reading.Lock()
	defer f.reading.Unlock()
	if err := f.list(off, off+int64(len(p))); err != nil {
		return 0, f.error("read", err)
	}
	f.mu.Lock()
	end, pieces := f.tail(), f.pieces
	if off >= end {
		f.mu.Unlock()
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), end-off))
	clear(p[:n])
	f.copyKept(p[:n], off)
	f.mu.Unlock()
	values, err := f.load(pieces, off, int64(n))
	if err != nil {
		return 0, f.error("read", err)
	}
	for at, b := range values {
		// A value that is longer than in the listing was replaced. The next slot takes precedence over its additional bytes.
		b = b[:min(len(b), int(endOf(pieces, at)-at))]
		if from := max(off, at); from < at+int64(len(b)) && from < off+int64(n) {
			copy(p[from-off:n], b[from-at:])
		}
	}
	f.keep()
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// copyKept copies the bytes of [off, off+len(p)) that are not in slots yet. mu is held.
func (f *file) copyKept(p []byte, off int64) {
	at := f.end
	for _, b := range [][]byte{f.going, f.kept} {
		if end := at + int64(len(b)); off < end && at < off+int64(len(p)) {
			copy(p[max(at-off, 0):], b[max(off-at, 0):])
		}
		at += int64(len(b))
	}
}

// endOf returns where the bytes of the slot at an offset end: at its own end, or where the next one
// begins.
func endOf(pieces []piece, at int64) int64 {
	i, _ := slices.BinarySearchFunc(pieces, piece{off: at}, comparePieces)
	end := pieces[i].end()
	if i+1 < len(pieces) {
		end = min(end, pieces[i+1].off)
	}
	return end
}

// whyMissing returns the error for a slot that existed before. nil means that it was removed by hand.
//
// rule: a slot that was removed with its file is not damage.
func (f *file) whyMissing() error {
	removed, err := f.fs.isRemoved(f.folder.typ, f.folder.generation)
	if removed {
		return errRemoved
	}
	return err
}

// keep restarts the time after which the cache is dropped. reading is held.
func (f *file) keep() {
	switch {
	case len(f.cache) == 0:
	case f.idle == nil:
		f.idle = time.AfterFunc(keepFor, func() {
			if f.reading.TryLock() { // otherwise a read is in progress, and restarts the timer
				defer f.reading.Unlock()
				f.dropCache()
			}
		})
	default:
		f.idle.Reset(keepFor)
	}
}

// forget drops the cache.
func (f *file) forget() {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.dropCache()
}

// dropCache is forget for callers that hold reading.
func (f *file) dropCache() {
	f.cache = nil
	f.holdAtMost(0)
}

// holdAtMost releases the memory beyond that number of bytes. reading is held.
func (f *file) holdAtMost(bytes int64) {
	if bytes < f.held {
		f.fs.reading.Release(f.held - bytes)
		f.held = bytes
	}
}

// makeRoom reserves memory for the wanted slots and for as many of the slots ahead as fit; it returns how many of the latter. It keeps
// only these slots in the cache, and none if it has to wait. reading is held.
func (f *file) makeRoom(wanted, ahead []piece) (upTo int, err error) {
	var has int64
	before := f.cache
	f.cache = map[int64][]byte{}
	for _, p := range slices.Concat(wanted, ahead) {
		if b, ok := before[p.off]; ok {
			f.cache[p.off] = b
			has += p.held()
		}
	}
	f.holdAtMost(has)
	switch lacks := f.lacks(wanted); {
	case lacks == 0: // even while other files wait
	case f.fs.reading.TryAcquire(lacks):
		f.held += lacks
	default:
		// rule: a file that waits for memory holds none, so that some file always makes progress.
		f.dropCache()
		all := min(f.lacks(wanted), mostReading)
		if err := f.fs.reading.Acquire(f.fs.ctx, all); err != nil {
			return 0, fmt.Errorf("%s: waiting for memory while other files are read: %w", f.fs.store, err)
		}
		f.held = all
	}
	for _, p := range ahead {
		if !f.cached(p) {
			if !f.fs.reading.TryAcquire(p.held()) {
				break
			}
			f.held += p.held()
		}
		upTo++
	}
	return upTo, nil
}

// load returns the values of the slots that have bytes in [off, off+n), by offset. It caches them for the next call. If it has to wait
// for one of them, it also reads some slots after them. reading is held.
func (f *file) load(pieces []piece, off, n int64) (map[int64][]byte, error) {
	first, exact := slices.BinarySearchFunc(pieces, piece{off: off}, comparePieces)
	if !exact && first > 0 {
		first--
	}
	last := first
	for last < len(pieces) && pieces[last].off < off+n {
		last++
	}
	wanted := pieces[first:last]
	missing := slices.IndexFunc(wanted, func(p piece) bool { return !f.cached(p) })
	end, bytes, most := last, f.lacks(wanted), int64(0)
	if missing >= 0 {
		most = f.atOnce(wanted[missing].off)
	}
	for ; end < len(pieces); end++ {
		if end > 0 && pieces[end].off > pieces[end-1].end() { // a slot in between is not listed yet, or missing
			break
		}
		if !f.cached(pieces[end]) {
			if bytes += pieces[end].held(); bytes > most || end-first >= together {
				break
			}
		}
	}
	upTo, err := f.makeRoom(wanted, pieces[last:end])
	if err != nil {
		return nil, err
	}
	all := pieces[first : last+upTo]
	began := time.Now()
	values, err := f.fetch(all)
	if missing >= 0 {
		f.next, f.took, f.got = all[len(all)-1].end(), time.Since(began), f.lacks(all)
	}
	if err != nil {
		f.dropCache()
		return nil, err
	}
	f.cache = values
	return values, nil
}

// atOnce returns how many bytes may be requested together, starting with the uncached slot at off. reading is held.
func (f *file) atOnce(off int64) int64 {
	switch {
	case off != f.next: // a reader that jumps, such as a writer that searches for the end, may not need the slots after it
		return 0
	case f.took > quick:
		// rule: no more than the connection carries in time. Each request has a deadline, and requests that share a slow connection would all miss it.
		return f.got / 2
	}
	return min(max(2*f.got, atFirst), mostReading)
}

func (f *file) cached(p piece) bool {
	_, ok := f.cache[p.off]
	return ok
}

// lacks returns how many bytes of the slots are not cached.
func (f *file) lacks(pieces []piece) (bytes int64) {
	for _, p := range pieces {
		if !f.cached(p) {
			bytes += p.held()
		}
	}
	return bytes
}

// fetch returns the values of slots, from the cache or from the store. reading is held.
func (f *file) fetch(pieces []piece) (map[int64][]byte, error) {
	values := make(map[int64][]byte, len(pieces))
	var g errgroup.Group
	g.SetLimit(requests)
	var mu sync.Mutex
	for _, p := range pieces {
		if b, ok := f.cache[p.off]; ok || p.held() == 0 {
			mu.Lock()
			values[p.off] = b
			mu.Unlock()
			continue
		}
		g.Go(func() error {
			b, err := f.fs.readWhole(f.folder.slot(p.off), p.size)
			if errors.Is(err, fs.ErrNotExist) {
				err = f.whyMissing()
			}
			mu.Lock()
			defer mu.Unlock()
			values[p.off] = b
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return values, nil
}
