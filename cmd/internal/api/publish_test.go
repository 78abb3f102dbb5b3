package api

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

const orders = "/v1/types/orders/messages"

// A body is one message, whatever its content type; headers of the request become headers of the message.
func TestPublishOne(t *testing.T) {
	s := start(t, nil)
	for i, body := range []string{`{"order":1}`, "", "\x00\xff binary", strings.Repeat("x", largeBody+1)} {
		a := s.do("POST", orders, body, "Content-Type", "image/png", "Fencepost-Header-Source", "käse", "fencepost-header-n", fmt.Sprint(i), "Idempotency-Key", "key-"+fmt.Sprint(i))
		var stored struct{ ID string }
		if err := json.Unmarshal([]byte(a.body), &stored); a.status != http.StatusCreated || err != nil {
			t.Fatalf("%d %s", a.status, a.body)
		}
		m := s.pending("orders")[i]
		want := map[string]string{"source": "käse", "n": fmt.Sprint(i), queue.KeyHeader: "key-" + fmt.Sprint(i)}
		if string(m.Payload) != body || m.ID.String() != stored.ID || !maps.Equal(m.Headers, want) {
			t.Errorf("%d bytes as %s, headers %q", len(m.Payload), m.ID, m.Headers)
		}
	}
}

// The largest message is accepted, also in many pieces, and one byte more is refused before it is read.
func TestLargestMessage(t *testing.T) {
	s := start(t, nil)
	largest := strings.Repeat("x", queue.MaxPayload)
	if a := s.do("POST", orders, largest); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
	pieces := s.request("POST", orders, "")
	pieces.Body, pieces.ContentLength = io.NopCloser(strings.NewReader(largest)), -1
	if a := s.send(pieces); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
	s.do("POST", orders, largest+"x").want(t, http.StatusRequestEntityTooLarge, "too_large")
	pieces = s.request("POST", orders, "")
	pieces.Body, pieces.ContentLength = io.NopCloser(strings.NewReader(largest+"x")), -1
	s.send(pieces).want(t, http.StatusRequestEntityTooLarge, "too_large")
	s.do("POST", orders, "{}", "Fencepost-Header-Long", strings.Repeat("x", queue.MaxHeaders)).want(t, http.StatusRequestEntityTooLarge, "too_large")
	if n := len(s.pending("orders")); n != 2 {
		t.Errorf("%d are stored", n)
	}
}

func TestDelays(t *testing.T) {
	s := start(t, nil)
	due := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	for _, a := range []reply{
		s.do("POST", orders, "later", "Fencepost-Delay", "30m"),
		s.do("POST", orders, "then", "Fencepost-Due", due.Format(time.RFC3339)),
		s.do("POST", orders, fmt.Sprintf(`{"payload":"line","due":%q}`, due.Add(time.Hour).Format(time.RFC3339)), "Content-Type", typeMessages),
	} {
		if a.status != http.StatusCreated {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	delayed, err := s.memory.Delayed(t.Context(), queue.ScheduleKey{}, queue.Limit{Messages: 10})
	if err != nil || len(delayed) != 3 || len(s.pending("orders")) != 0 {
		t.Fatalf("%d delayed, %d pending, %v", len(delayed), len(s.pending("orders")), err)
	}
	if in := time.Until(delayed[0].Due); in < 20*time.Minute || in > 31*time.Minute || !delayed[1].Due.Equal(due) || !delayed[2].Due.Equal(due.Add(time.Hour)) {
		t.Errorf("due in %v, at %v and %v", in, delayed[1].Due, delayed[2].Due)
	}
}

// A request that breaks a rule is refused, and nothing of it is stored.
func TestRefusedRequests(t *testing.T) {
	s := start(t, nil)
	for _, test := range []struct {
		path   string
		status int
		code   string
		header []string
	}{
		{orders, 400, "malformed", []string{"Fencepost-Delay", "soon"}},
		{orders, 400, "malformed", []string{"Fencepost-Delay", "-1s"}},
		{orders, 400, "malformed", []string{"Fencepost-Due", "tomorrow"}},
		{orders, 400, "malformed", []string{"Fencepost-Delay", "1m", "Fencepost-Due", "2030-01-31T15:04:05Z"}},
		{orders, 400, "malformed", []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}},
		{orders, 400, "malformed", []string{"Idempotency-Key", ""}},
		{orders, 400, "malformed", []string{"Fencepost-Dely", "5s"}},
		{orders, 400, "malformed", []string{"fencepost-delay", ""}},
		{orders, 400, "malformed", []string{"Fencepost-Due", ""}},
		{orders, 400, "malformed", []string{"Fencepost-Skip-Lines", "", "Content-Type", typeLines}},
		{orders, 400, "malformed", []string{"Idempotency-Key", "a", "Fencepost-Header-Idempotency-Key", "b"}},
		{orders, 400, "malformed", []string{"Fencepost-Header-A", "1", "Fencepost-Header-A", "2"}},
		{orders, 400, "malformed", []string{"Content-Type", typeLines, "Fencepost-Header-Idempotency-Key", "k"}},
		{orders, 400, "malformed", []string{"Content-Type", typeMessages, "Fencepost-Header-Idempotency-Key", "k"}},
		{orders, 400, "malformed", []string{"Content-Type", typeLines, "Fencepost-Skip-Lines", "-1"}},
		{orders, 400, "malformed", []string{"Content-Type", typeLines, "Fencepost-Skip-Lines", "two"}},
		{orders, 400, "malformed", []string{"Content-Type", typeLines, "Fencepost-Skip-Lines", "2"}},
		{orders, 400, "malformed", []string{"Fencepost-Skip-Lines", "1"}},
		{orders, 422, "invalid", []string{"Idempotency-Key", strings.Repeat("k", queue.MaxKeyLen+1)}},
		{orders, 422, "invalid", []string{"Fencepost-Header-A", "\xff"}},
		{orders, 422, "invalid", []string{"Fencepost-Header-", "x"}},
		{"/v1/types/Orders/messages", 422, "invalid", nil},
		{"/v1/types/%2e%2e%2f%2e%2e%2fetc/messages", 422, "invalid", nil},
		{"/v1/types/%ff%fe/messages", 422, "invalid", nil},
		{"/v1/types/a%00b/messages", 422, "invalid", nil},
		{"/v1/types/" + strings.Repeat("x", 65) + "/messages", 422, "invalid", nil},
		{orders, 415, "unsupported_encoding", []string{"Content-Encoding", "gzip"}},
		{orders, 415, "unsupported_encoding", []string{"Content-Encoding", "zstd, gzip", "Content-Type", typeLines}},
		{orders, 403, "cross_origin", []string{"Sec-Fetch-Site", "cross-site"}},
		{orders, 403, "cross_origin", []string{"Origin", "https://evil.example"}},
		{orders, 403, "cross_origin", []string{"Origin", "null"}},
		{"/v1/types/orders/message", 404, "no_such_path", nil},
		{"/v1/types", 405, "method_not_allowed", nil},
	} {
		s.do("POST", test.path, "{}", test.header...).want(t, test.status, test.code)
	}
	if a := s.do("POST", "/v1/types/mine/messages", "{}", "Origin", s.url); a.status != http.StatusCreated {
		t.Errorf("a page of this origin: %d %s", a.status, a.body)
	}
	other := s.request("POST", orders, "{}")
	other.Host = "rebound.example"
	if a := s.send(other); a.status != http.StatusMisdirectedRequest {
		t.Errorf("%d %s", a.status, a.body)
	}
	if types, err := s.memory.Types(t.Context()); err != nil || len(s.pending("orders")) != 0 {
		t.Errorf("stored: %q, %v", types, err)
	}
}

// The response reports the outcome of a message: stored, definitely refused, or unknown.
func TestOutcomes(t *testing.T) {
	for name, test := range map[string]struct {
		fault  queuetest.Fault
		status int
		code   string
		stored bool
	}{
		"unreachable":                       {queuetest.Fault{Kind: queuetest.Unreachable}, 503, "unavailable", false},
		"refused":                           {queuetest.Fault{Kind: queuetest.Refused}, 500, "refused", false},
		"stored, and the answer lost":       {queuetest.Fault{Kind: queuetest.LostAnswer}, 504, "unknown_outcome", true},
		"not stored, and the answer lost":   {queuetest.Fault{Kind: queuetest.Lost}, 504, "unknown_outcome", false},
		"stored, and the server hangs then": {queuetest.Fault{Kind: queuetest.HangPerformed}, 504, "unknown_outcome", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(o *Options) { o.Wait = 3 * time.Second })
			s.queue.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
				if op == queuetest.OpInsert {
					return test.fault
				}
				return queuetest.Fault{}
			}
			a := s.do("POST", orders, "one", "Idempotency-Key", "k")
			p := a.want(t, test.status, test.code)
			if got := len(s.pending("orders")) == 1; got != test.stored {
				t.Errorf("stored: %v", got)
			}
			if unknown := test.status == 504; (p.ID != "") != unknown || test.stored && p.ID != s.pending("orders")[0].ID.String() {
				t.Errorf("id %q", p.ID)
			}
			if test.status != 500 && a.header.Get("Retry-After") != fmt.Sprint(p.Retry) {
				t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
			}
			lines, sum := s.do("POST", orders, "1\n2\n", "Content-Type", typeLines).outcomes(t)
			if len(lines) != 2 || sum.Stored != 0 || sum.Complete || lines[0].Problem == nil {
				t.Errorf("%+v %+v", lines, sum)
			}
		})
	}
}

// A message that is still waiting behind others when its time is up is withdrawn: it is not stored, and the response says so.
func TestWithdrawn(t *testing.T) {
	s := start(t, func(o *Options) { o.Wait = 2 * time.Second })
	inserting, goOn := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(inserting); <-goOn })
	s.queue.Around = func(op queuetest.Op, _ string) func() {
		if op == queuetest.OpInsert {
			first()
		}
		return func() {}
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.do("POST", orders, "first").want(t, 504, "unknown_outcome") })
	select {
	case <-inserting:
	case <-time.After(time.Minute):
		t.Fatal("the first message is not being stored")
	}
	s.do("POST", orders, "second").want(t, 503, "unavailable")
	wg.Wait()
	close(goOn)
	if err := s.Close(t.Context()); err != nil { // messages that can still be stored are stored now
		t.Error(err)
	}
	if slices.Contains(s.payloads("orders"), "second") {
		t.Error("a message that was refused is stored")
	}
}

func TestPausedAndFull(t *testing.T) {
	s := start(t, nil)
	pause, most := true, 3
	if _, err := s.memory.PatchSettings(t.Context(), "paused", queue.SettingsPatch{PublishPaused: &pause, Why: "migration"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.memory.PatchSettings(t.Context(), "full", queue.SettingsPatch{MaxBacklog: &most}); err != nil {
		t.Fatal(err)
	}
	if p := s.do("POST", "/v1/types/paused/messages", "x").want(t, 409, "paused"); !strings.Contains(p.Detail, "migration") {
		t.Errorf("%+v", p)
	}
	a := s.do("POST", "/v1/types/full/messages", "1\n2\n3\n4\n5\n", "Content-Type", typeLines)
	lines, sum := a.outcomes(t)
	if a.status != 429 || a.header.Get("Retry-After") == "" || sum != (summaryLine{Stored: 3, Rejected: 2}) || lines[2].Problem != nil || lines[3].Problem.Code != "backlog_full" {
		t.Errorf("%d %q %s", a.status, a.header, a.body)
	}
	if a := s.do("POST", "/v1/types/full/messages", "x"); a.header.Get("Retry-After") == "" {
		t.Errorf("%q", a.header)
	} else {
		a.want(t, 429, "backlog_full")
	}
	same(t, "stored", s.payloads("full"), []string{"1", "2", "3"})
}

// Requests reuse the memory for lines: each stores what it sent, also while others are read and stored, and after one that ended early.
func TestRequestsShareNoLines(t *testing.T) {
	s := start(t, nil)
	var mu sync.Mutex
	var want []string
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			for request := range 8 {
				var sent []string
				for line := range 100 {
					sent = append(sent, fmt.Sprintf(`"%d.%d.%d%s"`, client, request, line, strings.Repeat("x", 1<<(line%12))))
				}
				body := strings.Join(sent, "\n")
				if request%2 == 1 {
					body += "\nno JSON\n0"
				}
				if lines, sum := s.do("POST", orders, body, "Content-Type", typeLines, "Idempotency-Key", fmt.Sprint(client, request)).outcomes(t); sum.Stored != 100 || len(lines) != 100+request%2 {
					t.Errorf("%+v of %d", sum, len(lines))
				}
				mu.Lock()
				want = append(want, sent...)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got := s.payloads("orders")
	slices.Sort(got)
	slices.Sort(want)
	same(t, "stored", got, want)
}

// Each line has its outcome, in order; blank lines count as lines but are not messages.
func TestLines(t *testing.T) {
	s := start(t, nil)
	a := s.do("POST", orders, "{\"a\":1}\n\n  \r\n[2]\n\"three\"", "Content-Type", "application/x-ndjson; charset=utf-8", "Fencepost-Header-Source", "shop", "Idempotency-Key", "k")
	lines, sum := a.outcomes(t)
	if a.status != http.StatusCreated || sum != (summaryLine{Stored: 3, Complete: true}) {
		t.Errorf("%d %s", a.status, a.body)
	}
	msgs := s.pending("orders")
	same(t, "stored", s.payloads("orders"), []string{`{"a":1}`, "[2]", `"three"`})
	for i, line := range []int{1, 4, 5} {
		if lines[i].Line != line || lines[i].ID != msgs[i].ID.String() || msgs[i].Headers["source"] != "shop" || msgs[i].Headers[queue.KeyHeader] != fmt.Sprintf("k:%d", line) {
			t.Errorf("line %d: %+v, stored as %s with %q", line, lines[i], msgs[i].ID, msgs[i].Headers)
		}
	}
	s.do("POST", orders, "\n\n", "Content-Type", typeLines).want(t, 400, "malformed")
}

// Lines after one that cannot be stored must not overtake it.
func TestBadLineEndsARequest(t *testing.T) {
	s := start(t, nil)
	for _, test := range [][2]string{{typeLines, "{oops"}, {typeLines, "\"\xff\""}, {typeMessages, `{"payload":"x","header":{}}`}} {
		media, bad := test[0], test[1]
		a := s.do("POST", orders, `{"payload":"1"}`+"\n"+bad+"\n"+`{"payload":"3"}`+"\n", "Content-Type", media)
		lines, sum := a.outcomes(t)
		if a.status != 422 || len(lines) != 2 || lines[0].Problem != nil || lines[1].Line != 2 || lines[1].Problem.Code != "invalid" || sum != (summaryLine{Stored: 1, Rejected: 1}) {
			t.Errorf("%s: %d %s", media, a.status, a.body)
		}
	}
	if n := len(s.pending("orders")); n != 3 {
		t.Errorf("%d are stored", n)
	}
	// A request has a limited number of lines, and the response says which are stored.
	a := s.do("POST", "/v1/types/many/messages", strings.Repeat("1\n", maxLines+1), "Content-Type", typeLines)
	lines, sum := a.outcomes(t)
	if a.status != 413 || sum.Stored != maxLines || sum.Complete || lines[maxLines].Line != maxLines+1 || len(s.pending("many")) != maxLines {
		t.Errorf("%d %+v", a.status, sum)
	}
	// A line can be no larger than a message.
	s.do("POST", "/v1/types/long/messages", strings.Repeat("1", maxLine+2), "Content-Type", typeLines).outcomes(t)
	if n := len(s.pending("long")); n != 0 {
		t.Errorf("%d are stored", n)
	}
}

// A message survives the format of cat and of this API unchanged: bytes, headers, key.
func TestMessageLines(t *testing.T) {
	s := start(t, nil)
	bytes := base64.StdEncoding.EncodeToString([]byte("\x00\xff"))
	body := `{"index":7,"id":"065svpgc20000000000001o00000001a","time":"2026-01-31T15:04:05Z","epoch":3,"after_gap":true,"headers":{"traceId":"1","idempotency-key":"own"},"payload":"text \ud83d\ude00"}` + "\n" +
		`{"payload_base64":"` + bytes + `"}` + "\n" + `{"payload":"\ufffd"}` + "\n" +
		`{ "id" : {"id":["id",{"Payload":"\\"}]}, "pay\u006coad" : "\",\"payload\":\\" , "headers":{"payload":"1","Payload":"2"} }` + "\n"
	a := s.do("POST", orders, body, "Content-Type", typeMessages, "Idempotency-Key", "k", "Fencepost-Header-A", "b")
	if a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.body)
	}
	same(t, "payloads", s.payloads("orders"), []string{"text 😀", "\x00\xff", "\uFFFD", `","payload":\`})
	msgs := s.pending("orders")
	if !maps.Equal(msgs[0].Headers, map[string]string{"traceId": "1", "a": "b", queue.KeyHeader: "own"}) || msgs[1].Headers[queue.KeyHeader] != "k:2" {
		t.Errorf("%q, %q", msgs[0].Headers, msgs[1].Headers)
	}
	for _, line := range []string{"{}", `{"payload":"a","payload_base64":"YQ=="}`, "[]", `"x"`, `{"payload":"a"} {}`, `{"payload_base64":"YQ"}`, `{"payload_base64":"Y!=="}`, `{"payload":1}`,
		"{\"payload\":\"\xff\"}", `{"payload":"\ud800"}`, `{"payload":"a","headers":{"k":"\udc00"}}`, `{"payload":"a","headers":{"":"x"}}`, `{"payload":"a","due":"soon"}`} {
		a := s.do("POST", "/v1/types/bad/messages", line+"\n", "Content-Type", typeMessages)
		if lines, sum := a.outcomes(t); a.status != 422 || sum.Stored != 0 || lines[0].Problem.Code != "invalid" {
			t.Errorf("%s: %d %s", line, a.status, a.body)
		}
	}
	if n := len(s.pending("bad")); n != 0 {
		t.Errorf("%d are stored", n)
	}
}

// Errors of lines say what to correct, in the words of the API.
func TestErrorsOfLines(t *testing.T) {
	s := start(t, nil)
	for line, want := range map[string][2]string{
		`{"payload":1}`:                        {"payload cannot be a JSON number", `{"payload":"text"`},
		`{"payload":"a","headers":{"k":true}}`: {"the value of a header cannot be a JSON bool", `{"payload":"text"`},
		`{"payload":"a","due":"tomorrow"}`:     {"due is not a time", "2026-01-31T15:04:05Z"},
		`{"payload":"a","due":""}`:             {"due is not a time", "2026-01-31T15:04:05Z"},
		`{"payload":"a","due":5}`:              {"due cannot be a JSON number", `{"payload":"text"`},
		`[1]`:                                  {"it is a JSON array and no object", `{"payload":"text"`},
		`{"payload":`:                          {"it is not JSON", `{"payload":"text"`},
		`{"payload":"a","header":{}}`:          {`unknown field "header"`, `{"payload":"text"`},
		`{"Payload":"a"}`:                      {`unknown field "Payload"`, `{"payload":"text"`},
		`{"payload":"a","headerſ":{}}`:         {`unknown field "headerſ"`, `{"payload":"text"`},
		`{"payload":"a", "payload":"b"}`:       {"the line has payload twice", "give it once"},
		`{"id":[{"x":"\\"},1],"payload":"a","time":"\"}","\u0069d":null}`: {"the line has id twice", "give it once"},
	} {
		lines, _ := s.do("POST", orders, line, "Content-Type", typeMessages).outcomes(t)
		if p := lines[0].Problem; p == nil || !strings.HasSuffix(p.Detail, want[0]) || !strings.Contains(p.Remedy, want[1]) {
			t.Errorf("%s: %+v", line, p)
		}
	}
}

// After an unknown outcome, a repetition with the same key gets into the file once; an unknown outcome of one line decides the status.
func TestRepetitionIsInTheFileOnce(t *testing.T) {
	s := start(t, func(o *Options) { o.Wait = 2 * time.Second })
	var mu sync.Mutex
	lose := true
	s.queue.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if op == queuetest.OpInsert && lose {
			return queuetest.Fault{Kind: queuetest.LostAnswer}
		}
		return queuetest.Fault{}
	}
	body := "1\n2\n3\n{oops\n"
	a := s.do("POST", orders, body, "Content-Type", typeLines, "Idempotency-Key", "job-7")
	if _, sum := a.outcomes(t); a.status != 504 || sum.Unknown != 3 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	s.do("POST", "/v1/types/single/messages", "x", "Idempotency-Key", "a").want(t, 504, "unknown_outcome")
	mu.Lock()
	lose = false
	mu.Unlock()
	if a := s.do("POST", orders, body[:6], "Content-Type", typeLines, "Idempotency-Key", "job-7"); a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := s.do("POST", "/v1/types/single/messages", "x", "Idempotency-Key", "a"); a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if n := len(s.pending("orders")); n != 6 {
		t.Fatalf("%d are in the queue: this tests nothing", n)
	}
	s.drain("orders", "single")
	for typ, want := range map[string][]string{"orders": {"1", "2", "3"}, "single": {"x"}} {
		same(t, typ, s.inFile(typ), want)
	}
}

// A body with more lines than the backlog has room for gets into the file in several requests, each of which skips the lines that the answers
// before it have confirmed.
func TestSkippedLines(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	most := 3
	if _, err := s.memory.PatchSettings(t.Context(), "orders", queue.SettingsPatch{MaxBacklog: &most}); err != nil {
		t.Fatal(err)
	}
	body := "1\n2\n\n3\n4\n5\n6\n7\n"
	send := func(skip int) reply {
		return s.do("POST", orders, body, "Content-Type", typeLines, "Idempotency-Key", "k", "Fencepost-Skip-Lines", fmt.Sprint(skip))
	}
	var a reply
	skip, stored := 0, 0
	until(t, "all are stored", func() bool { // the server measures the backlog every two seconds
		a = send(skip)
		lines, sum := a.outcomes(t)
		stored += sum.Stored
		if a.status == http.StatusCreated {
			return true
		}
		first := slices.IndexFunc(lines, func(o outcomeLine) bool { return o.Problem != nil })
		if a.status != 429 || sum.Complete || first != sum.Stored {
			t.Fatalf("behind %d lines: %d %s", skip, a.status, a.body)
		}
		skip = lines[first].Line - 1
		s.drain("orders")
		return false
	})
	if lines, sum := a.outcomes(t); stored != 7 || !sum.Complete || lines[0].Line != skip+1 || s.pending("orders")[0].Headers[queue.KeyHeader] != fmt.Sprint("k:", skip+1) {
		t.Errorf("%d were stored, and behind %d lines: %d %s", stored, skip, a.status, a.body)
	}
	s.drain("orders")
	same(t, "in the file", s.inFile("orders"), []string{"1", "2", "3", "4", "5", "6", "7"})
	if a := send(8); a.status != http.StatusCreated || a.body != `{"stored":0,"unknown":0,"rejected":0,"complete":true}`+"\n" {
		t.Errorf("nothing is left: %d %s", a.status, a.body)
	}
	send(9).want(t, 400, "malformed")
	if n := len(s.pending("orders")); n != 0 {
		t.Errorf("%d lines are stored again", n)
	}
	// An error while lines are skipped is one of the first line that is not.
	a = s.do("POST", "/v1/types/long/messages", strings.Repeat("1", maxLine+2*bufferSize), "Content-Type", typeLines, "Fencepost-Skip-Lines", "5")
	if lines, _ := a.outcomes(t); a.status != 413 || lines[0].Line != 6 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// inFile returns the payloads in the file.
func (s *service) inFile(typ string) (all []string) {
	s.t.Helper()
	for from := 0; ; {
		a := s.do("GET", fmt.Sprintf("/v1/types/%s/messages?from=%d", typ, from), "")
		var page struct {
			Messages []struct{ Payload string }
			Next     int
			End      bool
		}
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			s.t.Fatalf("%d %s: %v", a.status, a.body, err)
		}
		for _, m := range page.Messages {
			all = append(all, m.Payload)
		}
		if from = page.Next; page.End {
			return all
		}
	}
}

// Many concurrent clients: every confirmed message is in the queue once, and in the order of its request.
func TestConcurrentClients(t *testing.T) {
	s := start(t, nil)
	const clients, requests, lines = 8, 4, 50
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for r := range requests {
				var b strings.Builder
				for l := range lines {
					fmt.Fprintf(&b, "%d\n", (c*requests+r)*lines+l)
				}
				if a := s.do("POST", orders, b.String(), "Content-Type", typeLines); a.status != http.StatusCreated {
					t.Errorf("%d %s", a.status, a.body)
				}
				if a := s.do("POST", "/v1/types/single/messages", "x"); a.status != http.StatusCreated {
					t.Errorf("%d %s", a.status, a.body)
				}
			}
		})
	}
	wg.Wait()
	last := map[string]string{}
	seen := map[string]bool{}
	for _, p := range s.payloads("orders") {
		var n int
		fmt.Sscan(p, &n)
		of := fmt.Sprint(n / lines)
		if seen[p] || last[of] != "" && last[of] != fmt.Sprint(n-1) {
			t.Fatalf("%s twice, or behind %s", p, last[of])
		}
		seen[p], last[of] = true, p
	}
	if len(seen) != clients*requests*lines || len(s.payloads("single")) != clients*requests {
		t.Errorf("%d and %d are stored", len(seen), len(s.payloads("single")))
	}
}

// A stop finishes requests in progress and refuses new ones, and unread lines are not stored.
func TestStopWhilePublishing(t *testing.T) {
	s := start(t, nil)
	inserting, goOn := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(inserting); <-goOn })
	s.queue.Around = func(op queuetest.Op, typ string) func() {
		if op == queuetest.OpInsert && typ == "orders" {
			first()
		}
		return func() {}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if a := s.do("POST", orders, "one"); a.status != http.StatusCreated {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	<-inserting
	in, out := io.Pipe() // a body without an end
	wg.Go(func() {
		r := s.request("POST", "/v1/types/stream/messages", "", "Content-Type", typeLines)
		r.Body, r.ContentLength = in, -1
		a := s.send(r)
		lines, sum := a.outcomes(t)
		if a.status != 503 || sum.Complete || sum.Stored != len(s.pending("stream")) || lines[len(lines)-1].Problem.Code != "stopping" {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	halfIn, half := io.Pipe() // a message of which only a part has arrived when the server stops
	wg.Go(func() {
		r := s.request("POST", "/v1/types/half/messages", "")
		r.Body, r.ContentLength = halfIn, -1
		if a := s.send(r); a.status != http.StatusCreated {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	fmt.Fprint(half, strings.Repeat("x", largeBody+1))
	until(t, "the part is there", func() bool { return len(s.large) == 1 })
	fmt.Fprint(out, strings.Repeat("1\n", chunkLines))
	until(t, "a part of the stream is stored", func() bool { return len(s.pending("stream")) == chunkLines })
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		closed <- s.Close(ctx)
	}()
	until(t, "it stops", s.isStopping)
	s.do("POST", "/v1/types/late/messages", "x").want(t, 503, "stopping")
	if a := s.do("GET", "/readyz", ""); a.status != 503 || a.body != "stopping\n" {
		t.Errorf("%d %s", a.status, a.body)
	}
	select {
	case err := <-closed:
		t.Errorf("it did not wait for requests under way: %v", err)
	default:
	}
	fmt.Fprint(out, "2\n")
	out.Close()
	half.Close()
	close(goOn)
	wg.Wait()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if len(s.pending("orders")) != 1 || len(s.pending("half")) != 1 || len(s.pending("late")) != 0 || len(s.pending("stream")) > chunkLines+1 { // one line was read already
		t.Errorf("%d, %d and %d are stored", len(s.pending("orders")), len(s.pending("late")), len(s.pending("stream")))
	}
}

// A stop that runs out of time says so.
func TestStopThatIsInAHurry(t *testing.T) {
	s := start(t, nil)
	inserting := make(chan struct{}, 10)
	s.queue.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
		if op == queuetest.OpInsert {
			inserting <- struct{}{}
			return queuetest.Fault{Kind: queuetest.Hang}
		}
		return queuetest.Fault{}
	}
	done := make(chan struct{})
	go func() { defer close(done); s.do("POST", orders, "one").want(t, 504, "unknown_outcome") }()
	<-inserting
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-done
}

// A line with an unknown outcome decides the status, whatever else is wrong in the request.
func TestUnknownLineDecides(t *testing.T) {
	s := start(t, nil)
	all := []outcome{{line: 1}, {line: 2, problem: s.problem(&queue.BacklogFullError{Type: "orders", Limit: 1})}, {line: 3, problem: s.problem(queue.ErrUnknown)}, {line: 4}}
	w := httptest.NewRecorder()
	to := &answer{ResponseWriter: w, c: http.NewResponseController(w)}
	if err := s.answerLines(to, bufio.NewWriter(to), all, true); err != nil || w.Code != http.StatusGatewayTimeout {
		t.Errorf("%d %v: %s", w.Code, err, w.Body)
	}
}
