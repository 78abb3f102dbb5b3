//go:build unix

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

// The input of --resume and the state file must be regular files. With a pipe, the producer would block silently.
func TestResumeNeedsFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, file, state := filepath.Join(dir, "pipe"), filepath.Join(dir, "file"), filepath.Join(dir, "state")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][2]string{{pipe, file}, {"/dev/null", file}, {dir, file}, {state, pipe}, {state, "/dev/null"}} {
		var stderr bytes.Buffer
		cmd := root()
		cmd.SetErr(&stderr)
		cmd.SetArgs([]string{"publish", "--type", "t", "--url", "sqlite://" + filepath.Join(dir, "q.db"), "--resume", args[0], args[1]})
		ended := make(chan int, 1)
		go func() { ended <- cli.Run(t.Context(), cmd) }()
		select {
		case code := <-ended:
			if wrong := strings.Replace(strings.Join(args[:], " "), file, "", 1); code != cli.ExitUsage || !strings.Contains(stderr.String(), "not a regular file") ||
				!strings.Contains(stderr.String(), strings.TrimSpace(strings.Replace(wrong, state, "", 1))) {
				t.Errorf("--resume %s %s: exit code %d, %s", args[0], args[1], code, stderr.String())
			}
		case <-time.After(10 * time.Second):
			t.Errorf("--resume %s %s: it waits forever", args[0], args[1])
		}
	}
}
