package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func runBench(args ...string) (code int, stdout, stderr string) {
	var o, e bytes.Buffer
	code = run(context.Background(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestBadInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "which suite?"},
		{[]string{"lok"}, exitUsage, `unknown suite "lok"; known: storage, lock, queue, stores, types`},
		{[]string{"storage", "--fast"}, exitUsage, "-fast"},
		{[]string{"storage", "--rounds", "0"}, exitUsage, "--rounds"},
		{[]string{"storage", "--rounds", "many"}, exitUsage, "many"},
		{[]string{"storage", "extra"}, exitUsage, `"extra"`},
		{[]string{"storage", "--quick", "--dir", file}, exitFailed, "cannot write to --dir"},
		{[]string{"storage", "--quick", "--dir", filepath.Join(file, "no")}, exitFailed, "cannot write to --dir"},
		{[]string{"storage", "--quick", "--out", file}, exitFailed, "--out"},
		{[]string{"lock", "--quick", "--mongodb", "http://nowhere"}, exitFailed, "--mongodb"},
		{[]string{"queue", "--quick", "--mongodb", "http://nowhere"}, exitFailed, "--mongodb"},
		{[]string{"types", "--quick", "--mongodb", "http://nowhere"}, exitFailed, "--mongodb"},
	} {
		code, stdout, stderr := runBench(c.args...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", c.args, code, stdout, stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	code, stdout, stderr := runBench("storage", "--help")
	if code != 0 || !strings.Contains(stdout, "-rounds") || stderr != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestRefusedFileSystem: storage.Open does not accept ramfs.
func TestRefusedFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("ramfs", dir, "ramfs", 0, ""); err != nil {
		t.Skip("cannot mount: ", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	code, _, stderr := runBench("storage", "--quick", "--dir", dir)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if last := lines[len(lines)-1]; code != exitFailed || !strings.Contains(last, "file system") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir, out := t.TempDir(), t.TempDir()
	var o, e bytes.Buffer
	if code := run(ctx, []string{"storage", "--dir", dir, "--out", out}, &o, &e); code != exitStopped {
		t.Errorf("exit %d: %s", code, e.String())
	}
	for _, d := range []string{dir, out} {
		if left, _ := os.ReadDir(d); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestResultsAreWritten(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	for range 2 { // the second run replaces the section of the first
		if code, _, stderr := runBench("storage", "--quick", "--rounds=1", "--dir", dir, "--out", out); code != 0 {
			t.Fatal(stderr)
		}
	}
	b, err := os.ReadFile(filepath.Join(out, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	if strings.Count(doc, "## Storage\n") != 1 || !strings.HasPrefix(doc, "# Results\n") || strings.Contains(doc, dir) || strings.Contains(doc, out) {
		t.Errorf("got\n%s", doc)
	}
	if !strings.Contains(doc, "`go run . storage --dir=… --out=… --quick=true --rounds=1`") {
		t.Error("the command is missing")
	}
	for _, line := range strings.Split(doc, "\n") {
		_, link, ok := strings.Cut(line, "](plots/")
		if !ok {
			continue
		}
		if _, err := os.Stat(filepath.Join(out, "plots", strings.TrimSuffix(link, ")"))); err != nil {
			t.Error(err)
		}
	}
}
