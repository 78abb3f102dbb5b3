// Package http_test runs fencepost.mjs against servers with the responses of a test. Package integration runs it against fencepost serve.
package http_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// node runs a script with the url of a server, and returns its output. The script's clock is virtual: it advances only when the script sleeps,
// and sleeping takes no real time.
func node(t *testing.T, url, script string) string {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("there is no node")
	}
	if _, err := os.ReadFile("fencepost.mjs"); err != nil { // so that go test's cache knows that the result depends on this file
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--input-type=module", "--eval", `
		import { syncBuiltinESMExports } from "node:module";
		import timers from "node:timers/promises";
		import { Fencepost } from "./fencepost.mjs";
		let now = 0;
		Date.now = () => now;
		timers.setTimeout = async (ms) => { now += ms };
		syncBuiltinESMExports();
		const url = process.argv[1];
		const outcome = (error) => error.code ?? error.name;`+script, url)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// An answer is a status, a media type and a body. The zero answer closes the connection instead.
type answer struct {
	status      int
	media, body string
}

func problem(status int, code string, retry int) answer {
	return answer{status, "application/problem+json", fmt.Sprintf(`{"status":%d,"code":%q,"detail":"d","remedy":"r","retry_after_seconds":%d}`, status, code, retry)}
}

var (
	stored  = answer{http.StatusCreated, "application/json", `{"id":"i"}`}
	lost    = answer{}
	gateway = answer{http.StatusBadGateway, "application/json", `{"message":"no upstream"}`}
)

// server gives the answers in turn, and then repeats the last one.
func server(t *testing.T, answers ...answer) (url string, requests *atomic.Int64) {
	requests = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a := answers[min(int(requests.Add(1)), len(answers))-1]
		if a == lost {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", a.media)
		w.WriteHeader(a.status)
		fmt.Fprint(w, a.body)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

// A message is not reported as unstored if an earlier attempt may have stored it, and only fencepost serve can say that it is not stored.
func TestOutcome(t *testing.T) {
	for _, test := range []struct {
		name    string
		want    string
		answers []answer
	}{
		{"stored", "i", []answer{stored}},
		{"stored later", "i", []answer{lost, problem(504, "unknown_outcome", 1), problem(429, "backlog_full", 1), stored}},
		{"refused", "paused", []answer{problem(409, "paused", 60)}},
		{"unavailable, then refused", "paused", []answer{problem(503, "unavailable", 1), problem(409, "paused", 60)}},
		{"unavailable for too long", "unavailable", []answer{problem(503, "unavailable", 3600)}},
		{"no answer, then refused", "unknown_outcome", []answer{lost, problem(409, "paused", 60)}},
		{"unknown, then refused", "unknown_outcome", []answer{problem(504, "unknown_outcome", 1), problem(401, "unauthorized", 0)}},
		{"unknown, then unavailable for too long", "unknown_outcome", []answer{problem(504, "unknown_outcome", 1), problem(503, "unavailable", 3600)}},
		{"no answer for too long", "unknown_outcome", []answer{problem(503, "unavailable", 1), lost}},
		{"a gateway", "i", []answer{gateway, {502, "text/html", "<p>"}, {500, "application/problem+json", `{"title":"of a gateway"}`}, stored}},
		{"a gateway, then refused", "unknown_outcome", []answer{gateway, problem(409, "paused", 60)}},
		{"refused by a gateway", "refused", []answer{{413, "text/html", "<h1>"}}},
		{"no answer, then refused by a gateway", "unknown_outcome", []answer{lost, {431, "text/plain", "too large"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url, requests := server(t, test.answers...)
			if got := node(t, url, `console.log(await new Fencepost(url).publish("orders", "x").catch(outcome));`); got != test.want || int(requests.Load()) < len(test.answers) {
				t.Errorf("%s after %d requests, want %s after %d", got, requests.Load(), test.want, len(test.answers))
			}
		})
	}
}

// A tail reconnects after an error response of a gateway, and ends after one of fencepost serve.
func TestTailBehindAGateway(t *testing.T) {
	t.Parallel()
	url, _ := server(t, gateway, answer{200, "text/event-stream", "id: 0\ndata: {\"index\":0,\"payload\":\"x\"}\n\n"}, gateway, problem(410, "removed", 0))
	got := node(t, url, `
		try {
			for await (const message of new Fencepost(url).tail("orders")) console.log(message.index, message.payload);
		} catch (error) { console.log(outcome(error)); }`)
	if got != "0 x\nremoved" {
		t.Errorf("it printed %q", got)
	}
}

// A tail arrives in pieces of any size. The time that a large message takes grows with its size, not with the square: this one would take many minutes.
func TestTailInPieces(t *testing.T) {
	const large = 8 << 20
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, b := range []byte("retry: 1\n\n:\n\nid: 0\ndata: {\"index\":0,\"payload\":\"\u00fc: \"}\n\nevent: other\n\n") {
			w.Write([]byte{b})
			http.NewResponseController(w).Flush()
		}
		fmt.Fprintf(w, "id: 1\ndata: {\"index\":1,\"payload\":\"%s\"}\n\n", strings.Repeat(`\u0001`, large))
	}))
	t.Cleanup(s.Close)
	got := node(t, s.URL, `
		for await (const { index, payload } of new Fencepost(url).tail("orders")) {
			console.log(index, payload.length < 9 ? payload : payload.length);
			if (index === 1) break;
		}`)
	if want := fmt.Sprintf("0 \u00fc: \n1 %d", large); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Headers and keys are sent as UTF-8.
func TestHeadersAreUTF8(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, stored.body)
	}))
	defer s.Close()
	if out := node(t, s.URL, `
		const fencepost = new Fencepost(url + "/", { token: "fpt_x\n" });
		console.log(await fencepost.publish("orders", "x", { key: "größe-1", headers: { city: "Zürich 東京", n: "7", none: "" }, delay: "1s" }));`); out != "i" {
		t.Fatal(out)
	}
	h := <-got
	for name, want := range map[string]string{
		"Authorization": "Bearer fpt_x", "Content-Type": "application/octet-stream", "Idempotency-Key": "größe-1", "Fencepost-Delay": "1s",
		"Fencepost-Header-City": "Zürich 東京", "Fencepost-Header-N": "7", "Fencepost-Header-None": "",
	} {
		if h.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, h.Get(name), want)
		}
	}
}

// Every kind of payload is stored as it is, also if its buffer changes while the message is sent again.
func TestPayloads(t *testing.T) {
	t.Parallel()
	got := make(chan string, 20)
	attempts := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if attempts++; attempts%2 == 1 || err != nil {
			panic(http.ErrAbortHandler)
		}
		got <- string(body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, stored.body)
	}))
	defer s.Close()
	node(t, s.URL, `
		const fencepost = new Fencepost(url);
		const bytes = Uint8Array.of(0, 255, 65, 66);
		for (const payload of ["", "größe 🦊", Buffer.from("buffer"), bytes.subarray(1, 3), bytes.buffer]) await fencepost.publish("orders", payload);
		const published = fencepost.publish("orders", bytes);
		bytes.fill(1);
		await published;`)
	for _, want := range []string{"", "größe 🦊", "buffer", "\xffA", "\x00\xffAB", "\x00\xffAB"} {
		if body := <-got; body != want {
			t.Errorf("%q was stored, want %q", body, want)
		}
	}
}

// Input that cannot be sent throws at once, not after ten minutes; and so does input of a wrong kind, which JavaScript would convert to some text.
func TestBadInputThrowsAtOnce(t *testing.T) {
	t.Parallel()
	url, requests := server(t, stored)
	tries := []string{
		`new Fencepost("127.0.0.1")`,
		`new Fencepost("localhost:9096")`,
		`new Fencepost("http://user:s3cret@127.0.0.1")`,
		`new Fencepost("http://user:s3cret@127.0.0.1:port")`,
		`new Fencepost("user:s3cret@127.0.0.1")`,
		`new Fencepost(undefined)`,
		`new Fencepost(url, "token")`,
		`new Fencepost(url, { Token: "fpt_x" })`,
	}
	for _, option := range []string{`token: "fpt_\nx"`, `token: "fpt_\x01x"`, `token: null`, `token: 7`, `repeatFor: NaN`, `repeatFor: "600"`, `repeatFor: -1`, `repeatFor: null`} {
		tries = append(tries, `new Fencepost(url, { `+option+` })`)
	}
	for _, payload := range []string{`undefined`, `null`, `7`, `true`, `{ id: 1 }`, `[1, 2]`, `new String("x")`, `new Uint16Array(2)`, `new Blob(["x"])`, `"\ud800"`} {
		tries = append(tries, `new Fencepost(url).publish("orders", `+payload+`)`)
	}
	for _, typ := range []string{`undefined`, `null`, `["orders"]`, `""`, `"Orders"`, `".."`, `"x/../orders"`, `"orders/messages?"`, `"x".repeat(65)`} {
		tries = append(tries, `new Fencepost(url).publish(`+typ+`, "x")`, `new Fencepost(url).tail(`+typ+`).next()`)
	}
	for _, options := range []string{
		`null`, `"key"`, `{ Key: "x" }`, `{ idempotencyKey: "x" }`,
		`{ key: null }`, `{ key: "" }`, `{ key: 7 }`, `{ key: {} }`, `{ key: "x\0" }`, `{ key: " x" }`, `{ key: "x\n" }`, `{ key: "\ud800" }`,
		`{ headers: null }`, `{ headers: "a" }`, `{ headers: 7 }`, `{ headers: [["a", "x"]] }`, `{ headers: new Map([["a", "x"]]) }`, `{ headers: new Headers({ a: "x" }) }`,
		`{ headers: { "a name": "x" } }`, `{ headers: { "": "x" } }`, `{ headers: { a: "x", A: "y" } }`, `{ headers: { "Idempotency-Key": "x" } }`,
		`{ headers: { a: undefined } }`, `{ headers: { a: null } }`, `{ headers: { a: 7 } }`, `{ headers: { a: ["x"] } }`,
		`{ headers: { a: "x\ny" } }`, `{ headers: { a: "x\x01" } }`, `{ headers: { a: "x " } }`, `{ headers: { a: "\udfff" } }`,
		`{ delay: null }`, `{ delay: 0 }`, `{ delay: 90 }`, `{ delay: "90" }`, `{ delay: "soon" }`, `{ delay: "-1s" }`,
	} {
		tries = append(tries, `new Fencepost(url).publish("orders", "x", `+options+`)`)
	}
	for _, options := range []string{`null`, `{ From: 1 }`, `{ from: null }`, `{ from: -1 }`, `{ from: 1.5 }`, `{ from: NaN }`, `{ from: 2 ** 53 }`, `{ from: "" }`, `{ from: [1] }`, `{ signal: null }`, `{ signal: {} }`} {
		tries = append(tries, `new Fencepost(url).tail("orders", `+options+`).next()`)
	}
	var script strings.Builder
	for _, try := range tries {
		fmt.Fprintf(&script, `
			try { await %s; console.log("no error"); } catch (error) { console.log(outcome(error), now, /s3cret/.test(error.message + error.stack) ? "quotes a password" : ""); }`, try)
	}
	for i, got := range strings.Split(node(t, url, script.String()), "\n") {
		if got = strings.TrimSpace(got); got != "TypeError 0" {
			t.Errorf("%s: %s", tries[i], got)
		}
	}
	if requests.Load() != 0 {
		t.Errorf("%d requests", requests.Load())
	}
}
