package http_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// publishScript runs publish.sh with the given lines. Its pauses take no time.
func publishScript(t *testing.T, url, lines string) (out string, err error) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	if _, err := os.ReadFile("publish.sh"); err != nil { // so that go test's cache knows that the result depends on this file
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sleep"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "publish.sh", url, "orders", "import-1")
	cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "TMPDIR="+dir)
	cmd.Stdin = strings.NewReader(lines)
	b, err := cmd.CombinedOutput()
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp*")); left != nil {
		t.Errorf("it left %q", left)
	}
	return string(b), err
}

// limited stores at most 3 lines of a request, and answers every other request with 503.
type limited struct {
	stored   []string // number of the line, and the line
	requests int
}

func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	skip, err := strconv.Atoi(r.Header.Get("Fencepost-Skip-Lines"))
	var answer strings.Builder
	status, full := http.StatusCreated, problem(429, "backlog_full", 2).body
	in, n := bufio.NewScanner(r.Body), 0
	for room := 3; in.Scan(); {
		switch n++; {
		case n <= skip:
		case room == 0:
			status = http.StatusTooManyRequests
			fmt.Fprintf(&answer, "{\"line\":%d,\"problem\":%s}\n", n, full)
		case l.requests%2 == 0:
			l.stored = append(l.stored, fmt.Sprint(n, " ", in.Text()))
			fmt.Fprintf(&answer, "{\"line\":%d,\"id\":\"i\"}\n", n)
			room--
		}
	}
	l.requests++
	if l.requests%2 == 0 {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, problem(503, "unavailable", 5).body)
		return
	}
	if err != nil || r.Header.Get("Idempotency-Key") != "import-1" {
		status = http.StatusBadRequest
	}
	w.WriteHeader(status)
	fmt.Fprint(w, answer.String(), `{"complete":true}`, "\n")
}

// An import that meets a full backlog continues behind the stored lines, and stores each of them once.
func TestScriptContinues(t *testing.T) {
	t.Parallel()
	l := &limited{}
	s := httptest.NewServer(l)
	defer s.Close()
	out, err := publishScript(t, s.URL, "a\nb\nc\nd\ne\nf\ng\n")
	if err != nil || !strings.HasSuffix(out, "{\"line\":7,\"id\":\"i\"}\n{\"complete\":true}\n") {
		t.Errorf("%v: %s", err, out)
	}
	if want := []string{"1 a", "2 b", "3 c", "4 d", "5 e", "6 f", "7 g"}; !slices.Equal(l.stored, want) {
		t.Errorf("%q are stored", l.stored)
	}
}

// A URL that is none is no reason for another attempt.
func TestScriptWithoutURL(t *testing.T) {
	t.Parallel()
	if out, err := publishScript(t, "http://", "1\n"); err == nil || strings.Count(out, "curl:") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// It ends at once if another attempt would not help, and after a number of attempts that store nothing.
func TestScriptGivesUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		answer   answer
		requests int64
	}{
		{"refused", answer{403, "application/problem+json", `{"code":"forbidden","remedy":"r"}`}, 1},
		{"a bad line", answer{422, "application/x-ndjson", `{"line":1,"problem":{"code":"invalid","remedy":"r"}}` + "\n"}, 1},
		{"full", problem(429, "backlog_full", 2), 9},
		{"a gateway", gateway, 9},
		{"no answer", lost, 9},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url, requests := server(t, test.answer)
			if out, err := publishScript(t, url, "1\n"); err == nil || requests.Load() != test.requests || !strings.Contains(out, strings.TrimSpace(test.answer.body)) {
				t.Errorf("%v after %d requests: %s", err, requests.Load(), out)
			}
		})
	}
}
