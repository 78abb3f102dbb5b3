package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// sh is absolute, because one test removes PATH.
func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestRunReturnsTheCodeOfTheCommand(t *testing.T) {
	t.Setenv(mongotest.EnvURI, "mongodb://given")
	for _, test := range []struct {
		name string
		args []string
		want int
	}{
		{"success", sh("exit 0"), 0},
		{"failure", sh("exit 7"), 7},
		{"ended by a signal", sh("kill -KILL $$"), 128 + 9},
		{"a server that was given", sh(`[ "$` + mongotest.EnvURI + `" = mongodb://given ]`), 0},
		{"no such command", []string{"/no/such/command"}, 127},
	} {
		if code, err := run(test.args); code != test.want {
			t.Errorf("%s: got code %d (%v), want %d", test.name, code, err, test.want)
		}
	}
}

func TestRunForwardsSignals(t *testing.T) {
	t.Setenv(mongotest.EnvURI, "mongodb://given")
	// The command signals this process, is told to end, and ends in its own way. The loop bounds a
	// failure to 10 s.
	script := `trap "exit 9" TERM; kill -TERM ` + strconv.Itoa(os.Getpid()) + `; for i in $(seq 200); do sleep 0.05; done`
	if code, err := run(sh(script)); code != 9 {
		t.Errorf("got code %d (%v), want 9, the answer to the signal", code, err)
	}
}

func TestRunStartsAServerAndEndsIt(t *testing.T) {
	mongotest.NewServer(t) // skips where none is available: run would build one, which this test does not justify
	t.Setenv(mongotest.EnvURI, "")
	file := filepath.Join(t.TempDir(), "uri")

	code, err := run(sh(`printf %s "$` + mongotest.EnvURI + `" >'` + file + `'; exit 5`))
	if code != 5 {
		t.Errorf("got code %d (%v), want 5, the command's", code, err)
	}
	uri, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	addr, ok := strings.CutPrefix(string(uri), "mongodb://")
	if !ok {
		t.Fatalf("the command was given the server %q, want a MongoDB URI", uri)
	}
	addr, _, _ = strings.Cut(addr, "/")
	if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
		conn.Close()
		t.Errorf("the server at %s is still there after the command", addr)
	}
}

func TestRunWithoutAServer(t *testing.T) {
	t.Setenv(mongotest.EnvURI, "")
	t.Setenv("DOCKER_HOST", "unix:///no/such/socket")
	t.Setenv("PATH", t.TempDir()) // no bash, and so no chroot, for any user

	t.Setenv(mongotest.EnvRequire, "")
	if code, err := run(sh(`[ -n "$` + mongotest.EnvUnavailable + `" ] && exit 6`)); code != 6 {
		t.Errorf("not required: got code %d (%v), want 6, the code of a command that was told there is none", code, err)
	}
	t.Setenv(mongotest.EnvRequire, "1")
	if code, err := run(sh("exit 6")); code != 1 || err == nil {
		t.Errorf("required: got code %d (%v), want 1 and an error", code, err)
	}
}
