//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongowire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// objectLink returns an object store that keeps the first value of each name, the link to it, and how many requests it has executed.
func objectLink(t *testing.T) (l *link, carried *atomic.Int64) {
	t.Helper()
	carried = new(atomic.Int64)
	values := map[string]string{}
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		defer carried.Add(1)
		if r.Method == http.MethodPut {
			body, _ := io.ReadAll(r.Body)
			if _, there := values[r.URL.Path]; there {
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			values[r.URL.Path] = string(body)
			return
		}
		_, _ = io.WriteString(w, values[r.URL.Path])
	}))
	t.Cleanup(server.Close)
	l, err := newLink(loopback, strings.TrimPrefix(server.URL, "http://"), objectProtocol{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l, carried
}

// ask makes a request and returns the answer's status, 0 for none, and its body.
func ask(t *testing.T, l *link, method, name, body string) (status int, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+l.addr()+name, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Expect", "100-continue")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}}
	response, err := client.Do(r)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

func TestLinkToObjects(t *testing.T) {
	l, carried := objectLink(t)
	expect := func(what string, status, wantStatus int, answer, want string) {
		t.Helper()
		if status != wantStatus || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %q; want %d %q", what, status, answer, wantStatus, want)
		}
	}
	large := strings.Repeat("0123456789", 500_000)
	status, answer := ask(t, l, http.MethodPut, "/a", large)
	expect("create", status, 200, answer, "")
	status, answer = ask(t, l, http.MethodGet, "/a", "")
	expect("read", status, 200, answer, large)
	status, answer = ask(t, l, http.MethodHead, "/a", "")
	expect("size", status, 200, answer, "")

	l.set(func(l *link) { l.spoils = 1 })
	status, answer = ask(t, l, http.MethodGet, "/a", "")
	expect("a read is no create", status, 200, answer, large)
	status, answer = ask(t, l, http.MethodPut, "/b", "b")
	expect("carried out and answered with an error", status, 500, answer, "InternalError")
	status, answer = ask(t, l, http.MethodGet, "/b", "")
	expect("what was carried out", status, 200, answer, "b")

	before := carried.Load()
	for _, refusal := range []struct {
		trouble trouble
		method  string
		status  int
		answer  string
	}{
		{revoked, http.MethodGet, 403, "AccessDenied"}, {revoked, http.MethodHead, 403, ""}, {revoked, http.MethodPut, 403, "AccessDenied"},
		{full, http.MethodPut, 507, "XMinioStorageFull"}, {unavailable, http.MethodGet, 500, "InternalError"},
	} {
		l.set(func(l *link) { l.deny = refusal.trouble })
		body := ""
		if refusal.method == http.MethodPut {
			body = "c"
		}
		status, answer = ask(t, l, refusal.method, "/c", body)
		expect(refusal.method+": "+refusal.trouble.String(), status, refusal.status, answer, refusal.answer)
	}
	if n := carried.Load(); n != before {
		t.Errorf("%d requests were carried out that were refused", n-before)
	}
	l.set(func(l *link) { l.deny = full })
	status, answer = ask(t, l, http.MethodGet, "/c", "")
	expect("a full store is read", status, 200, answer, "")

	// Two creates are given up and arrive later; meanwhile another client takes the name of one of them.
	l.heal()
	l.set(func(l *link) { l.creates, l.late = 2, time.Second })
	for _, name := range []string{"/d", "/e"} {
		if status, _ = ask(t, l, http.MethodPut, name, "late"); status != 0 {
			t.Errorf("%s: %d; want no answer", name, status)
		}
	}
	if !l.detained() {
		t.Error("no create is under way")
	}
	status, answer = ask(t, l, http.MethodPut, "/d", "early")
	expect("an early create", status, 200, answer, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		l.mu.Lock()
		got := l.ended
		l.mu.Unlock()
		if got == (lateCreates{Created: 1, Taken: 1}) {
			break
		}
		wait(ctx, 10*time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Errorf("late creates: %+v", l.ended)
	}
	status, answer = ask(t, l, http.MethodGet, "/d", "")
	expect("what was early", status, 200, answer, "early")
	status, answer = ask(t, l, http.MethodGet, "/e", "")
	expect("what was late", status, 200, answer, "late")
}

// wireMessage makes a message of MongoDB's protocol.
func wireMessage(t *testing.T, number uint32, command bson.D) []byte {
	t.Helper()
	body, err := bson.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	m := binary.LittleEndian.AppendUint32(nil, uint32(21+len(body)))
	m = binary.LittleEndian.AppendUint32(m, number)
	m = append(m, 0, 0, 0, 0)
	m = binary.LittleEndian.AppendUint32(m, mongowire.OpMsg)
	return append(append(m, 0, 0, 0, 0, 0), body...)
}

// On a connection to a database that answers every request with "ok", the link answers only requests about slots in its place.
func TestLinkToSlots(t *testing.T) {
	ln, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		for r := bufio.NewReader(c); err == nil; {
			if _, err = (wireProtocol{}).read(&wire{from: [2]*bufio.Reader{r, nil}}, toServer); err == nil {
				_, err = c.Write(wireMessage(t, 1, bson.D{{Key: "ok", Value: 1.0}}))
			}
		}
	}()
	l, err := newLink(loopback, ln.Addr().String(), wireProtocol{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	c, err := net.Dial("tcp", l.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	from := bufio.NewReader(c)
	code := func(command bson.D) int32 {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err := c.Write(wireMessage(t, 77, command))
		m, rerr := (wireProtocol{}).read(&wire{from: [2]*bufio.Reader{nil, from}}, toClient)
		if err = errors.Join(err, rerr); err != nil {
			t.Fatal(err)
		}
		var answer struct {
			OK   float64 `bson:"ok"`
			Code int32   `bson:"code"`
		}
		if err := bson.Unmarshal(m[21:], &answer); err != nil {
			t.Fatal(err)
		}
		if answer.OK == 0 && !bytes.Equal(m[8:12], []byte{77, 0, 0, 0}) {
			t.Errorf("%v is answered, and another request", command)
		}
		return answer.Code
	}
	insert := bson.D{{Key: "insert", Value: "slots"}, {Key: "$db", Value: "shop"}}
	find := bson.D{{Key: "find", Value: "slots"}, {Key: "$db", Value: "shop"}}
	others := bson.D{{Key: "insert", Value: "messages"}, {Key: "$db", Value: "shop"}}
	for _, tc := range []struct {
		trouble              trouble
		insert, find, others int32
	}{{none, 0, 0, 0}, {revoked, 13, 13, 0}, {full, 14031, 0, 0}, {unavailable, 11600, 11600, 0}} {
		l.set(func(l *link) { l.deny = tc.trouble })
		if i, f, o := code(insert), code(find), code(others); i != tc.insert || f != tc.find || o != tc.others {
			t.Errorf("%v: insert %d, find %d, another collection %d; want %d, %d, %d", tc.trouble, i, f, o, tc.insert, tc.find, tc.others)
		}
	}
	l.heal()
	l.set(func(l *link) { l.spoils = 1 })
	if f, o, i, again := code(find), code(others), code(insert), code(insert); f != 0 || o != 0 || i != 11600 || again != 0 {
		t.Errorf("one create is answered with an error: find %d, another collection %d, insert %d, again %d", f, o, i, again)
	}
}

func TestLateCreatesAreJudgedByTheirAnswers(t *testing.T) {
	taken := bson.D{{Key: "n", Value: 0}, {Key: "writeErrors", Value: bson.A{bson.D{{Key: "code", Value: 11000}, {Key: "errmsg", Value: "E11000 duplicate key"}}}}, {Key: "ok", Value: 1.0}}
	for name, tc := range map[string]struct {
		protocol
		answer      []byte
		done, taken bool
	}{
		"inserted": {wireProtocol{}, wireMessage(t, 1, bson.D{{Key: "n", Value: 1}, {Key: "ok", Value: 1.0}}), true, false},
		"E11000":   {wireProtocol{}, wireMessage(t, 1, taken), false, true},
		"an error": {wireProtocol{}, wireMessage(t, 1, bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: 91}}), false, false},
		"200":      {objectProtocol{}, []byte("HTTP/1.1 200 OK\r\n\r\n"), true, false},
		"412":      {objectProtocol{}, []byte("HTTP/1.1 412 Precondition Failed\r\n\r\n"), false, true},
		"a 503":    {objectProtocol{}, []byte("HTTP/1.1 503 Slow Down\r\n\r\n"), false, false},
	} {
		if done, taken := tc.isDone(tc.answer), tc.isTaken(tc.answer); done != tc.done || taken != tc.taken {
			t.Errorf("%s: done %v, taken %v", name, done, taken)
		}
	}
}
