package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serve starts fencepost serve and returns its address.
func serve(t *testing.T, b backend, args ...string) (p *process, url string) {
	t.Helper()
	if !slices.Contains(args, "--store") {
		args = append(args, "--dir", b.dir)
	}
	p = start(t, "serve", "fencepost", append([]string{"serve", "--url", b.url, "--listen", "127.0.0.1:0"}, args...)...)
	eventually(t, time.Minute, "it prints its address", func() bool {
		url = strings.TrimSuffix(strings.TrimSpace(p.stdout.String()), "/")
		return strings.HasPrefix(url, "http")
	})
	return p, url
}

// client runs a program of clients/http.
func client(t *testing.T, stdin string, token string, program string, args ...string) result {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("there is no %s", program)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "../clients/http"
	cmd.Env = append(os.Environ(), "FENCEPOST_TOKEN="+token)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// drain runs a worker until nothing is pending.
func drainAll(t *testing.T, b backend) {
	t.Helper()
	mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--all-types", "--until-empty")
}

// inFile verifies a type's file and returns its payloads.
func inFile(t *testing.T, b backend, typ string) string {
	t.Helper()
	file := filepath.Join(b.dir, typ+".fpl")
	mustRun(t, nil, "fencepost", "verify", file)
	return mustRun(t, nil, "fencepost", "cat", file).stdout
}

// TestTokenIsNoArgument: every user of a machine can read the arguments of its programs, so publish.sh passes the token to curl in another way.
func TestTokenIsNoArgument(t *testing.T) {
	dir := t.TempDir()
	fake := "#!/bin/sh\nprintf '%s\\n' \"$@\"\nfor a; do case $a in @/dev/*) cat \"${a#@}\" >&2;; esac; done\n"
	if err := os.WriteFile(filepath.Join(dir, "curl"), []byte(fake), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	r := client(t, "1\n", "fpt_s3cret", "sh", "publish.sh", "http://127.0.0.1:9", "orders", "k")
	if r.code != 0 || strings.Contains(r.stdout, "s3cret") || !strings.Contains(r.stdout, "/v1/types/orders/messages") || r.stderr != "Authorization: Bearer fpt_s3cret\n" {
		t.Error(r)
	}
	if r := client(t, "1\n", "", "sh", "publish.sh", "http://127.0.0.1:9", "orders", "k"); r.code != 0 || strings.Contains(r.stdout+r.stderr, "/dev/fd") {
		t.Errorf("without a token: %v", r)
	}
}

// Messages published with curl are in the file once, whatever is repeated, and curl can read them.
func TestPublishWithCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	onEachBackend(t, func(t *testing.T, b backend) {
		tokens := filepath.Join(t.TempDir(), "tokens")
		made := mustRun(t, nil, "fencepost", "serve", "token", "shop", "--allow", "publish,read", "--types", "orders")
		if err := os.WriteFile(tokens, []byte(made.stdout), 0o600); err != nil {
			t.Fatal(err)
		}
		_, token, _ := strings.Cut(strings.TrimSpace(made.stderr), "shown only once: ")
		p, url := serve(t, b, "--token-file", tokens)
		var lines strings.Builder
		for i := range 2500 {
			fmt.Fprintf(&lines, "{\"order\":%d}\n", i)
		}
		for range 2 {
			r := client(t, lines.String(), token, "sh", "publish.sh", url, "orders", "import-1")
			if r.code != 0 || !strings.HasSuffix(r.stdout, "{\"stored\":2500,\"unknown\":0,\"rejected\":0,\"complete\":true}\n") {
				t.Fatal(r)
			}
		}
		if r := client(t, "1\n", "", "sh", "publish.sh", url, "orders", "k"); r.code == 0 || !strings.Contains(r.stdout, "unauthorized") {
			t.Errorf("without a token: %v", r)
		}
		if r := client(t, "1\n", token, "sh", "publish.sh", url, "audit", "k"); r.code == 0 || !strings.Contains(r.stdout, "forbidden") {
			t.Errorf("another type: %v", r)
		}
		drainAll(t, b)
		if got := inFile(t, b, "orders"); got != lines.String() {
			t.Errorf("%d bytes are in the file, want %d", len(got), lines.Len())
		}
		auth := "Authorization: Bearer " + token
		r := client(t, "", "", "curl", "-sS", "-H", auth, "-H", "Accept: application/x-ndjson", url+"/v1/types/orders/messages?from=2498&limit=1")
		if want := mustRun(t, nil, "fencepost", "cat", "--format", "json", "--from", "2498", "-n", "1", filepath.Join(b.dir, "orders.fpl")).stdout; r.stdout != want {
			t.Errorf("%v, cat prints %s", r, want)
		}
		for seconds := 1; ; seconds *= 2 { // a tail does not end
			r = client(t, "", "", "curl", "-sSN", "--max-time", strconv.Itoa(seconds), "-H", auth, "-H", "Last-Event-ID: 2497", url+"/v1/types/orders/tail")
			if strings.Contains(r.stdout, "id: 2497") {
				t.Error(r)
			}
			if strings.Contains(r.stdout, "id: 2498\ndata: {") && strings.Contains(r.stdout, "id: 2499\ndata: {") {
				break
			}
			if seconds > 60 {
				t.Fatal(r)
			}
		}
		p.signal(t, syscall.SIGTERM)
		if code := p.wait(t, time.Minute); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if log := p.stderr.String(); strings.Contains(log, token) || !strings.Contains(log, `"client":"shop"`) {
			t.Errorf("log:\n%s", tail(log, 20))
		}
	})
}

// A server that is killed while it receives messages loses no confirmed message; the same request to another server adds the missing ones.
func TestKilledServerLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	p, url := serve(t, b)
	const n = 15_000
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "%d\n", i)
	}
	publish := func(url string) (*http.Response, error) {
		r, err := http.NewRequest("POST", url+"/v1/types/orders/messages", strings.NewReader(lines.String()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-ndjson")
		r.Header.Set("Idempotency-Key", "job")
		return http.DefaultClient.Do(r)
	}
	failed := make(chan error, 1)
	go func() {
		res, err := publish(url)
		if err == nil {
			res.Body.Close()
		}
		failed <- err
	}()
	eventually(t, time.Minute, "some are stored", func() bool {
		return strings.Contains(run(t, nil, "fencepost", "types", "ls", "--url", b.url).stdout, "orders ")
	})
	p.signal(t, syscall.SIGKILL)
	p.wait(t, time.Minute)
	if err := <-failed; err == nil {
		t.Log("it was killed too late: all were stored before")
	}
	_, url = serve(t, b)
	res, err := publish(url)
	if err != nil {
		t.Fatal(err)
	}
	if res.Body.Close(); res.StatusCode != http.StatusCreated {
		t.Fatal(res.Status)
	}
	drainAll(t, b)
	if got := inFile(t, b, "orders"); got != lines.String() {
		t.Errorf("%d lines are in the file, want %d", strings.Count(got, "\n"), n)
	}
}

// The JavaScript example publishes and reads its messages; a second run adds nothing.
func TestPublishWithNode(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("there is no node")
	}
	b := embedded(t)
	_, url := serve(t, b)
	worker := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--all-types")
	for range 2 {
		r := client(t, "", "", "node", "example.mjs", url)
		if want := "0 {\"id\":1,\"item\":\"chair\"}\n1 {\"id\":2,\"item\":\"table\"}\n2 {\"id\":3,\"item\":\"lamp\"}\n"; r.code != 0 || r.stdout != want {
			t.Fatal(r)
		}
	}
	worker.signal(t, syscall.SIGTERM)
	worker.wait(t, time.Minute)
	drainAll(t, b)
	if got := inFile(t, b, "node-orders"); strings.Count(got, "\n") != 3 {
		t.Errorf("in the file: %s", got)
	}
}

// Files in a store are read and followed like those in a directory.
func TestServeReadsAStore(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	shared := "shared:" + t.TempDir()
	_, url := serve(t, b, "--store", shared)
	drain := func() {
		mustRun(t, nil, "worker", "--url", b.url, "--store", shared, "--all-types", "--until-empty")
	}
	mustRun(t, strings.NewReader("a\nb\n"), "producer", "publish", "--url", b.url, "--type", "orders")
	drain()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	get := func(path string) *http.Response {
		r, err := http.NewRequestWithContext(ctx, "GET", url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	body, err := io.ReadAll(get("/v1/types/orders/messages").Body)
	if text := string(body); err != nil || !strings.Contains(text, `"payload":"a"`) || !strings.HasSuffix(text, `"next":2,"end":true}`+"\n") {
		t.Errorf("%s %v", text, err)
	}
	events := bufio.NewScanner(get("/v1/types/orders/tail?from=1").Body)
	next := func(index string) {
		t.Helper()
		for events.Scan() {
			if events.Text() == "id: "+index {
				return
			}
		}
		t.Fatalf("no event %s: %v", index, events.Err())
	}
	next("1")
	mustRun(t, strings.NewReader("c\n"), "producer", "publish", "--url", b.url, "--type", "orders")
	drain()
	next("2")
}
