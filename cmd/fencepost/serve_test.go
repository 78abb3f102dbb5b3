package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

// serveWith checks flags of fencepost serve, without starting it.
func serveWith(t *testing.T, args ...string) error {
	t.Helper()
	var f serveFlags
	cmd := f.command()
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return f.check(cmd)
}

// makeToken creates a token file with the command, and returns the token.
func makeToken(t *testing.T, file string, args ...string) string {
	t.Helper()
	code, line, errs := runRoot(t, append([]string{"serve", "token"}, args...)...)
	_, token, ok := strings.Cut(errs, "shown only once: ")
	if code != cli.ExitOK || !ok || strings.Contains(line, strings.TrimSpace(token)) {
		t.Fatalf("%d %q %q", code, line, errs)
	}
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(token)
}

// Without credentials, other machines can neither publish nor read.
func TestOtherMachinesNeedAToken(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	makeToken(t, tokens, "shop")
	for _, listen := range []string{"127.0.0.1:0", ":0", "localhost:9096", "[::1]:9096"} {
		if err := serveWith(t, "--listen", listen); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
	for _, listen := range []string{"0.0.0.0:9096", "[::]:9096", "192.0.2.1:80", "db.example.com:80"} {
		if err := serveWith(t, "--listen", listen); cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), "--token-file") {
			t.Errorf("%s: %v", listen, err)
		}
		if err := serveWith(t, "--listen", listen, "--token-file", tokens); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
}

func TestFlagsOfServe(t *testing.T) {
	for want, args := range map[string][]string{
		"--timeout 1s":               {"--timeout", "1s"},
		"--client-timeout":           {"--client-timeout", "10ms"},
		"--max-connections":          {"--max-connections", "0"},
		"--count-up-to":              {"--count-up-to", "0"},
		"--connect-timeout":          {"--connect-timeout", "0"},
		"go together":                {"--tls-cert", "x"},
		"needs TLS":                  {"--client-ca", "x"},
		"--token-file":               {"--token-file", "no-such-file"},
		"--tls-cert, --tls-key":      {"--tls-cert", "no-such-file", "--tls-key", "no-such-file"},
		"nowhere is not the address": {"--store", "nowhere"},
		`"a.b:9096"`:                 {"--listen-host", "a.b:9096"},
		`"http://a.b/"`:              {"--listen-host", "http://a.b/"},
	} {
		if err := serveWith(t, args...); cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	for _, args := range [][]string{{}, {"two words"}, {"x", "--allow", "write"}, {"x", "--types", "a["}, {"x", "--types", ""}} {
		if code, out, errs := runRoot(t, append([]string{"serve", "token"}, args...)...); code != cli.ExitUsage || out != "" {
			t.Errorf("%q: %d %s", args, code, errs)
		}
	}
}

// A token is shown only if its line was written. Its scopes and types may come from the environment.
func TestTokenWithItsLine(t *testing.T) {
	cmd, errs := root(), &bytes.Buffer{}
	cmd.SetArgs([]string{"serve", "token", "shop"})
	cmd.SetOut(full{})
	cmd.SetErr(errs)
	if code := cli.Run(t.Context(), cmd); code != cli.ExitFailed || strings.Contains(errs.String(), "fpt_") || !strings.Contains(errs.String(), "no space left") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	t.Setenv("FENCEPOST_ALLOW", "read")
	t.Setenv("FENCEPOST_TYPES", "orders,audit.*")
	if code, line, errs := runRoot(t, "serve", "token", "shop"); code != 0 || !strings.HasSuffix(line, " read orders,audit.*\n") {
		t.Errorf("exit code %d, %q, %s", code, line, errs)
	}
}

// full is a disk without free space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// It prints its address, answers there what a token allows, and ends on a signal, after finishing the requests in progress.
func TestServeRuns(t *testing.T) {
	t.Chdir(t.TempDir())
	token := makeToken(t, "tokens", "shop", "--types", "orders")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	var log bytes.Buffer
	cmd := root()
	cmd.SetArgs([]string{"serve", "--url", "sqlite://fencepost.db", "--listen", "127.0.0.1:0", "--token-file", "tokens"})
	cmd.SetOut(in)
	cmd.SetErr(&log)
	ended := make(chan int, 1)
	go func() { ended <- cli.Run(ctx, cmd) }()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/\n$`).MatchString(address) {
		t.Fatalf("printed %q, %v", address, err)
	}
	client := http.Client{Timeout: time.Minute}
	for path, want := range map[string]int{"orders": http.StatusCreated, "audit": http.StatusForbidden} {
		r, err := http.NewRequest("POST", strings.TrimSpace(address)+"v1/types/"+path+"/messages", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != want {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	client.CloseIdleConnections()
	cancel()
	if code := <-ended; code != cli.ExitOK || strings.Contains(log.String(), token) {
		t.Errorf("it ended with %d: %s", code, log.String())
	}
	if code, out, _ := runRoot(t, "types", "ls", "--url", "sqlite://fencepost.db", "-o", "json"); code != cli.ExitOK || !strings.Contains(out, `"pending": 1,`) {
		t.Errorf("%d %s", code, out)
	}
}

// While it waits for the database or the store, probes get an answer, so that it is not restarted, and other requests are refused.
func TestServeAnswersProbesWhileItWaits(t *testing.T) {
	const away = "mongodb://127.0.0.1:1/db?serverSelectionTimeoutMS=100"
	t.Run("database", func(t *testing.T) { serveWaits(t, "--url", away) })
	t.Run("store", func(t *testing.T) { serveWaits(t, "--url", database(t), "--store", away) })
}

func serveWaits(t *testing.T, args ...string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logs, in := io.Pipe()
	cmd := root()
	cmd.SetArgs(append([]string{"serve", "--listen", "127.0.0.1:0"}, args...))
	cmd.SetOut(io.Discard)
	cmd.SetErr(in)
	ended := make(chan int, 1)
	go func() {
		defer in.Close()
		ended <- cli.Run(ctx, cmd)
	}()
	lines := bufio.NewReader(logs)
	address := ""
	for waits := false; !waits; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var event struct{ Addr, Message string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		address, waits = cmp.Or(event.Addr, address), event.Message == "waiting for a usable server"
	}
	go io.Copy(io.Discard, lines)
	client := http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	for path, want := range map[string]string{"/livez": "200 ok\n", "/readyz": "503 waiting for a usable server at mongodb://127.0.0.1:1/db", "/v1/types": `503 {"title":"Service Unavailable","status":503,"code":"unavailable"`} {
		res, err := client.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if res.Body.Close(); err != nil || !strings.HasPrefix(fmt.Sprintf("%d %s", res.StatusCode, body), want) {
			t.Errorf("%s: %d %s, %v; want %s", path, res.StatusCode, body, err, want)
		}
	}
	cancel()
	if code := <-ended; code != cli.ExitStopped {
		t.Errorf("exit code %d", code)
	}
}

// A container sets FENCEPOST_LISTEN for its worker. A command that is run in it, too, says where its address is from.
func TestListenOfAnotherProgram(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := database(t)
	for _, listen := range []string{l.Addr().String(), "0.0.0.0:9090"} {
		for _, command := range []string{"serve", "ui"} {
			t.Setenv("FENCEPOST_LISTEN", listen)
			if code, _, errs := runRoot(t, command, "--url", url); code == cli.ExitOK || !strings.Contains(errs, "; the value is from environment variable FENCEPOST_LISTEN (--listen)\n") {
				t.Errorf("%s: exit code %d: %s", command, code, errs)
			}
			if code, _, errs := runRoot(t, command, "--url", url, "--listen", listen); code == cli.ExitOK || strings.Contains(errs, "FENCEPOST_LISTEN") {
				t.Errorf("%s --listen: exit code %d: %s", command, code, errs)
			}
		}
	}
}
