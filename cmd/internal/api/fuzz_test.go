package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/lines"
	"github.com/fencepost/fencepost/cmd/internal/recordjson"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/rs/zerolog"
)

// FuzzPublish: heads and bodies of publish requests. The queue has stored what the response says, and nothing that breaks a limit.
func FuzzPublish(f *testing.F) {
	const payloads, messages = "Content-Type: " + typeLines + "\r\n", "Content-Type: " + typeMessages + "\r\n"
	for head, bodies := range map[string][]string{
		"": {"", "text", "\x00\xff"},
		"Fencepost-Header-Source: shop\r\nIdempotency-Key: order-7\r\n":                               {"text"},
		"Fencepost-Delay: 10m\r\n":                                                                    {"later"},
		"Fencepost-Due: 2999-01-31T15:04:05Z\r\n":                                                     {"later"},
		"Fencepost-Delay: 1h\r\nFencepost-Due: x\r\n":                                                 {"both"},
		"Idempotency-Key: \r\n":                                                                       {"no key"},
		"Fencepost-Header-A: 1\r\nFencepost-Header-A: 2\r\n":                                          {"twice"},
		"Fencepost-Header-Fencepost-Loose: 1\r\nFencepost-Header-: x\r\nFencepost-Header-B: \xff\r\n": {"ours"},
		"Content-Encoding: gzip\r\n":                                                                  {"\x1f\x8b"},
		"Transfer-Encoding: chunked\r\n":                                                              {"4\r\ntext\r\n0\r\n\r\n", "4\r\nte", "ffffffffffffffff\r\n"},
		"Content-Length: 3\r\n":                                                                       {"text"},
		payloads:                                                                                      {"{\"a\":1}\n[2]\n\n3", "1\n{\n3\n", "\n", ""},
		payloads + "Idempotency-Key: k\r\n":                                                           {"1\n\n2\n"},
		messages:                                                                                      {`{"payload":"a"}` + "\n" + `{"payload_base64":"AP8=","headers":{"k":"v"},"due":"2999-01-31T15:04:05Z"}`, `{"payload":"\ud800"}`, `{"payload":"a","id":{},"index":-1,"time":[]}`, `{"payload":null}`, `{"Payload":"a"} x`, "{\"payload\":\"\xff\"}"},
		messages + "Fencepost-Header-A: 1\r\nHost: x\r\n":                                             {`{"payload":"a","headers":{"a":"2","idempotency-key":""}}`, `{"payload":"","due":"0001-01-01T00:00:00Z"}`},
	} {
		for _, body := range bodies {
			f.Add(head, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, head string, body []byte) {
		length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
		if strings.Contains(strings.ToLower(head), "transfer-encoding") || strings.Contains(strings.ToLower(head), "content-length") {
			length = ""
		}
		text := append([]byte("POST /v1/types/orders/messages HTTP/1.1\r\n"+length+head+"\r\n"), body...)
		request := func() (*http.Request, error) { return http.ReadRequest(bufio.NewReader(bytes.NewReader(text))) }
		r, err := request()
		if err != nil {
			return // net/http refuses it before the handler sees it
		}
		sent, cut := io.ReadAll(r.Body)
		r, _ = request()
		memory := queuetest.NewMemory()
		s := New(Options{Wait: time.Minute, ClientTimeout: time.Minute, MaxConnections: 1, Log: zerolog.Nop()}, "starting")
		if err := s.Start(t.Context(), &fencepost.Backend{Queue: memory, Name: "memory"}, chain.Files{}); err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		w := httptest.NewRecorder()
		s.noted(s.handler()).ServeHTTP(w, r)

		stored, err := memory.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		delayed, err := memory.Delayed(t.Context(), queue.ScheduleKey{}, queue.Limit{Messages: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		all := append(stored, delayed...)
		for i := range all {
			if err := all[i].Validate(); err != nil {
				t.Fatalf("stored %+v: %v", all[i], err)
			}
			sameAgain(t, &all[i])
		}
		a := reply{w.Code, w.Header(), w.Body.String()}
		ids, complete := []string{}, false
		switch {
		case a.status >= 500:
			t.Fatalf("%d %s", a.status, a.body)
		case a.header.Get("Content-Type") == typeLines:
			lines, sum := a.outcomes(t)
			for _, o := range lines {
				if o.Problem == nil {
					ids = append(ids, o.ID)
				}
			}
			if complete = sum.Complete; sum.Stored != len(ids) || sum.Unknown > 0 || (a.status == http.StatusCreated) != (sum.Rejected == 0 && complete) {
				t.Fatalf("%d %s", a.status, a.body)
			}
		case a.status == http.StatusCreated:
			_, id, _ := strings.Cut(a.body, `"id":"`)
			id, _, _ = strings.Cut(id, `"`)
			ids = append(ids, id)
			if len(all) != 1 || !bytes.Equal(all[0].Payload, sent) || cut != nil {
				t.Fatalf("stored %+v for %q, %v", all, sent, cut)
			}
		}
		if len(ids) != len(all) {
			t.Fatalf("%d are stored, and the answer is %d %s", len(all), a.status, a.body)
		}
		for _, id := range ids {
			if !hasID(all, id) {
				t.Fatalf("%s is not stored: %+v", id, all)
			}
		}
		count := 0
		skip, _ := strconv.Atoi(r.Header.Get(headerSkip))
		for i, line := range bytes.Split(sent, []byte("\n")) {
			if !lines.Blank(line) && i >= skip {
				count++
			}
			if lines.IsJSON(line) != json.Valid(line) {
				t.Fatalf("%q: JSON or not", line)
			}
		}
		if complete && a.status == http.StatusCreated {
			if count != len(all) || cut != nil {
				t.Fatalf("%d lines of %q, %v, and %d are stored", count, sent, cut, len(all))
			}
		}
	})
}

func hasID(msgs []queue.Message, id string) bool {
	for i := range msgs {
		if msgs[i].ID.String() == id {
			return true
		}
	}
	return false
}

// sameAgain publishes a message again, as the line in which this API returns it.
func sameAgain(t *testing.T, m *queue.Message) {
	t.Helper()
	rec := storage.Record{ID: m.ID[:], Payload: m.Payload}
	for k, v := range m.Headers {
		rec.Headers = append(rec.Headers, storage.Header{Key: k, Value: v})
	}
	var line bytes.Buffer
	w := bufio.NewWriter(&line)
	if err := recordjson.Write(w, &rec); err != nil {
		t.Fatal(err)
	}
	w.Flush()
	again := queue.Message{Headers: map[string]string{}}
	if err := messageLine(line.Bytes(), &again); err != nil || !bytes.Equal(again.Payload, m.Payload) || !maps.Equal(again.Headers, m.Headers) {
		t.Fatalf("%+v became %+v through %s: %v", m, again, line.Bytes(), err)
	}
}

// FuzzTokens: token files. No error quotes them, and an accepted file means the same when it is written again.
func FuzzTokens(f *testing.F) {
	_, line, err := NewToken("shop", []string{"publish", "read"}, []string{"orders", "audit.*"})
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{line, line + "\n" + line, "# nothing\n", "", "shop s3cret-s3cret-s3cret publish\n", strings.Replace(line, "read", "write", 1), strings.Replace(line, "orders", "[orders", 1),
		strings.Replace(line, "orders", "", 1), strings.ToUpper(line), line + " x", "\x00\xff" + line, strings.Repeat("x", 70_000)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		tokens, err := parseTokens(text)
		if err != nil {
			for _, field := range strings.Fields(string(text)) {
				if len(field) > len("orders,audit.*") && strings.Contains(err.Error(), field) {
					t.Fatalf("the error tells %q: %v", field, err)
				}
			}
			return
		}
		var lines strings.Builder
		for _, c := range tokens {
			var scopes []string
			for _, s := range c.scopes {
				scopes = append(scopes, string(s))
			}
			fmt.Fprintf(&lines, "%s %x %s %s\n", c.name, c.hash, strings.Join(scopes, ","), strings.Join(c.types, ","))
			if c.name == "" || len(c.scopes) == 0 || c.types != nil && len(c.types) == 0 {
				t.Fatalf("%+v", c)
			}
		}
		if again, err := parseTokens([]byte(lines.String())); err != nil || !reflect.DeepEqual(again, tokens) {
			t.Fatalf("%+v became %+v, %v", tokens, again, err)
		}
	})
}
