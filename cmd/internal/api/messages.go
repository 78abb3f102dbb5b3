package api

import (
	"bufio"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/recordjson"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/storage"
)

// messages responds with durable records of a type's files, beginning at a place, up to a number of records or bytes.
func (s *Server) messages(w *answer, r *http.Request, _ *client) error {
	n, err := limit(r, 100, 10_000)
	if err != nil {
		return err
	}
	var from cli.Place
	if text := r.URL.Query().Get("from"); text != "" {
		var ok bool
		if from, ok = cli.ParsePlace(text); !ok {
			return malformed("use an index, an ID, a time as in 2026-01-31T15:04:05Z, 90m or 7d", "from is not a place in a file")
		}
	} else {
		from.IsIndex = true
	}
	ctx := r.Context()
	files, index, leave, err := s.locate(ctx, r.PathValue("type"), from)
	if err != nil {
		return err
	}
	defer leave()
	w.reader = true
	switch first := files.Chain[0].First; {
	case index >= first:
	case r.URL.Query().Get("from") == "":
		index = first
	default:
		p := newProblem(http.StatusGone, "removed", fmt.Sprintf("continue with from=%d", first), "messages before %d were removed with old files", first)
		p.To = first
		return p
	}
	p := &page{out: bufio.NewWriterSize(w, 64<<10), w: w, lines: wantsLines(r), next: index}
	bytes := 0
	p.end, err = s.each(ctx, files, storage.ReaderOptions{From: index}, func(rec *storage.Record) bool {
		if p.count == n || bytes >= pageBytes {
			return false
		}
		bytes += len(rec.Payload)
		return p.add(rec)
	})
	if err != nil && p.count == 0 {
		return err
	}
	return p.finish() // the next request reports an error after the last record
}

// wantsLines reports whether a client asks for NDJSON.
func wantsLines(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil || media != typeLines {
			continue
		}
		if weight, err := strconv.ParseFloat(params["q"], 64); err != nil || weight > 0 { // q=0 means that the client does not accept it
			return true
		}
	}
	return false
}

// page writes records as they are read: as one JSON object, or each on a line.
type page struct {
	w     *answer
	out   *bufio.Writer
	lines bool
	count int
	next  uint64 // the index to continue with
	end   bool
	err   error // of writing
}

func (p *page) begin() {
	media := "application/json"
	if p.lines {
		media = typeLines
	}
	p.w.Header().Set("Vary", "Accept")
	p.w.Header().Set("Content-Type", media)
	if !p.lines {
		p.out.WriteString(`{"messages":[`)
	}
}

func (p *page) add(rec *storage.Record) bool {
	switch {
	case p.count == 0:
		p.begin()
	case !p.lines:
		p.out.WriteByte(',')
	}
	p.count++
	p.next = rec.Index + 1
	p.err = recordjson.Write(p.out, rec)
	if p.err == nil && p.lines {
		p.err = p.out.WriteByte('\n')
	}
	return p.err == nil
}

func (p *page) finish() error {
	if p.count == 0 {
		p.begin()
	}
	if !p.lines {
		printable.Fprintf(p.out, "],\"next\":%d,\"end\":%t}\n", p.next, p.end)
	}
	if p.err != nil {
		return p.err
	}
	return p.out.Flush()
}

// message responds with one durable record, by index or ID.
func (s *Server) message(w *answer, r *http.Request, _ *client) error {
	at, ok := cli.ParsePlace(r.PathValue("message"))
	if !ok || !at.IsIndex && at.IDs == nil {
		return malformed("use an index, or an ID", "the last part of the path is neither an index nor an ID")
	}
	ctx := r.Context()
	files, index, leave, err := s.locate(ctx, r.PathValue("type"), at)
	if err != nil {
		return err
	}
	defer leave()
	w.reader = true
	out, found := bufio.NewWriterSize(w, 64<<10), false
	if _, err = s.each(ctx, files, storage.ReaderOptions{From: index}, func(rec *storage.Record) bool {
		if found = rec.Index == index; found {
			w.Header().Set("Content-Type", "application/json")
			recordjson.Write(out, rec) // Flush returns errors
			out.WriteByte('\n')
		}
		return false
	}); err != nil {
		return err
	}
	if !found {
		return notFound("no_such_message", "it may be pending still, be a dead letter, or be in a file that was removed", "no durable message has index %d", index)
	}
	return out.Flush()
}
