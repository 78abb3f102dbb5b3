package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/lines"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
)

// Media types of bodies with a message on each line. Every other body is one message.
const (
	typeLines    = "application/x-ndjson"                      // a line is a payload: a JSON value
	typeMessages = "application/vnd.fencepost.messages+ndjson" // a line is a message, in the format of GET …/messages
)

// Headers of requests.
const (
	headerPrefix = "Fencepost-Header-" // followed by the name of a message header
	headerKey    = "Idempotency-Key"
	headerDelay  = "Fencepost-Delay"
	headerDue    = "Fencepost-Due"
	headerSkip   = "Fencepost-Skip-Lines"
)

// envelope holds the settings in the head of a request that apply to its messages.
type envelope struct {
	typ     string
	headers map[string]string
	key     string
	after   time.Duration
	due     time.Time
	skip    int // lines at the beginning of the body that are not stored: an earlier request has stored them
}

// publish stores the message or messages of a body.
func (s *Server) publish(w *answer, r *http.Request, _ *client) error {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		// rule: nothing is decompressed: a few bytes could expand to any number. A client that wants compression compresses the payload.
		w.Header().Set("Accept-Encoding", "identity")
		return newProblem(http.StatusUnsupportedMediaType, "unsupported_encoding", "send the body as it is, without Content-Encoding", "the body is encoded")
	}
	e, err := envelopeOf(r)
	if err != nil {
		return err
	}
	switch media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media {
	case typeLines:
		return s.publishLines(w, r, e, payloadLine)
	case typeMessages:
		return s.publishLines(w, r, e, messageLine)
	}
	if e.skip > 0 {
		return malformed("leave it out, or send Content-Type: "+typeLines, "%s is for a body of lines, and this one is one message", headerSkip)
	}
	return s.publishOne(w, r, e)
}

// envelopeOf reads the headers of a request.
func envelopeOf(r *http.Request) (*envelope, error) {
	e := &envelope{typ: r.PathValue("type")}
	for name, values := range r.Header {
		key, ok := strings.CutPrefix(name, headerPrefix)
		one := ok || name == headerKey || name == headerDelay || name == headerDue || name == headerSkip
		if one && len(values) > 1 {
			return nil, malformed("send it once", "the header %s was sent %d times", printable.Short(name), len(values))
		}
		switch {
		case strings.HasPrefix(name, "Fencepost-") && !one: // a misspelled one must not be taken for none
			return nil, malformed("correct its name: "+strings.Join([]string{headerDelay, headerDue, headerSkip, headerPrefix + "NAME"}, ", "), "there is no header %s", printable.Short(name))
		case one && !ok && values[0] == "" && name != headerKey:
			return nil, malformed("leave it out, or give it a value", "%s is empty", name)
		}
		if ok {
			if e.headers == nil {
				e.headers = map[string]string{}
			}
			e.headers[strings.ToLower(key)] = values[0]
		}
	}
	if _, ok := r.Header[headerKey]; ok {
		if e.key = r.Header.Get(headerKey); e.key == "" {
			return nil, malformed("leave it out, or give each message another one", "%s is empty", headerKey)
		}
	}
	if _, both := e.headers[queue.KeyHeader]; both && e.key != "" {
		return nil, malformed("use one of them", "%s and %s%s cannot be combined", headerKey, headerPrefix, headerKey)
	}
	if err := e.setDelay(r.Header.Get(headerDelay), r.Header.Get(headerDue)); err != nil {
		return nil, err
	}
	if text := r.Header.Get(headerSkip); text != "" {
		var err error
		if e.skip, err = strconv.Atoi(text); err != nil || e.skip < 0 {
			return nil, malformed("give the number of lines that an earlier answer says are stored", "%s is not a number of lines", headerSkip)
		}
	}
	return e, nil
}

// setDelay parses the headers that delay messages; "" means that one was not sent.
func (e *envelope) setDelay(after, due string) (err error) {
	switch {
	case after != "" && due != "":
		return malformed("use one of them", "%s and %s cannot be combined", headerDelay, headerDue)
	case after != "":
		if e.after, err = time.ParseDuration(after); err != nil || e.after < 0 {
			return malformed("write it as in 90s, 10m or 24h", "%s is not a duration", headerDelay)
		}
	case due != "":
		if e.due, err = time.Parse(time.RFC3339Nano, due); err != nil {
			return malformed("write it as in 2026-01-31T15:04:05Z", "%s is not a time", headerDue)
		}
		e.due = cli.Since1970(e.due)
	}
	return nil
}

// newMessage returns a message without payload, with the settings of the request's head. line is 0 in a request with one message.
func (s *Server) newMessage(e *envelope, line int) queue.Message {
	m := queue.Message{Type: e.typ, Headers: e.headers, Due: e.due}
	if e.after > 0 {
		m.Due = s.publisher.Now().Add(e.after)
	}
	if e.key != "" {
		key := e.key
		if line > 0 { // rule: the lines of a request have different keys, and a repeated request has the same keys
			key += ":" + strconv.Itoa(line)
		}
		m.Headers = withHeaders(e.headers, map[string]string{queue.KeyHeader: key})
	}
	return m
}

// withHeaders returns headers and others merged; others takes precedence. It changes neither: the messages of a request share headers.
func withHeaders(headers, others map[string]string) map[string]string {
	switch {
	case len(headers) == 0:
		return others
	case len(others) == 0:
		return headers
	}
	headers = maps.Clone(headers)
	maps.Copy(headers, others)
	return headers
}

// newBody returns the body of a request, which must arrive in time. most bounds its bytes; 0 means no bound.
func (s *Server) newBody(w *answer, r *http.Request, most int64) *body {
	in := io.Reader(r.Body)
	if most > 0 {
		in = http.MaxBytesReader(w.ResponseWriter, r.Body, most)
	}
	return &body{r: in, c: w.c, patience: patience{s.o.ClientTimeout, s.o.ClientTimeout}}
}

// publishOne stores a body as one message.
func (s *Server) publishOne(w *answer, r *http.Request, e *envelope) error {
	in := s.newBody(w, r, queue.MaxPayload)
	if r.ContentLength > queue.MaxPayload {
		w.Header().Set("Connection", "close")
		return &queue.SizeError{What: "payload", Size: int(r.ContentLength), Max: queue.MaxPayload}
	}
	m := s.newMessage(e, 0)
	if err := m.Validate(); err != nil {
		return err
	}
	payload, leave, err := s.readBody(r.Context(), in)
	if err != nil {
		return s.bodyProblem(err)
	}
	defer leave()
	m.Payload = payload
	ctx, cancel := context.WithTimeout(r.Context(), s.o.Wait)
	defer cancel()
	result := s.store(ctx, []queue.Message{m})[0]
	s.metrics.published(result.Status, 1, len(payload))
	if result.Err != nil {
		return s.outcome(result)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return printable.EncodeJSON(w, struct {
		ID string `json:"id"`
	}{result.ID.String()}, "")
}

// store publishes messages of one type.
//
// rule: clients, which choose the types, cannot take memory for any number of them.
func (s *Server) store(ctx context.Context, msgs []queue.Message) []queue.Result {
	if s.inUse.take(msgs[0].Type) {
		return s.publisher.PublishAll(ctx, msgs)
	}
	full := newProblem(http.StatusServiceUnavailable, "busy", "send it again later, or use several servers, each for some of the types",
		"the server already holds memory for %d other types that had messages in the last minutes", maxTypes).after(30)
	return slices.Repeat([]queue.Result{{Status: queue.Rejected, Err: full}}, len(msgs))
}

// outcome returns the problem of a message that is not known to be stored.
func (s *Server) outcome(r queue.Result) *problem {
	p := s.problem(r.Err)
	if r.Status == queue.Unknown {
		p.ID = r.ID.String()
	}
	return p
}

// readBody reads a whole body, which takes space. leave returns it.
//
// rule: bodies that arrive on all connections at the same time do not take more memory than the server has.
func (s *Server) readBody(ctx context.Context, in io.Reader) (payload []byte, leave func(), err error) {
	sp := space{s: s}
	var b bytes.Buffer
	for _, size := range []int{mediumBody, largeBody, math.MaxInt} {
		if _, err = io.CopyN(&b, in, int64(size-b.Len())); err != nil {
			break
		}
		if err = sp.grow(ctx, size); err != nil {
			break
		}
	}
	if errors.Is(err, io.EOF) {
		return b.Bytes(), sp.leave, nil
	}
	sp.leave()
	return nil, nil, err
}

// lineParser fills m, which has the settings of the request's head, from a line. The payload may alias the line.
type lineParser func(line []byte, m *queue.Message) error

// payloadLine parses a line like producer publish --format ndjson.
func payloadLine(line []byte, m *queue.Message) error {
	if !utf8.Valid(line) { // JSON is, and a consumer that decodes it would replace other bytes
		return invalid("send bytes that are no UTF-8 text as payload_base64, with Content-Type "+typeMessages, "the line is not UTF-8 text")
	}
	if !lines.IsJSON(line) {
		return invalid("send one JSON value on each line; other payloads go as "+typeMessages+", or one in a request",
			"the line is not a JSON value")
	}
	m.Payload = line
	return nil
}

// lineMessage is a line of fencepost cat --format json, and of this API's responses. The fields that a file adds to a message are ignored.
type lineMessage struct {
	Payload       *string           `json:"payload"`
	PayloadBase64 *string           `json:"payload_base64"`
	Headers       map[string]string `json:"headers"`
	Due           *string           `json:"due"`

	Index    any `json:"index"`
	ID       any `json:"id"`
	Time     any `json:"time"`
	Epoch    any `json:"epoch"`
	AfterGap any `json:"after_gap"`
}

// lineFields are the names of the fields of a lineMessage.
var lineFields = [...]string{"payload", "payload_base64", "headers", "due", "index", "id", "time", "epoch", "after_gap"}

// lineRemedy shows what a line looks like.
const lineRemedy = `write it as in {"payload":"text","headers":{"source":"shop"}}`

// checkFields refuses a line with a field in another case, or twice: encoding/json accepts both, and takes the last one. line is a JSON object, which
// encoding/json has decoded.
func checkFields(line []byte) error {
	var seen [len(lineFields)]bool
	depth, isName := 0, false // isName: the next string is the name of a field
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '{', '[':
			depth++
			isName = depth == 1
		case '}', ']':
			depth--
		case ',':
			isName = depth == 1
		case '"':
			begin := i
			for i++; line[i] != '"'; i++ {
				if line[i] == '\\' {
					i++
				}
			}
			if !isName {
				continue
			}
			isName = false
			name := string(line[begin+1 : i])
			if strings.Contains(name, `\`) {
				json.Unmarshal(line[begin:i+1], &name)
			}
			at := slices.Index(lineFields[:], name)
			if at < 0 {
				return invalid(lineRemedy, "the line is not a message: unknown field %q", name)
			}
			if seen[at] {
				return invalid("give it once", "the line has %s twice", name)
			}
			seen[at] = true
		}
	}
	return nil
}

// invalid returns the problem of a line.
func invalid(remedy, format string, args ...any) *problem {
	return newProblem(http.StatusUnprocessableEntity, "invalid", remedy, format, args...)
}

// messageLine parses a line with headers and a payload.
func messageLine(line []byte, m *queue.Message) error {
	wrong := func(remedy, detail string) error { return invalid(remedy, "%s", detail) }
	var l lineMessage
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return wrong(lineRemedy, "the line is not a message: "+decodeError(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return wrong("put each message on a line of its own", "the line continues after the message")
	}
	if err := checkFields(line); err != nil {
		return err
	}
	switch {
	case (l.Payload == nil) == (l.PayloadBase64 == nil):
		return wrong("give one of them", "a message has either payload or payload_base64")
	// rule: a payload is stored as it was sent, or not at all: the JSON decoder would replace invalid UTF-8.
	case replaced(line, l.Payload, l.Headers):
		return wrong("send bytes that are no UTF-8 text as payload_base64", "the line is not UTF-8 text")
	case l.Payload != nil:
		m.Payload = []byte(*l.Payload)
	default:
		payload, err := base64.StdEncoding.Strict().DecodeString(*l.PayloadBase64)
		if err != nil {
			return wrong("use the standard alphabet, with padding", "payload_base64 is not base64")
		}
		m.Payload = payload
	}
	m.Headers = withHeaders(m.Headers, l.Headers)
	if l.Due != nil {
		due, err := time.Parse(time.RFC3339Nano, *l.Due)
		if err != nil {
			return wrong("write it as in 2026-01-31T15:04:05Z", "due is not a time")
		}
		m.Due = cli.Since1970(due)
	}
	return nil
}

// decodeError says what is wrong with a line, without the names of this program's types.
func decodeError(err error) string {
	var typ *json.UnmarshalTypeError
	switch text := strings.TrimPrefix(err.Error(), "json: "); {
	case errors.As(err, &typ) && typ.Field == "":
		return "it is a JSON " + typ.Value + " and no object"
	case errors.As(err, &typ) && typ.Field == "headers" && typ.Type.Kind() == reflect.String:
		return "the value of a header cannot be a JSON " + typ.Value
	case errors.As(err, &typ):
		return typ.Field + " cannot be a JSON " + typ.Value
	case strings.HasPrefix(text, "unknown field"):
		return text
	}
	return "it is not JSON"
}

// replaced reports whether decoding has replaced part of a line with U+FFFD.
func replaced(line []byte, payload *string, headers map[string]string) bool {
	if !utf8.Valid(line) {
		return true
	}
	const mark = "\uFFFD"
	found := payload != nil && strings.Contains(*payload, mark)
	for k, v := range headers {
		found = found || strings.Contains(k, mark) || strings.Contains(v, mark)
	}
	return found && !bytes.Contains(line, []byte(mark)) && !bytes.Contains(bytes.ToLower(line), []byte(`\ufffd`))
}
