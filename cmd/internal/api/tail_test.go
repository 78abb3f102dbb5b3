package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// event is a server-sent event.
type event struct{ event, id, data string }

// tailing is an open tail.
type tailing struct {
	t      testing.TB
	in     *bufio.Scanner
	close  func()
	beats  int
	header http.Header
}

// tail opens a tail; it is closed at the end of the test.
func (s *service) tail(typ, query string, headers ...string) *tailing {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	res, err := s.client.Do(s.request("GET", "/v1/types/"+typ+"/tail"+query, "", headers...).WithContext(ctx))
	if err != nil {
		s.t.Fatal(err)
	}
	if res.StatusCode != 200 {
		b, _ := io.ReadAll(res.Body)
		s.t.Fatalf("%s %s", res.Status, b)
	}
	described.saw(s.t, "GET", "/v1/types/"+typ+"/tail", reply{200, res.Header, ""})
	t := &tailing{t: s.t, in: bufio.NewScanner(res.Body), header: res.Header, close: func() { cancel(); res.Body.Close() }}
	t.in.Buffer(nil, 1<<20)
	s.t.Cleanup(t.close)
	return t
}

// next returns the next event, or the zero event after the server has ended the response.
func (t *tailing) next() (e event) {
	t.t.Helper()
	for t.in.Scan() {
		name, value, _ := strings.Cut(t.in.Text(), ": ")
		switch {
		case t.in.Text() == ":":
			t.beats++
		case name == "event":
			e.event = value
		case name == "id":
			e.id = value
		case name == "data":
			e.data = value
		case t.in.Text() == "" && e != (event{}):
			return e
		}
	}
	return event{}
}

// A tail sends new records, also across the end of a file, and a client that reconnects continues where it was.
func TestTail(t *testing.T) {
	s := start(t, nil)
	w := s.writer("orders")
	w.put(3)
	tail := s.tail("orders", "") // from the end
	if media := tail.header.Get("Content-Type"); media != "text/event-stream" {
		t.Error(media)
	}
	w.put(2)
	w.rotate()
	w.put(1, storage.KindSkipped)
	w.put(1)
	for _, index := range []int{3, 4, 6} {
		if e := tail.next(); e.id != fmt.Sprint(index) || !strings.Contains(e.data, fmt.Sprintf(`{"index":%d,`, index)) || !strings.HasSuffix(e.data, fmt.Sprintf(`"payload":"r%d"}`, index)) {
			t.Errorf("%+v, want %d", e, index)
		}
	}
	tail.close()
	w.put(1)
	w.rotate()
	w.put(1)
	again := s.tail("orders", "?from=0", "Last-Event-ID", "4") // it takes precedence
	for _, index := range []int{6, 7, 8} {
		if e := again.next(); e.id != fmt.Sprint(index) {
			t.Errorf("%+v, want %d", e, index)
		}
	}
	for query, first := range map[string]string{"?from=0": "0", "?from=" + id(3).String(): "2", "?from=" + began.Add(4*time.Second).Format(time.RFC3339): "3"} {
		if e := s.tail("orders", query).next(); e.id != first {
			t.Errorf("%s: %+v", query, e)
		}
	}
	for _, last := range []string{"x", "18446744073709551615"} {
		s.do("GET", "/v1/types/orders/tail", "", "Last-Event-ID", last).want(t, 400, "malformed")
	}
	s.do("GET", "/v1/types/orders/tail?from=x", "").want(t, 400, "malformed")
	s.do("GET", "/v1/types/none/tail", "").want(t, 404, "no_such_type")
	// A stop ends it.
	s.Stop()
	if e := again.next(); e != (event{}) {
		t.Errorf("%+v", e)
	}
	if again.in.Err() != nil {
		t.Error(again.in.Err())
	}
	s.do("GET", "/v1/types/orders/tail", "").want(t, 503, "stopping")
}

// The reads before a tail begins count among the readers; sending does not.
func TestSearchOfATailTakesAPlace(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.writer("orders").put(3)
	if e := s.tail("orders", "?from="+id(3).String()).next(); e.id != "2" {
		t.Errorf("%+v", e)
	}
	if n := len(s.readers); n != 0 {
		t.Errorf("an open tail holds %d places of readers", n)
	}
	for range maxReaders {
		s.readers <- struct{}{}
	}
	for _, from := range []string{"", "?from=" + id(3).String(), "?from=90m"} {
		s.do("GET", "/v1/types/orders/tail"+from, "").want(t, 503, "busy")
	}
	if e := s.tail("orders", "?from=1").next(); e.id != "1" { // it only continues
		t.Errorf("%+v", e)
	}
}

// A tail may begin before the first file exists. While it has nothing to send, it sends heartbeats.
func TestTailOfATypeWithoutFile(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.do("POST", orders, "first")
	tail := s.tail("orders", "")
	go func() {
		time.Sleep(noFilePoll + noFilePoll/2) // the tail has looked for a file once
		s.drain("orders")
	}()
	if e := tail.next(); e.id != "0" || tail.beats == 0 {
		t.Errorf("%+v after %d signs of life", e, tail.beats)
	}
}

// The number of tails is bounded.
func TestManyTails(t *testing.T) {
	s := start(t, func(o *Options) { o.MaxConnections = 2 * maxTails })
	s.writer("orders").put(1)
	for range maxTails {
		s.tail("orders", "?from=0").next()
	}
	s.do("GET", "/v1/types/orders/tail", "").want(t, 503, "busy")
}

// A tail whose files are removed before it has read them says which messages it missed, and continues.
func TestTailMissesRemovedFiles(t *testing.T) {
	remove := make(chan func(), 1)
	files := storage.FS(&storagetest.Tap{FS: storage.OS(), Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpStat && filepath.Base(c.Name) == storage.GenerationName("orders", 2) { // the tail looks for the successor
			select {
			case f := <-remove:
				f()
			default:
			}
		}
		return nil
	}})
	s := startWith(t, nil, func(f *chain.Files) { f.Until = func(context.Context) storage.FS { return files } })
	w := s.writer("orders")
	w.put(2)
	tail := s.tail("orders", "?from=1")
	if e := tail.next(); e.id != "1" {
		t.Errorf("%+v", e)
	}
	remove <- func() {
		for range 3 {
			w.put(2)
			w.rotate()
		}
		w.put(1)
		for g := range uint64(3) {
			if err := os.Remove(filepath.Join(s.dir, storage.GenerationName("orders", g+1))); err != nil {
				t.Error(err)
			}
		}
	}
	for _, want := range []event{{"", "2", ""}, {"", "3", ""}, {"gap", "7", `{"from_index":4,"to_index":8,`}, {"", "8", ""}} {
		if e := tail.next(); e.event != want.event || e.id != want.id || !strings.HasPrefix(e.data, want.data) {
			t.Errorf("%+v, want %+v", e, want)
		}
	}
}
