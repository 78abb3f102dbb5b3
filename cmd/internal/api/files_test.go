package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// writer appends to the file of a type like a worker, and keeps the registry up to date.
type writer struct {
	s   *service
	w   *storage.Writer
	typ string
	n   uint64
}

var began = time.Date(2026, 1, 31, 15, 0, 0, 0, time.UTC)

// openFile opens the file of a type for writing.
func (s *service) openFile(typ string, epoch uint64, o storage.Options) *storage.Writer {
	s.t.Helper()
	o.AllowOverlay = true
	w, err := storage.Open(context.Background(), s.dir, typ, epoch, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

func (s *service) writer(typ string) *writer {
	s.t.Helper()
	wr := &writer{s: s, w: s.openFile(typ, 1, storage.Options{}), typ: typ}
	wr.register()
	s.t.Cleanup(func() { wr.w.Close() })
	return wr
}

func (w *writer) entry() queue.RegistryEntry {
	e := w.w.Entry()
	return queue.RegistryEntry{FileID: e.FileID, Generation: e.Generation, Epoch: e.Epoch, DurableIndex: e.DurableIndex, Place: w.s.files.Place}
}

func (w *writer) register() {
	w.s.t.Helper()
	entry := w.entry()
	old, ok, err := w.s.memory.RegistryEntry(context.Background(), w.typ)
	if err == nil && ok {
		_, _, err = w.s.memory.SucceedFile(context.Background(), w.typ, old.FileID, entry)
	} else if err == nil {
		_, err = w.s.memory.RegisterFile(context.Background(), w.typ, entry)
	}
	if err != nil {
		w.s.t.Fatal(err)
	}
}

// id returns the ID of record n, n seconds after began.
func id(n uint64) queue.ID { return queue.NewID(began.Add(time.Duration(n)*time.Second), 42, n) }

// put appends records, one second apart, whose payload is r and their number.
func (w *writer) put(many int, kinds ...storage.Kind) {
	w.s.t.Helper()
	for range many {
		w.n++
		id := id(w.n)
		rec := storage.Record{Kind: storage.KindMessage, ID: id[:], Time: id.Time().UnixNano(), Payload: fmt.Appendf(nil, "r%d", w.n-1), Headers: []storage.Header{{Key: "n", Value: fmt.Sprint(w.n)}}}
		if len(kinds) > 0 {
			rec.Kind = kinds[0]
		}
		if err := w.w.Append([]storage.Record{rec}); err != nil {
			w.s.t.Fatal(err)
		}
	}
	if _, err := w.w.Sync(); err != nil {
		w.s.t.Fatal(err)
	}
	if ok, err := w.s.memory.UpdateFile(context.Background(), w.typ, w.entry()); !ok || err != nil {
		w.s.t.Fatal(ok, err)
	}
}

func (w *writer) rotate() {
	w.s.t.Helper()
	next, err := w.w.Rotate(context.Background(), nil)
	if err != nil {
		w.s.t.Fatal(err)
	}
	w.w = next
	w.register()
}

// damage changes the payload of a record in the writer's file.
func (w *writer) damage(payload string) {
	w.s.t.Helper()
	content := []byte(readFile(w.s.t, w.w.Path()))
	content[strings.LastIndex(string(content), payload)] ^= 1
	if err := os.WriteFile(w.w.Path(), content, 0o600); err != nil {
		w.s.t.Fatal(err)
	}
}

// pageOf is the JSON of a page.
type pageOf struct {
	Messages []struct {
		Index         uint64
		ID            string
		Time          time.Time
		Epoch         uint64
		Headers       map[string]string
		Payload       string
		PayloadBase64 string `json:"payload_base64"`
	}
	Next uint64
	End  bool
}

func (s *service) page(path string) (p pageOf) {
	s.t.Helper()
	a := s.do("GET", path, "")
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != 200 || a.header.Get("Content-Type") != "application/json" {
		s.t.Fatalf("%s: %d %s", path, a.status, a.body)
	}
	return p
}

// Pages lead through all files of a type; dead letters and lost records are skipped.
func TestMessages(t *testing.T) {
	s := start(t, nil)
	w := s.writer("orders")
	w.put(5)
	w.rotate()
	w.put(3)
	w.put(1, storage.KindSkipped)
	w.put(1, storage.KindAfterGap)
	for _, test := range []struct {
		query string
		want  string
		next  uint64
		end   bool
	}{
		{"", "r0 r1 r2 r3 r4 r5 r6 r7 r9", 10, true},
		{"?limit=3", "r0 r1 r2", 3, false},
		{"?from=4&limit=2", "r4 r5", 6, false},
		{"?from=8", "r9", 10, true},
		{"?from=10", "", 10, true},
		{"?from=10000", "", 10000, true},
		{"?from=" + id(7).String(), "r6 r7 r9", 10, true},
		{"?from=" + began.Add(7500*time.Millisecond).Format(time.RFC3339Nano), "r7 r9", 10, true},
		{"?from=2000-01-01T00:00:00Z&limit=1", "r0", 1, false},
		{"?from=1ms", "", 10, true},
	} {
		p := s.page("/v1/types/orders/messages" + test.query)
		var got []string
		for _, m := range p.Messages {
			got = append(got, m.Payload)
			if m.Headers["n"] != fmt.Sprint(m.Index+1) || m.ID != id(m.Index+1).String() || m.Epoch != 1 || !m.Time.Equal(began.Add(time.Duration(m.Index+1)*time.Second)) {
				t.Errorf("%+v", m)
			}
		}
		if strings.Join(got, " ") != test.want || p.Next != test.next || p.End != test.end {
			t.Errorf("%q: %q, next %d, end %v", test.query, got, p.Next, p.End)
		}
	}
	a := s.do("GET", "/v1/types/orders/messages?from=7", "", "Accept", "text/html, application/x-ndjson;q=0.9")
	if a.header.Get("Content-Type") != typeLines || strings.Count(a.body, "\n") != 2 || !strings.HasPrefix(a.body, `{"index":7,"id":"`) {
		t.Errorf("%q %s", a.header, a.body)
	}
	// So a client can tell that an index is beyond the end.
	if a := s.do("GET", "/v1/types/orders", ""); !strings.Contains(a.body, `"durable_index":10,`) {
		t.Error(a.body)
	}
	if a := s.do("GET", "/v1/types/orders/messages", "", "Accept", "application/x-ndjson;q=0.0, application/json"); a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%q", a.header)
	}
	// Records can be published again as they were read.
	if again := s.do("POST", "/v1/types/copy/messages", a.body, "Content-Type", typeMessages); again.status != http.StatusCreated {
		t.Errorf("%d %s", again.status, again.body)
	}
	same(t, "copy", s.payloads("copy"), []string{"r7", "r9"})
	for query, code := range map[string]string{"?limit=0": "malformed", "?limit=x": "malformed", "?limit=10001": "malformed", "?from=yesterday": "malformed"} {
		s.do("GET", "/v1/types/orders/messages"+query, "").want(t, 400, code)
	}
	s.do("GET", "/v1/types/orders/messages?from="+id(99).String(), "").want(t, 404, "no_such_message")
	s.do("GET", "/v1/types/nothing/messages", "").want(t, 404, "no_such_type")
	s.do("POST", "/v1/types/new/messages", "x")
	s.do("GET", "/v1/types/new/messages", "").want(t, 404, "no_file")
}

func TestMessage(t *testing.T) {
	s := start(t, nil)
	w := s.writer("orders")
	w.put(3)
	w.put(1, storage.KindSkipped)
	for ref, want := range map[string]string{"1": "r1", id(3).String(): "r2"} {
		if a := s.do("GET", orders+"/"+ref, ""); a.status != 200 || !strings.Contains(a.body, `"payload":"`+want+`"`) {
			t.Errorf("%s: %d %s", ref, a.status, a.body)
		}
	}
	for _, ref := range []string{"3", "4", "99", id(99).String(), id(4).String()} {
		s.do("GET", orders+"/"+ref, "").want(t, 404, "no_such_message")
	}
	for _, ref := range []string{"x", "90m", "2026-01-31T15:04:05Z"} {
		s.do("GET", orders+"/"+ref, "").want(t, 400, "malformed")
	}
}

// A response has a size limit; a payload of any size and with any bytes arrives completely.
func TestLargePages(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	s := start(t, nil)
	large := strings.Repeat("\x00", queue.MaxPayload)
	for range 3 {
		if a := s.do("POST", orders, large[:pageBytes*2/3]); a.status != http.StatusCreated {
			t.Fatal(a.body)
		}
	}
	s.do("POST", orders, large)
	s.do("POST", orders, "\xff\x00")
	s.drain("orders")
	if p := s.page(orders); len(p.Messages) != 2 || p.End || p.Next != 2 {
		t.Errorf("%d messages, next %d", len(p.Messages), p.Next)
	}
	if p := s.page(orders + "?from=3"); len(p.Messages) != 1 || p.Messages[0].Payload != large {
		t.Errorf("%d messages", len(p.Messages))
	}
	if p := s.page(orders + "?from=4"); len(p.Messages) != 1 || p.Messages[0].PayloadBase64 != "/wA=" {
		t.Errorf("%+v", p.Messages)
	}
}

// Requests for messages in removed files are told where to continue.
func TestRemovedFiles(t *testing.T) {
	s := start(t, nil)
	w := s.writer("orders")
	w.put(5)
	w.rotate()
	w.put(5)
	if err := os.Remove(filepath.Join(s.dir, storage.FileName("orders"))); err != nil {
		t.Fatal(err)
	}
	if p := s.do("GET", orders+"?from=2", "").want(t, 410, "removed"); p.To != 5 || !strings.Contains(p.Remedy, "from=5") {
		t.Errorf("%+v", p)
	}
	if p := s.page(orders); len(p.Messages) != 5 || p.Messages[0].Index != 5 {
		t.Errorf("%+v", p)
	}
	tail := s.tail("orders", "", "Last-Event-ID", "1")
	if e := tail.next(); e.event != "gap" || e.id != "4" || !strings.Contains(e.data, `"from_index":2,"to_index":5`) {
		t.Errorf("%+v", e)
	}
	if e := tail.next(); e.id != "5" {
		t.Errorf("%+v", e)
	}
}

// Files that are not the registered ones are not served.
func TestOtherFiles(t *testing.T) {
	s := start(t, nil)
	register := func(typ string, id byte, place string) {
		if _, err := s.memory.RegisterFile(t.Context(), typ, queue.RegistryEntry{FileID: [16]byte{id}, Generation: 1, Place: place}); err != nil {
			t.Fatal(err)
		}
	}
	register("away", 1, "node-7:/srv")
	if p := s.do("GET", "/v1/types/away/messages", "").want(t, 404, "elsewhere"); !strings.Contains(p.Detail, "node-7:/srv") {
		t.Errorf("%+v", p)
	}
	s.writer("restored").put(2)
	if e, _, err := s.memory.RegistryEntry(t.Context(), "restored"); err != nil {
		t.Fatal(err)
	} else if _, ok, err := s.memory.SucceedFile(t.Context(), "restored", e.FileID, queue.RegistryEntry{FileID: [16]byte{9}, Generation: 1}); !ok || err != nil {
		t.Fatal(err)
	}
	s.do("GET", "/v1/types/restored/messages", "").want(t, 404, "elsewhere")
	s.do("GET", "/v1/types/restored/tail", "").want(t, 404, "elsewhere")
	// Without an entry, it is unknown whose messages a file has.
	for _, typ := range []string{"stray", "queued"} {
		if err := s.openFile(typ, 1, storage.Options{}).Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.do("POST", "/v1/types/queued/messages", "x")
	s.do("GET", "/v1/types/stray/messages", "").want(t, 404, "no_such_type")
	s.do("GET", "/v1/types/queued/messages", "").want(t, 404, "no_file")
}

// Damage is reported, and never taken for the end.
func TestDamagedFiles(t *testing.T) {
	s := start(t, nil)
	for _, typ := range []string{"fenced", "newest"} {
		w := s.writer(typ)
		w.put(50)
		if typ == "fenced" { // another writer has fenced this one
			if err := w.w.Close(); err != nil {
				t.Fatal(err)
			}
			w.w = s.openFile(typ, 2, storage.Options{})
			w.put(5)
		}
		w.damage("r20")
		if p := s.page("/v1/types/" + typ + "/messages?limit=1000"); p.End || p.Next != 20 {
			t.Errorf("%s: next %d, end %v", typ, p.Next, p.End)
		}
		s.do("GET", "/v1/types/"+typ+"/messages?from=20", "").want(t, 500, "damaged")
		s.do("GET", "/v1/types/"+typ+"/messages/30", "").want(t, 500, "damaged")
		if e := s.tail(typ, "?from=19").next(); e.event != "problem" || !strings.Contains(e.data, `"damaged"`) {
			t.Errorf("%s: %+v", typ, e)
		}
	}
	s.do("GET", "/v1/types/newest/tail", "").want(t, 500, "damaged")
}

// A damaged file that was repaired into a later one is not read.
func TestRepairedFiles(t *testing.T) {
	s := start(t, nil)
	w := s.writer("orders")
	w.put(5)
	w.rotate()
	w.put(5)
	w.put(1) // it proves that the others were durable
	if err := w.w.Close(); err != nil {
		t.Fatal(err)
	}
	w.damage("r7")
	var err error
	if w.w, _, err = s.openFile("orders", 2, storage.Options{Salvage: true}).Compact(t.Context(), nil, storage.CompactOptions{}); err != nil {
		t.Fatal(err)
	}
	w.register()
	if p := s.page(orders + "?limit=1000"); len(p.Messages) != 8 || p.Next != 11 || !p.End {
		t.Errorf("%+v", p)
	}
	tail := s.tail("orders", "?from=0")
	for _, index := range []int{0, 1, 2, 3, 4, 5, 6, 10} {
		if e := tail.next(); e.id != fmt.Sprint(index) {
			t.Errorf("%+v, want %d", e, index)
		}
	}
}

func TestTypes(t *testing.T) {
	s := start(t, nil)
	for i := range 25 {
		if err := s.memory.RegisterType(t.Context(), fmt.Sprintf("t%02d", i)); err != nil {
			t.Fatal(err)
		}
	}
	pause, most := true, 50
	if _, err := s.memory.PatchSettings(t.Context(), "t03", queue.SettingsPatch{PublishPaused: &pause, DrainPaused: &pause, MaxBacklog: &most, Why: "migration"}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for after := ""; ; {
		a := s.do("GET", "/v1/types?limit=10&after="+after, "")
		var list typeList
		if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		for _, l := range list.Types {
			if names = append(names, l.Type); l.Type == "t03" && l.control != (control{true, true, 50, "migration"}) {
				t.Errorf("%+v", l)
			}
		}
		if after = list.Next; after == "" {
			break
		}
	}
	if len(names) != 25 || names[0] != "t00" || names[24] != "t24" {
		t.Errorf("%q", names)
	}
	s.do("POST", "/v1/types/t05/messages", "1\n2\n", "Content-Type", typeLines)
	var state typeState
	a := s.do("GET", "/v1/types/t05", "")
	if err := json.Unmarshal([]byte(a.body), &state); err != nil || state.Type != "t05" || state.Pending != 2 || state.Generation != 0 {
		t.Errorf("%d %s", a.status, a.body)
	}
	s.writer("t06").put(3)
	if err := json.Unmarshal([]byte(s.do("GET", "/v1/types/t06", "").body), &state); err != nil || state.Generation != 1 || state.Place != s.files.Place {
		t.Errorf("%+v %v", state, err)
	}
	s.do("GET", "/v1/types/none", "").want(t, 404, "no_such_type")
	s.do("GET", "/v1/types/No", "").want(t, 422, "invalid")
	s.do("GET", "/v1/types?limit=1001", "").want(t, 400, "malformed")
}
