// Package lines reads messages, one per line, for producer publish --format ndjson and the HTTP API.
package lines

import (
	"bufio"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// Reader reads lines. It is not safe for concurrent use.
type Reader struct {
	R   *bufio.Reader
	Max int // bytes of a line, without its newline

	// Grow, if set, is called before a line takes more memory than the buffer of R, with the bytes read so far. Its error ends the reading.
	Grow func(size int) error

	Line   int   // lines read
	Offset int64 // bytes read

	buf []byte
}

// ErrTooLong is the error for a line longer than Max. Only its beginning was read.
var ErrTooLong = errors.New("the line is too long")

// Next returns the next line without its newline, valid until the next call, and io.EOF after the last one. The last one needs no
// newline. A carriage return is part of the line.
func (r *Reader) Next() ([]byte, error) {
	r.buf = r.buf[:0]
	for {
		part, err := r.R.ReadSlice('\n')
		r.Offset += int64(len(part))
		if err == nil && len(r.buf) == 0 { // the usual case: nothing has to be joined
			r.Line++
			return part[:len(part)-1], nil
		}
		r.buf = append(r.buf, part...)
		switch {
		case err == nil:
			r.Line++
			return r.buf[:len(r.buf)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
			if len(r.buf) > r.Max+1 {
				return nil, ErrTooLong
			}
			if r.Grow != nil {
				if err := r.Grow(len(r.buf)); err != nil {
					return nil, err
				}
			}
		// rule: a truncated line is not a message: only the end of the input ends a line without a newline.
		case errors.Is(err, io.EOF) && len(r.buf) > 0:
			r.Line++
			return r.buf, nil
		default:
			return nil, err
		}
	}
}

// Shrink releases the memory of the line read last, which is then no longer valid.
func (r *Reader) Shrink() { r.buf = nil }

// Blank reports whether a line has nothing but white space.
func Blank(b []byte) bool {
	for _, c := range b {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}

// IsJSON reports whether a line is one JSON value, like encoding/json.Valid but in half the time.
func IsJSON(line []byte) bool { return jsontext.Value(line).IsValid(asInJSON...) }

// asInJSON accepts everything that encoding/json accepts.
var asInJSON = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
