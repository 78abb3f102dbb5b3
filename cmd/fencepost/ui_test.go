package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"golang.org/x/crypto/bcrypt"
)

// uiWith checks flags of fencepost ui, without starting it.
func uiWith(t *testing.T, args ...string) error {
	t.Helper()
	var f uiFlags
	cmd := f.command()
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return f.check(cmd)
}

// usersFile returns a file with the user anna.
func usersFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("anna:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Without a password, other machines cannot read messages.
func TestOtherMachinesNeedAPassword(t *testing.T) {
	users := usersFile(t)
	for _, listen := range []string{"127.0.0.1:0", ":0", "localhost:9095", "[::1]:9095", "127.1.2.3:80"} {
		if err := uiWith(t, "--listen", listen); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
	for _, listen := range []string{"0.0.0.0:9095", "[::]:9095", "192.0.2.1:80", "db.example.com:80"} {
		if err := uiWith(t, "--listen", listen); cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), "--auth-file") {
			t.Errorf("%s: %v", listen, err)
		}
		for _, args := range [][]string{{"--auth-file", users}, {"--user-header", "X-Forwarded-User", "--proxy", "192.0.2.7"}} {
			if err := uiWith(t, append(args, "--listen", listen)...); err != nil {
				t.Errorf("%s %q: %v", listen, args, err)
			}
		}
	}
}

func TestFlagsOfTheUI(t *testing.T) {
	users := usersFile(t)
	for want, args := range map[string][]string{
		"--base-path":                 {"--base-path", "ops"},
		"as in /fencepost/types":      {"--base-path", "/types"},
		"the path of a page, /locks":  {"--base-path", "/locks/of/shop/"},
		"the path of a page, /readyz": {"--base-path", "/readyz"},
		"--base-path \"/a/":           {"--base-path", "/a/../b"},
		"cannot be combined":          {"--auth-file", "x", "--user-header", "X-User"},
		"requires --user-header":      {"--proxy", "192.0.2.1"},
		"neither an address":          {"--user-header", "X-User", "--proxy", "somewhere"},
		"name of a header":            {"--user-header", "X User"},
		"--auth-file":                 {"--auth-file", "no-such-file"},
		"--refresh":                   {"--refresh", "10ms"},
		"--count-up-to":               {"--count-up-to", "0"},
		"--writers requires":          {"--writers", "anna"},
		"not identified":              {"--writers", "anna", "--write"},
		"no such user":                {"--writers", "bob", "--write", "--auth-file", users},
		"--writers names no user":     {"--writers", "", "--write", "--auth-file", users},
		`"a.b:9095"`:                  {"--listen-host", "a.b:9095"},
		`"http://a.b/"`:               {"--listen-host", "http://a.b/"},
	} {
		if err := uiWith(t, args...); cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	for _, args := range [][]string{{"--base-path", "/ops/fencepost/"}, {"--write"}, {"--write", "--writers", "anna", "--auth-file", users}, {"--write", "--writers", "carl", "--user-header", "X-User"}} {
		if err := uiWith(t, args...); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("write: true\nwriters: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := runRoot(t, "ui", "--config", config, "--auth-file", users, "--store", "nowhere"); code != cli.ExitUsage || !strings.Contains(errs, "writers (--writers) names no user") {
		t.Errorf("nobody in a file: %d %s", code, errs)
	}
}

// It prints its address, answers there, and ends on a signal; a port in use is one clear error.
func TestUIRuns(t *testing.T) {
	t.Chdir(t.TempDir())
	b, err := fencepost.Open(t.Context(), "sqlite://fencepost.db")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var errs bytes.Buffer
	taken := root()
	taken.SetArgs([]string{"ui", "--url", "sqlite://fencepost.db", "--listen", l.Addr().String()})
	taken.SetErr(&errs)
	if code := cli.Run(t.Context(), taken); code != cli.ExitFailed || !strings.Contains(errs.String(), "the port is in use; choose another one") {
		t.Errorf("%d: %s", code, errs.String())
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := root()
	cmd.SetArgs([]string{"ui", "--url", "sqlite://fencepost.db", "--listen", "127.0.0.1:0", "--base-path", "/ops"})
	cmd.SetOut(in)
	ended := make(chan int, 1)
	go func() { ended <- cli.Run(ctx, cmd) }()
	line := make([]byte, 100)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(string(line[:n]))
	if !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/ops/$`).MatchString(address) {
		t.Fatalf("printed %q", address)
	}
	client := http.Client{Timeout: time.Minute}
	res, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	if res.Body.Close(); res.StatusCode != 200 || res.Request.URL.Path != "/ops/types" {
		t.Errorf("%s %s", res.Status, res.Request.URL)
	}
	cancel()
	if code := <-ended; code != cli.ExitOK {
		t.Errorf("it ended with %d", code)
	}
}
