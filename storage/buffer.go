package storage

import "sync"

const (
	keepBuf = 1 << 20 // a larger encoding buffer is given back after use …
	lendBuf = 8 << 20 // … and up to this size to whoever needs one next
)

// buffers are the larger encoding buffers that nobody uses. rule: a writer that has nothing to write keeps no large buffer: there may be hundreds.
var buffers sync.Pool

// buffer returns n bytes of scratch space; give it back with release.
func (w *Writer) buffer(n int) []byte {
	if n > cap(w.buf) && n > keepBuf {
		if b, ok := buffers.Get().(*[]byte); ok {
			w.buf = *b
		}
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

// release ends the use of what buffer returned.
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
