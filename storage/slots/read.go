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

// Reading. A store has no ranges: a slot is read whole, and kept while the reader goes through it. Who reads one slot after
// the other has the next ones read ahead. All of that is in the memory of one program, which may open a thousand files at the
// same moment:
//
//	room ──▶ slots that are asked for ──▶ slots ahead, if there is room left ──▶ given back: by the next ReadAt, an Append,
//	         (waits for it, with nothing)                                        or when nobody reads for a while
//
// So what all files of an FS keep is bounded, everybody's turn comes, and one file alone is read as fast as the store can.

const (
	aheadRead = 4 << 20     // bytes that are read ahead of who reads one after the other …
	aheadMost = 32          // … in so many slots at most
	keepFor   = time.Second // after the last ReadAt

	// mostReading is how many bytes all files of an FS keep of what they have read.
	mostReading = 32 << 20
)

// ReadAt implements storage.File. It also returns what is kept. A slot that is not there, although later ones are, was removed by
// hand: its bytes are zeros, which nothing takes for records.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.reading.Lock()
	defer f.reading.Unlock()
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
		// A value that is longer than it was in the listing is another one: the next slot is right.
		b = b[:min(len(b), int(endOf(pieces, at)-at))]
		if from := max(off, at); from < at+int64(len(b)) && from < off+int64(n) {
			copy(p[from-off:n], b[from-at:])
		}
	}
	f.next = off + int64(n)
	f.keep()
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// copyKept copies what is not created yet of the bytes [off, off+len(p)). mu is held.
func (f *file) copyKept(p []byte, off int64) {
	at := f.end
	for _, b := range [][]byte{f.going, f.kept} {
		if end := at + int64(len(b)); off < end && at < off+int64(len(p)) {
			copy(p[max(at-off, 0):], b[max(off-at, 0):])
		}
		at += int64(len(b))
	}
}

// endOf returns where the bytes of the slot at an offset end: behind it, or where the next one
// begins.
func endOf(pieces []piece, at int64) int64 {
	i, _ := slices.BinarySearchFunc(pieces, piece{off: at}, comparePieces)
	end := pieces[i].end()
	if i+1 < len(pieces) {
		end = min(end, pieces[i+1].off)
	}
	return end
}

// whyMissing is the error for a slot that was there once. Nil: it was removed by hand.
//
// rule: a slot that was removed with its file is no damage.
func (f *file) whyMissing() error {
	removed, err := f.fs.isRemoved(f.folder.typ, f.folder.generation)
	if removed {
		return errRemoved
	}
	return err
}

// keep lets what was read stay for a while. reading is held.
func (f *file) keep() {
	switch {
	case len(f.cache) == 0:
	case f.idle == nil:
		f.idle = time.AfterFunc(keepFor, func() {
			if f.reading.TryLock() { // or somebody is reading, and sets the time again
				defer f.reading.Unlock()
				f.dropCache()
			}
		})
	default:
		f.idle.Reset(keepFor)
	}
}

// forget gives back what was read.
func (f *file) forget() {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.dropCache()
}

// dropCache is forget while reading is held.
func (f *file) dropCache() {
	f.cache = nil
	f.holdAtMost(0)
}

// holdAtMost gives back the room beyond what so many bytes take. reading is held.
func (f *file) holdAtMost(bytes int64) {
	if bytes < f.held {
		f.fs.reading.Release(f.held - bytes)
		f.held = bytes
	}
}

// makeRoom takes room for the slots that are asked for, and says up to which of those behind them there is room, too. Of what is
// kept it leaves these slots, or nothing if it has to wait. reading is held.
func (f *file) makeRoom(wanted, ahead []piece) (upTo int, err error) {
	var has, lacks int64
	before := f.cache
	f.cache = map[int64][]byte{}
	for i, p := range slices.Concat(wanted, ahead) {
		if b, ok := before[p.off]; ok {
			f.cache[p.off] = b
			has += p.held()
		} else if i < len(wanted) {
			lacks += p.held()
		}
	}
	f.holdAtMost(has)
	switch {
	case lacks == 0: // also while others wait
	case f.fs.reading.TryAcquire(lacks):
		f.held += lacks
	default:
		// rule: who waits for room has none, so somebody always comes to an end.
		f.dropCache()
		all := min(has+lacks, mostReading)
		if err := f.fs.reading.Acquire(f.fs.ctx, all); err != nil {
			return 0, fmt.Errorf("%s: other files are being read, which takes long: %w", f.fs.store, err)
		}
		f.held = all
	}
	for _, p := range ahead {
		if _, ok := f.cache[p.off]; !ok && !f.fs.reading.TryAcquire(p.held()) {
			break
		} else if !ok {
			f.held += p.held()
		}
		upTo++
	}
	return upTo, nil
}

// load returns the values of the slots that have bytes in [off, off+n), by offset. It keeps them,
// and some behind them if the file is read in order, for the next call. reading is held.
func (f *file) load(pieces []piece, off, n int64) (map[int64][]byte, error) {
	first, exact := slices.BinarySearchFunc(pieces, piece{off: off}, comparePieces)
	if !exact && first > 0 {
		first--
	}
	last := first
	for last < len(pieces) && pieces[last].off < off+n {
		last++
	}
	wanted, end := pieces[first:last], last
	if off == f.next {
		for ahead := int64(0); end < len(pieces) && end-last < aheadMost && ahead+pieces[end].size <= aheadRead; end++ {
			ahead += pieces[end].size
		}
	}
	upTo, err := f.makeRoom(wanted, pieces[last:end])
	if err != nil {
		return nil, err
	}
	values, err := f.fetch(pieces[first : last+upTo])
	if err != nil {
		f.dropCache()
		return nil, err
	}
	f.cache = values
	return values, nil
}

// fetch returns the values of slots, those that are not kept from the store. reading is held.
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
			b, err := f.fs.read(f.folder.slot(p.off))
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
