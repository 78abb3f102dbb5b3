package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/fencepost/fencepost/cmd/internal/lines"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
)

// A body of lines is stored while it comes: some lines are read, published, waited for, and then the next ones are read. So memory has a bound,
// and a client that sends faster than the queue stores is held up by its connection. The answer begins when all is settled: its status is
// 201 only if every line is stored.

// outcome is what became of a line.
type outcome struct {
	line    int
	id      queue.ID
	problem *problem // nil: stored
}

// lineReader reads the lines of one request.
type lineReader struct {
	s     *Server
	ctx   context.Context
	e     *envelope
	parse lineParser
	lines lines.Reader
	leave func() // gives back the place of a large line; nil: it has none
	room  []byte // for the payloads of a chunk: the publisher copies them
}

// publishLines stores each line of a body as a message.
func (s *Server) publishLines(w *answer, r *http.Request, e *envelope, parse lineParser) error {
	in := &lineReader{s: s, ctx: r.Context(), e: e, parse: parse}
	in.lines = lines.Reader{R: bufio.NewReaderSize(s.newBody(w, r, 0), 64<<10), Max: maxLine, Grow: in.grow}
	var all []outcome
	for {
		msgs, numbers, end := in.chunk(len(all))
		// What was read whole is stored, also when the client is gone before the end of the body.
		settled, failed := s.publishChunk(context.WithoutCancel(r.Context()), msgs, numbers)
		all = append(all, settled...)
		in.free()
		var bad *badLine
		if !failed && errors.As(end, &bad) {
			all = append(all, outcome{line: bad.line, problem: bad.problem})
		}
		if end != nil || failed {
			return s.answerLines(w, all, !failed && end == io.EOF)
		}
	}
}

// grow takes a place for a large line.
func (in *lineReader) grow(size int) (err error) {
	if size > largeBody && in.leave == nil {
		in.leave, err = in.s.place(in.ctx, in.s.large, "too many large bodies at a time")
	}
	return err
}

// free gives the place back, and the memory with it.
func (in *lineReader) free() {
	if in.leave != nil {
		in.lines.Shrink()
		in.room = nil
		in.leave()
		in.leave = nil
	}
}

// badLine says which line ends a request, and why.
type badLine struct {
	line    int
	problem *problem
}

func (b *badLine) Error() string { return b.problem.Error() }

// chunk reads lines that are stored together. end says why there are no more: io.EOF, or a *badLine.
//
// rule: nothing behind a line that cannot be stored is read: it must not overtake that line.
func (in *lineReader) chunk(before int) (msgs []queue.Message, numbers []int, end error) {
	in.room = in.room[:0]
	for size := 0; len(msgs) < chunkLines && size < chunkBytes; {
		if in.s.stopped.Err() != nil {
			return msgs, numbers, &badLine{in.lines.Line + 1, stopping()}
		}
		line, err := in.lines.Next()
		switch {
		case err == io.EOF:
			return msgs, numbers, err
		case err != nil:
			return msgs, numbers, &badLine{in.lines.Line + 1, in.s.bodyProblem(err)}
		case lines.Blank(line):
			continue
		case before+len(msgs) == maxLines:
			return msgs, numbers, &badLine{in.lines.Line, newProblem(http.StatusRequestEntityTooLarge, "too_large", "send the lines from here on in another request",
				"a request has at most %d lines", maxLines)}
		}
		m, err := in.message(line)
		if err != nil {
			return msgs, numbers, &badLine{in.lines.Line, in.s.problem(err)}
		}
		size += len(m.Payload)
		msgs, numbers = append(msgs, m), append(numbers, in.lines.Line)
	}
	return msgs, numbers, nil
}

// message makes a message of a line that can be published.
func (in *lineReader) message(line []byte) (m queue.Message, err error) {
	m = in.s.newMessage(in.e, nil, in.lines.Line)
	if err := in.parse(line, &m); err != nil {
		return m, err
	}
	m.Payload = in.keep(m.Payload)
	if !m.Due.IsZero() {
		if err := queue.ValidateDue(m.Due); err != nil {
			return m, err
		}
	}
	return m, m.Validate()
}

// keep copies a payload, which may be a part of the line, to where it stays until the chunk is stored.
func (in *lineReader) keep(payload []byte) []byte {
	if cap(in.room)-len(in.room) < len(payload) {
		in.room = make([]byte, 0, max(len(payload), roomSize)) // payloads before stay where they are
	}
	at := len(in.room)
	in.room = append(in.room, payload...)
	return in.room[at:len(in.room):len(in.room)]
}

// publishChunk stores messages, and returns what became of each. failed: not all are stored.
func (s *Server) publishChunk(ctx context.Context, msgs []queue.Message, numbers []int) (settled []outcome, failed bool) {
	if len(msgs) == 0 {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Wait)
	defer cancel()
	var last error // many have the same
	var p *problem
	for i, r := range s.publisher.PublishAll(ctx, msgs) {
		s.metrics.published(r.Status, len(msgs[i].Payload))
		o := outcome{line: numbers[i], id: r.ID}
		if r.Err != nil {
			failed = true
			if r.Err != last {
				last, p = r.Err, s.problem(r.Err)
			}
			o.problem = p
		}
		settled = append(settled, o)
	}
	return settled, failed
}

// The lines of an answer.
type (
	outcomeLine struct {
		Line    int      `json:"line"` // of the body, from 1 on
		ID      string   `json:"id,omitempty"`
		Problem *problem `json:"problem,omitempty"` // it is not stored for certain
	}
	summaryLine struct {
		Stored   int  `json:"stored"`
		Unknown  int  `json:"unknown"`
		Rejected int  `json:"rejected"`
		Complete bool `json:"complete"` // all lines were read; those that were not are not stored
	}
)

// answerLines answers for each line that was read, in order, and then for all.
func (s *Server) answerLines(w *answer, all []outcome, complete bool) error {
	if len(all) == 0 {
		return malformed("send a message on each line", "the body has no line")
	}
	var first *problem
	sum := summaryLine{Complete: complete}
	for _, o := range all {
		switch {
		case o.problem == nil:
			sum.Stored++
		case o.problem.Code == codeUnknown:
			sum.Unknown++
		default:
			sum.Rejected++
		}
		// rule: 201 says that every line is stored, and only 504 that nobody knows of one. Otherwise the first line that is not stored decides.
		if o.problem != nil && (first == nil || o.problem.Code == codeUnknown && first.Code != codeUnknown) {
			first = o.problem
		}
	}
	status := http.StatusCreated
	if first != nil {
		status = first.Status
		first.head(w)
	}
	w.Header().Set("Content-Type", typeLines)
	w.WriteHeader(status)
	out := bufio.NewWriterSize(w, 64<<10)
	for _, o := range all {
		if o.problem == nil { // as most are: the same bytes in less time
			out.WriteString(`{"line":` + strconv.Itoa(o.line) + `,"id":"` + o.id.String() + "\"}\n")
			continue
		}
		line := outcomeLine{Line: o.line, Problem: o.problem}
		if !o.id.IsZero() {
			line.ID = o.id.String()
		}
		if err := printable.EncodeJSON(out, line, ""); err != nil {
			return err
		}
	}
	if err := printable.EncodeJSON(out, sum, ""); err != nil {
		return err
	}
	return out.Flush()
}
