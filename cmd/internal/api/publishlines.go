package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/fencepost/fencepost/cmd/internal/httpbody"
	"github.com/fencepost/fencepost/cmd/internal/lines"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
)

// A body of lines is stored while it arrives: the server reads a chunk of lines, publishes it, waits for the outcome, and reads the next chunk.
// So memory is bounded, and its connection slows down a client that sends faster than the queue stores. The response begins after all outcomes
// are known: its status is 201 only if every line is stored.

// outcome is the outcome of a line.
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
	space space  // of the line and of the chunk
	chunk *chunk // the chunk that is being read
}

// buffers are the memory of one request, which later requests reuse.
type buffers struct {
	in    *bufio.Reader
	out   *bufio.Writer
	chunk chunk
	all   []outcome
}

// unused holds the buffers that no request is using.
var unused = sync.Pool{New: func() any {
	return &buffers{in: bufio.NewReaderSize(nil, bufferSize), out: bufio.NewWriterSize(nil, bufferSize)}
}}

// release is called after the response is written.
func (b *buffers) release() {
	b.in.Reset(nil)
	b.out.Reset(nil)
	b.chunk.reset() // it may still have messages if the request panicked
	clear(b.all)
	b.all = b.all[:0]
	unused.Put(b)
}

// chunk holds the messages of lines that are stored together. The publisher copies them, so the memory is reused.
type chunk struct {
	msgs    []queue.Message
	numbers []int  // their line numbers
	room    []byte // for payloads
}

// reset empties the chunk.
func (c *chunk) reset() {
	clear(c.msgs)
	c.msgs, c.numbers, c.room = c.msgs[:0], c.numbers[:0], c.room[:0]
}

// keep copies a payload, which may alias a line, into memory that stays valid until the chunk is stored.
func (c *chunk) keep(payload []byte) []byte {
	if cap(c.room)-len(c.room) < len(payload) { // earlier payloads stay where they are
		c.room = make([]byte, 0, max(len(payload), roomSize, min(2*cap(c.room), chunkBytes)))
	}
	at := len(c.room)
	c.room = append(c.room, payload...)
	return c.room[at:len(c.room):len(c.room)]
}

// publishLines stores each line of a body as a message.
func (s *Server) publishLines(w *answer, r *http.Request, e *envelope, parse lineParser) error {
	if _, there := e.headers[queue.KeyHeader]; there { // rule: lines never share one key: only one of them would reach the file
		return malformed("use "+headerKey+": each line gets a key of its own from it", "%s%s would be the key of every line", headerPrefix, headerKey)
	}
	b := unused.Get().(*buffers)
	defer b.release()
	from := s.newBody(w, r, 0)
	from.stopped = s.stopped
	defer context.AfterFunc(s.stopped, from.hurry)()
	b.in.Reset(from)
	in := &lineReader{s: s, ctx: r.Context(), e: e, parse: parse, space: space{s: s}, chunk: &b.chunk}
	in.lines = lines.Reader{R: b.in, Max: maxLine, Grow: in.grow}
	for {
		end := in.fill(len(b.all))
		// Lines read completely are stored even if the client disconnects before the end of the body.
		var failed bool
		b.all, failed = s.publishChunk(context.WithoutCancel(r.Context()), in.chunk, b.all)
		in.free()
		var bad *badLine
		if !failed && errors.As(end, &bad) {
			b.all = append(b.all, outcome{line: bad.line, problem: bad.problem})
		}
		if end != nil || failed {
			b.out.Reset(w)
			if e.skip > in.lines.Line && end == io.EOF {
				return malformed("send the same lines as before", "%s is %d, and the body has %d lines", headerSkip, e.skip, in.lines.Line)
			}
			if len(b.all) == 0 && e.skip == 0 {
				return malformed("send a message on each line", "the body has no line")
			}
			if end != io.EOF {
				httpbody.TakeRest(w, r) // the answer does not wait for lines that nobody reads
			}
			return s.answerLines(w, b.out, b.all, !failed && end == io.EOF)
		}
	}
}

// grow takes space for a line.
func (in *lineReader) grow(size int) error { return in.space.grow(in.ctx, size) }

// free returns the space.
func (in *lineReader) free() {
	if len(in.space.leaves) > 0 {
		in.lines.Shrink()
		in.chunk.room = nil
		in.space.leave()
	}
}

// badLine is the error of the line that ends a request.
type badLine struct {
	line    int
	problem *problem
}

func (b *badLine) Error() string { return b.problem.Error() }

// fill reads the next chunk. before is the number of lines in earlier chunks. An error means that no lines follow: io.EOF or a *badLine.
//
// rule: nothing after a line that cannot be stored is read: it must not overtake that line.
func (in *lineReader) fill(before int) error {
	c := in.chunk
	for size := 0; len(c.msgs) < chunkLines && size < chunkBytes; {
		if in.s.stopped.Err() != nil {
			return &badLine{in.next(), stopping()}
		}
		line, err := in.lines.Next()
		switch {
		case err == io.EOF:
			return err
		case err != nil && in.s.stopped.Err() != nil:
			return &badLine{in.next(), stopping()}
		case err != nil:
			return &badLine{in.next(), in.s.bodyProblem(err)}
		case in.lines.Line <= in.e.skip:
			in.free()
			continue
		case lines.Blank(line):
			continue
		case before+len(c.msgs) == maxLines:
			return &badLine{in.lines.Line, newProblem(http.StatusRequestEntityTooLarge, "too_large", "send the lines from here on in another request",
				"a request has at most %d lines", maxLines)}
		}
		n := len(c.msgs)
		c.msgs = append(c.msgs, in.s.newMessage(in.e, in.lines.Line))
		if err := in.message(line, &c.msgs[n]); err != nil {
			c.msgs[n] = queue.Message{} // its payload may be a large line
			c.msgs = c.msgs[:n]
			return &badLine{in.lines.Line, in.s.problem(err)}
		}
		size += len(c.msgs[n].Payload)
		c.numbers = append(c.numbers, in.lines.Line)
		if size >= mediumBody && !in.space.tryMedium() {
			return nil // a smaller chunk, while others have the space
		}
	}
	return nil
}

// next returns the number of the first line that is neither read nor skipped.
func (in *lineReader) next() int { return max(in.lines.Line, in.e.skip) + 1 }

// message completes m, which has the settings of the request's head, from a line, and validates it.
func (in *lineReader) message(line []byte, m *queue.Message) error {
	if err := in.parse(line, m); err != nil {
		return err
	}
	m.Payload = in.chunk.keep(m.Payload)
	if !m.Due.IsZero() {
		if err := queue.ValidateDue(m.Due); err != nil {
			return err
		}
	}
	return m.Validate()
}

// publishChunk stores the messages of a chunk, and appends their outcomes to all. failed: not all are stored.
func (s *Server) publishChunk(ctx context.Context, c *chunk, all []outcome) (_ []outcome, failed bool) {
	if len(c.msgs) == 0 {
		return all, false
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Wait)
	defer cancel()
	var last error // many messages share one error
	var p *problem
	var count, bytes [queue.Rejected + 1]int // by status
	all = slices.Grow(all, len(c.msgs))
	for i, r := range s.store(ctx, c.msgs) {
		count[r.Status]++
		bytes[r.Status] += len(c.msgs[i].Payload)
		o := outcome{line: c.numbers[i], id: r.ID}
		if r.Err != nil {
			failed = true
			if r.Err != last {
				last, p = r.Err, s.problem(r.Err)
			}
			o.problem = p
		}
		all = append(all, o)
	}
	c.reset()
	for _, status := range []queue.Status{queue.Stored, queue.Unknown, queue.Rejected} {
		s.metrics.published(status, count[status], bytes[status])
	}
	return all, failed
}

// The lines of a response.
type (
	outcomeLine struct {
		Line    int      `json:"line"` // of the body, starting at 1
		ID      string   `json:"id,omitempty"`
		Problem *problem `json:"problem,omitempty"` // set if the message is not known to be stored
	}
	summaryLine struct {
		Stored   int  `json:"stored"`
		Unknown  int  `json:"unknown"`
		Rejected int  `json:"rejected"`
		Complete bool `json:"complete"` // all lines were read; unread lines are not stored
	}
)

// writeStored writes the response line of a stored message. It contains no text of the request, so nothing needs escaping.
func writeStored(to *bufio.Writer, o outcome) {
	b := append(to.AvailableBuffer(), `{"line":`...)
	b = strconv.AppendInt(b, int64(o.line), 10)
	b = append(b, `,"id":"`...)
	b, _ = o.id.AppendText(b)
	to.Write(append(b, "\"}\n"...)) // Flush returns its error
}

// answerLines writes the outcome of each line that was read, in order, and then a summary. out writes to w.
func (s *Server) answerLines(w *answer, out *bufio.Writer, all []outcome, complete bool) error {
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
		// rule: 201 means that every line is stored, 504 that the outcome of one is unknown. Otherwise the first line that is not stored decides.
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
	for _, o := range all {
		if o.problem == nil { // the usual case: the same bytes in less time
			writeStored(out, o)
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
