package storage

import (
	"io"
	"sync"
)

// Read-ahead. Copying a file from the page cache takes about as long as checking it, so Verify has a
// second goroutine that reads ahead of the scanner. Measured (batches of 256, two free cores): Verify
// reaches 0.85 of the speed of reading alone instead of 0.55. With one core it gains nothing.

const (
	aheadChunk  = 512 << 10 // bytes read at once
	aheadBufs   = 6         // enough to keep either side from waiting for the other at every chunk
	aheadPause  = 16 << 20  // bytes read directly after a record that is larger than a chunk
	aheadMin    = 8 << 20   // a shorter remainder of a file does not justify a goroutine
	aheadSpare  = aheadChunk
	aheadBuffer = aheadSpare + aheadChunk
)

// readAhead reads chunks of a file in order.
type readAhead struct {
	full chan chunk
	free chan []byte
	quit chan struct{}
	done sync.WaitGroup
}

// chunk holds n bytes of the file at off. They are at buf[aheadSpare:], so that the end of the previous
// chunk, where a record may have begun, can be copied in before them.
type chunk struct {
	buf []byte
	off int64
	n   int
	err error
}

func startReadAhead(src io.ReaderAt, off, limit int64) *readAhead {
	r := &readAhead{full: make(chan chunk, aheadBufs), free: make(chan []byte, aheadBufs), quit: make(chan struct{})}
	for range aheadBufs {
		r.free <- make([]byte, aheadBuffer)
	}
	r.done.Go(func() { r.run(src, off, limit) })
	return r
}

// run ends at the limit, at an error, or when quit is closed. full has room for every buffer, so
// sending to it never blocks.
func (r *readAhead) run(src io.ReaderAt, off, limit int64) {
	defer close(r.full)
	for off < limit {
		select {
		case <-r.quit:
			return
		case buf := <-r.free:
			n := int(min(aheadChunk, limit-off))
			_, err := src.ReadAt(buf[aheadSpare:aheadSpare+n], off)
			r.full <- chunk{buf, off, n, err}
			if err != nil {
				return
			}
			off += int64(n)
		}
	}
}

// stop ends the goroutine and waits for it.
func (r *readAhead) stop() {
	close(r.quit)
	r.done.Wait()
}

// fillAhead moves the scanner's window to p, with at least n bytes in it, by taking the next chunk.
// It reports false, and the scanner must read directly, if the record is larger than a chunk, if the
// next chunk does not continue the window or cannot be read, within aheadPause bytes after either, or
// if the remainder of the file is short.
func (s *scanner) fillAhead(p int64, n int) bool {
	if n > aheadChunk {
		s.direct = p + aheadPause
	}
	if p < s.direct || s.ahead == nil && s.limit-p < aheadMin {
		s.stopAhead()
		return false
	}
	var kept []byte
	if at := p - s.bufOff; at >= 0 && at < int64(len(s.buf)) {
		kept = s.buf[at:]
	}
	if s.ahead == nil {
		s.ahead = startReadAhead(s.src, p+int64(len(kept)), s.limit)
	}
	c, ok := <-s.ahead.full
	if !ok || c.err != nil || c.off != p+int64(len(kept)) || len(kept) > aheadSpare || len(kept)+c.n < n {
		s.direct = p + aheadPause // the direct read meets an error again, and reports it
		s.stopAhead()
		return false
	}
	from := aheadSpare - copy(c.buf[aheadSpare-len(kept):], kept)
	if s.chunk != nil {
		s.ahead.free <- s.chunk
	}
	s.chunk, s.buf, s.bufOff = c.buf, c.buf[from:aheadSpare+c.n], p
	return true
}

// stopAhead stops reading ahead; fillAhead may start it again.
func (s *scanner) stopAhead() {
	if s.ahead != nil {
		s.ahead.stop()
		s.ahead, s.chunk = nil, nil
	}
}
