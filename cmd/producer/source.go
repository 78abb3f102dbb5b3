package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"unicode/utf8"

	"github.com/fencepost/fencepost/cmd/internal/lines"
	"github.com/fencepost/fencepost/queue"
)

// source yields the payloads of messages. next returns io.EOF after the last one. The payload is valid until the next
// call; where returns its origin, for error messages ("line 17").
type source interface {
	next() (payload []byte, where string, err error)
}

// inputError is an error in the data, not in reading it.
type inputError struct {
	where string
	err   error
}

func (e *inputError) Error() string { return e.where + ": " + e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// errTooLong is a *queue.SizeError without the size, for a payload of which only the beginning was read.
var errTooLong = fmt.Errorf("%w: payload of more than %d bytes, which is the limit; store the data elsewhere and publish a reference, or split it into several messages",
	queue.ErrTooLarge, queue.MaxPayload)

// newSource reads payloads from r in one of the formats.
func newSource(format string, r io.Reader) source {
	b := bufio.NewReaderSize(r, 1<<20)
	switch format {
	case "lines":
		return newLineSource(b, false)
	case "ndjson":
		return newLineSource(b, true)
	case "len32":
		return &len32Source{r: b}
	case "raw":
		return &rawSource{r: b}
	}
	panic("format " + format + " was not checked")
}

// newSourceAt is newSource for r that was moved to a Position of an earlier run. It supports the formats that have positions.
func newSourceAt(format string, r io.Reader, p Position) source {
	src := newSource(format, r)
	switch s := src.(type) {
	case *lineSource:
		s.lines.Line, s.lines.Offset = p.Line, p.Offset
	case *len32Source:
		s.n, s.offset = p.Line, p.Offset
	}
	return src
}

// lineSource: one message per line, without its newline; the last line needs none. A carriage return is payload. In JSON
// mode every line must be a JSON value, and blank lines are skipped.
type lineSource struct {
	lines lines.Reader
	json  bool
}

func newLineSource(r *bufio.Reader, json bool) *lineSource {
	return &lineSource{lines.Reader{R: r, Max: queue.MaxPayload}, json}
}

func (s *lineSource) position() Position { return Position{s.lines.Offset, s.lines.Line} }

func (s *lineSource) next() ([]byte, string, error) {
	for {
		payload, err := s.lines.Next()
		switch {
		case errors.Is(err, lines.ErrTooLong):
			where := s.where(1)
			return nil, where, &inputError{where, errTooLong}
		case err != nil:
			return nil, s.where(1), err
		case s.json && lines.Blank(payload):
			continue
		case s.json && !utf8.Valid(payload): // JSON is
			return nil, s.where(0), &inputError{s.where(0), errors.New("not UTF-8 text; use --format lines or len32 for other bytes")}
		case s.json && !lines.IsJSON(payload):
			return nil, s.where(0), &inputError{s.where(0), errors.New("not a JSON value; use --format lines for plain text")}
		}
		return payload, s.where(0), nil
	}
}

// where names the line read last or, with behind 1, the next one.
func (s *lineSource) where(behind int) string { return fmt.Sprintf("line %d", s.lines.Line+behind) }

// len32Source: each message is preceded by its length as a 32 bit big-endian number.
type len32Source struct {
	r   *bufio.Reader
	n   int
	buf []byte

	offset int64 // bytes read
}

func (s *len32Source) position() Position { return Position{s.offset, s.n} }

func (s *len32Source) next() ([]byte, string, error) {
	s.n++
	where := fmt.Sprintf("message %d", s.n)
	var head [4]byte
	switch _, err := io.ReadFull(s.r, head[:]); {
	case errors.Is(err, io.EOF):
		s.n--
		return nil, where, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, where, &inputError{where, errors.New("the input ends inside a length prefix")}
	case err != nil:
		return nil, where, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > queue.MaxPayload {
		return nil, where, &inputError{where, &queue.SizeError{What: "payload", Size: size, Max: queue.MaxPayload}}
	}
	if cap(s.buf) < size {
		s.buf = make([]byte, size)
	}
	s.buf = s.buf[:size]
	if _, err := io.ReadFull(s.r, s.buf); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = &inputError{where, fmt.Errorf("the input ends inside the message, which should have %d bytes", size)}
		}
		return nil, where, err
	}
	s.offset += int64(len(head) + size)
	return s.buf, where, nil
}

// rawSource: the whole input is one message.
type rawSource struct {
	r    io.Reader
	done bool
}

func (s *rawSource) next() ([]byte, string, error) {
	if s.done {
		return nil, "", io.EOF
	}
	s.done = true
	b, err := io.ReadAll(io.LimitReader(s.r, queue.MaxPayload+1))
	if err == nil && len(b) > queue.MaxPayload {
		err = &inputError{"the whole input", errTooLong}
	}
	return b, "the whole input", err
}

// generator yields count payloads of size bytes, the same ones for the same seed.
type generator struct {
	rng   *rand.ChaCha8
	count int64
	n     int64
	buf   []byte
}

func newGenerator(count int64, size int, seed uint64) *generator {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return &generator{rng: rand.NewChaCha8(key), count: count, buf: make([]byte, size)}
}

func (g *generator) next() ([]byte, string, error) {
	if g.n == g.count {
		return nil, "", io.EOF
	}
	g.n++
	g.rng.Read(g.buf)
	return g.buf, fmt.Sprintf("generated message %d", g.n), nil
}

// arguments yields the messages given on the command line.
type arguments struct {
	messages []string
	n        int
}

func (a *arguments) next() ([]byte, string, error) {
	if a.n == len(a.messages) {
		return nil, "", io.EOF
	}
	a.n++
	return []byte(a.messages[a.n-1]), fmt.Sprintf("message %d", a.n), nil
}
