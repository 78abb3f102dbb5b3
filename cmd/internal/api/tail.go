package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/recordjson"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/storage"
)

const (
	noFilePoll = time.Second     // how often a tail looks for a file that does not exist yet
	retryAfter = 2 * time.Second // delay before a client reconnects
)

// tail sends durable records as they are appended, as server-sent events. The ID of an event is the index of its record, so a client that
// reconnects says with Last-Event-ID where it was. After a sealed file, tail continues in the next one.
//
//	event: message   (the default)  data: the record
//	event: gap                      data: {"from_index":…,"to_index":…,"reason":…}: records that are no longer in the files
//	event: problem                  data: the problem that ends the response
func (s *Server) tail(w *answer, r *http.Request, _ *client) error {
	from, err := tailFrom(r)
	if err != nil {
		return err
	}
	select {
	case s.tails <- struct{}{}:
	default:
		return busy("too many tails at a time")
	}
	s.metrics.tails.Inc()
	defer func() { <-s.tails; s.metrics.tails.Dec() }()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)()

	t := &tailer{s: s, w: w, r: r, out: bufio.NewWriterSize(w, 64<<10), typ: r.PathValue("type"), checked: time.Now()}
	if t.from, err = s.beginning(ctx, t.typ, from); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for proxies
	printable.Fprintf(t.out, "retry: %d\n\n", retryAfter.Milliseconds())
	if err := t.flush(); err != nil {
		return nil
	}
	err = t.run(ctx)
	if err == nil || ctx.Err() != nil || w.failed != nil {
		return nil // the client disconnected, or the server is stopping
	}
	p := s.problem(err)
	printable.Fprintf(t.out, "event: problem\ndata: ")
	printable.EncodeJSON(t.out, p, "")
	t.out.WriteString("\n")
	t.flush()
	return err
}

// beginning returns the index at which a tail begins. Anything but an index requires reading files, and so a place among the readers.
func (s *Server) beginning(ctx context.Context, typ string, from *cli.Place) (uint64, error) {
	if from == nil || !from.IsIndex {
		leave, err := s.place(ctx, s.readers, "too many readers at a time")
		if err != nil {
			return 0, err
		}
		defer leave()
	}
	files, err := s.chain(ctx, typ)
	switch {
	case err == error(noFile) && from != nil:
		return from.Index, nil // 0 if from is not an index
	case err == error(noFile):
		return 0, nil
	case err != nil:
		return 0, err
	case from != nil:
		return s.find(ctx, files, *from)
	}
	return s.end(ctx, files)
}

// tailFrom returns the place where a tail begins; nil: the end.
func tailFrom(r *http.Request) (*cli.Place, error) {
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		index, err := strconv.ParseUint(last, 10, 63) // so that the next index does not begin at 0 again
		if err != nil {
			return nil, malformed("send the id of the last event, or leave it out", "Last-Event-ID is not an index")
		}
		return &cli.Place{Index: index + 1, IsIndex: true}, nil
	}
	text := r.URL.Query().Get("from")
	if text == "" {
		return nil, nil
	}
	p, ok := cli.ParsePlace(text)
	if !ok {
		return nil, malformed("use an index, an ID, a time as in 2026-01-31T15:04:05Z, 90m or 7d", "from is not a place in a file")
	}
	return &p, nil
}

// tailer sends the records of a type to one client.
type tailer struct {
	s    *Server
	w    *answer
	r    *http.Request
	out  *bufio.Writer
	typ  string
	from uint64 // index of the next record to send

	beat    time.Time // when something was last sent
	checked time.Time // when the client was last checked
}

func (t *tailer) flush() error {
	if err := t.out.Flush(); err != nil {
		return err
	}
	t.beat = time.Now()
	return t.w.Flush()
}

// check returns an error if the client may no longer read. It checks once per heartbeat interval.
func (t *tailer) check() error {
	if time.Since(t.checked) < t.s.o.Heartbeat {
		return nil
	}
	t.checked = time.Now()
	// rule: a tail ends when the authority of its client's certificate is removed.
	if !t.s.o.Access.certified(t.r) {
		return uncertified()
	}
	// rule: revoking a token ends the tails that were opened with it.
	if c := t.s.o.Access.client(t.r); c == nil || !c.may(scopeRead) || !c.mayUse(t.typ) {
		return newProblem(http.StatusUnauthorized, "unauthorized", "connect again with a token that the server knows", "the token was revoked")
	}
	return nil
}

// heartbeat sends a comment if nothing was sent for a heartbeat interval.
func (t *tailer) heartbeat() error {
	if time.Since(t.beat) < t.s.o.Heartbeat {
		return nil
	}
	t.out.WriteString(":\n\n")
	return t.flush()
}

// run sends until ctx ends.
func (t *tailer) run(ctx context.Context) error {
	f, err := t.follow(ctx)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	for sent := true; ; {
		beat, cancel := context.WithDeadline(ctx, t.beat.Add(t.s.o.Heartbeat))
		recs, err := f.Next(beat)
		cancel()
		switch {
		case err == nil:
			sent, err = true, t.send(recs)
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			err = t.heartbeat()
		case errors.As(err, new(*storage.ChainError)) && sent:
			// Old files may have been removed before they were read. If the files that are left follow one another, the client is told what it missed.
			var again *storage.Follower
			if again, err = t.follow(ctx); err == nil {
				f.Close()
				f, sent = again, false
			}
		}
		if err := errors.Join(err, t.check()); err != nil {
			return err
		}
	}
}

// follow opens the file, and waits for it if it does not exist yet.
func (t *tailer) follow(ctx context.Context) (*storage.Follower, error) {
	for {
		files, err := t.s.chain(ctx, t.typ)
		if err == nil {
			return t.open(ctx, files)
		}
		if err != error(noFile) {
			return nil, err
		}
		if err := wait.For(ctx, noFilePoll); err != nil {
			return nil, err
		}
		if err := errors.Join(t.heartbeat(), t.check()); err != nil {
			return nil, err
		}
	}
}

func (t *tailer) open(ctx context.Context, f files) (*storage.Follower, error) {
	if _, err := t.s.end(ctx, f); err != nil {
		return nil, err
	}
	at := f.Chain[max(f.Chain.At(t.from), 0)]
	if t.from < at.First { // rule: a client that comes too late for removed messages is told what it missed
		g := recordjson.Gap{FromIndex: t.from, ToIndex: at.First, Reason: "removed with old files"}
		data, err := json.Marshal(g)
		if err != nil {
			return nil, err
		}
		printable.Fprintf(t.out, "event: gap\nid: %d\ndata: %s\n\n", at.First-1, data)
		t.from = at.First
		if err := t.flush(); err != nil {
			return nil, err
		}
	}
	return storage.Follow(at.Path, storage.FollowOptions{FS: t.s.files.FS(ctx), From: t.from, Poll: t.s.o.Poll})
}

// send sends records, one event each.
func (t *tailer) send(recs []storage.Record) error {
	for i := range recs {
		rec := &recs[i]
		t.from = rec.Index + 1
		if !rec.Kind.IsMessage() {
			continue
		}
		printable.Fprintf(t.out, "id: %d\ndata: ", rec.Index)
		if err := recordjson.Write(t.out, rec); err != nil {
			return err
		}
		t.out.WriteString("\n\n") // flush returns its error
	}
	return t.flush()
}
