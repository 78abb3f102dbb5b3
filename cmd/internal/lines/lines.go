// Package lines reads messages that stand one on a line, as producer publish --format ndjson and the HTTP API take them.
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

	// Grow, if set, is asked before a line takes more memory than the buffer of R: so many bytes so far. Its error ends the reading.
	Grow func(size int) error

	Line   int   // lines read
	Offset int64 // bytes read

	buf []byte
}

// TooLongError is the error of a line that is longer than Max. Only its beginning was read.
type TooLongError struct{ Read int }

func (e *TooLongError) Error() string { return "the line is too long" }

// Next returns the next line without its newline, valid until the next call, and io.EOF behind the last one. The last one needs no
// newline. A carriage return is part of the line.
func (r *Reader) Next() ([]byte, error) {
	r.buf = r.buf[:0]
	for {
		part, err := r.R.ReadSlice('\n')
		r.Offset += int64(len(part))
		if err == nil && len(r.buf) == 0 { // as most are: nothing has to be joined
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
				return nil, &TooLongError{len(r.buf)}
			}
			if r.Grow != nil {
				if err := r.Grow(len(r.buf)); err != nil {
					return nil, err
				}
			}
		// rule: a line that is cut off is no message: only the end of the input ends it.
		case errors.Is(err, io.EOF) && len(r.buf) > 0:
			r.Line++
			return r.buf, nil
		default:
			return nil, err
		}
	}
}

// Shrink gives back the memory of the line that was read last, which is not valid any more.
func (r *Reader) Shrink() { r.buf = nil }

// Blank tells whether a line has nothing but spaces.
func Blank(b []byte) bool {
	for _, c := range b {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}

// IsJSON tells whether a line is one JSON value, as encoding/json.Valid does, in half of the time.
func IsJSON(line []byte) bool { return jsontext.Value(line).IsValid(asInJSON...) }

// asInJSON takes what encoding/json takes.
var asInJSON = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
