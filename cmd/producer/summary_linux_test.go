package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/ptytest"
)

// full is a disk without free space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// If the outcome cannot be written, the error says that the messages are stored.
func TestOutcomeThatCannotBeWritten(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"-m a -m b":           {cli.ExitPartial, "2 messages are stored"},
		"-m a -m b -o json":   {cli.ExitPartial, "2 messages are stored"},
		"-m a -m b --dry-run": {cli.ExitFailed, "no message was stored"},
	} {
		var errs bytes.Buffer
		cmd := root()
		cmd.SetArgs(append([]string{"publish", "--type", "t", "--url", url}, strings.Fields(args)...))
		cmd.SetOut(full{})
		cmd.SetErr(&errs)
		if code := cli.Run(t.Context(), cmd); code != want.code || !strings.Contains(errs.String(), want.says) || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%s: exit code %d: %s", args, code, errs.String())
		}
	}
}

// The bar of a publish that ends early does not jump to its end.
func TestBarOfAPublishThatEndsEarly(t *testing.T) {
	for input, want := range map[string]bool{"1\n2\n": true, "1\n" + strings.Repeat("x", 1000) + "\n": false} {
		file := filepath.Join(t.TempDir(), "in.ndjson")
		if err := os.WriteFile(file, []byte(input), 0o600); err != nil {
			t.Fatal(err)
		}
		shown, errs := ptytest.Open(t)
		cmd := root()
		cmd.SetArgs([]string{"publish", "--dry-run", "--type", "t", "--format", "ndjson", file})
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(errs)
		code := cli.Run(t.Context(), cmd)
		if got := ptytest.Shown(t, shown, errs); strings.Contains(got, "100%") != want || (code == 0) != want {
			t.Errorf("%.9q: exit code %d, it shows %q", input, code, got)
		}
	}
}
