package storage

import "sync"

const (
	keepBuf = 1 << 20 // bytes; a writer gives up a larger encoding buffer after use …
	lendBuf = 8 << 20 // … and, up to this size, passes it on to the next writer that needs one
)

var (
	// buffers are the unused larger encoding buffers. rule: an idle writer keeps no large buffer: there may be hundreds of writers.
	buffers sync.Pool
	// smallBuffers come from writers that were closed or are idle: draining many small files needs one for each.
	smallBuffers sync.Pool
)

// buffer returns n bytes of scratch space; give it back with release.
func (w *Writer) buffer(n int) []byte {
	switch {
	case n <= cap(w.buf):
	case n > keepBuf:
		w.borrow(&buffers)
	case w.buf == nil:
		w.borrow(&smallBuffers)
	}
	if n > cap(w.buf) {
		room := n + n/4
		if room > lendBuf {
			room = n // used once
		}
		w.buf = make([]byte, 0, room)
	}
	return w.buf[:n]
}

// borrow takes an unused buffer, if there is one. It may be too small.
func (w *Writer) borrow(from *sync.Pool) {
	if b, ok := from.Get().(*[]byte); ok {
		w.buf = *b
	}
}

// release ends the use of the space that buffer returned.
func (w *Writer) release() {
	if cap(w.packer.buf) > keepBuf {
		w.packer.buf = nil
	}
	switch n := cap(w.buf); {
	case n <= keepBuf:
		return
	case n <= lendBuf:
		b := w.buf
		buffers.Put(&b)
	}
	w.buf = nil
}

// forgetBuffers gives back the memory that the writer keeps for its next batch. The space that buffer returned must no longer be in use.
func (w *Writer) forgetBuffers() {
	if b := w.buf; b != nil {
		smallBuffers.Put(&b)
	}
	w.buf, w.packer = nil, packer{}
}
