//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func pipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A pipe works like a file, as in --url-file <(pass show db), even if its writer comes later.
func TestPipes(t *testing.T) {
	for flag, content := range map[string]string{"--url-file": "mongodb://bob:s3cret@h/db\n", "--store-file": "mongodb://bob:s3cret@h/db\n", "--config": "url: mongodb://bob:s3cret@h/db"} {
		path := pipe(t)
		go func() {
			time.Sleep(50 * time.Millisecond)
			os.WriteFile(path, []byte(content), 0o600)
		}()
		want := map[string]string{"--url-file": "url=mongodb://h/db (file F)\nurl-file=F (flag)\n", "--store-file": "store=mongodb://h/db (file F)\nstore-file=F (flag)\n", "--config": "url=mongodb://h/db (F:1)\n"}[flag]
		check(t, path, []string{flag, path}, want, ExitOK, nil)
	}
}

// A pipe without a writer, or one that is never closed, is an error and does not hang the program.
func TestPipesThatNobodyWritesTo(t *testing.T) {
	silent, open := pipe(t), pipe(t)
	w, err := os.OpenFile(open, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString("mongodb://h"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{silent, open} {
		read := make(chan error, 1)
		go func() {
			_, _, err := readFile(path, 100, 50*time.Millisecond)
			read <- err
		}()
		select {
		case err := <-read:
			if err == nil || !strings.Contains(err.Error(), "50ms") || !strings.Contains(err.Error(), "pipe") {
				t.Errorf("%s: %v", path, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: still waiting", path)
		}
	}
}

// Reading a device without an end stops at the limit.
func TestDevices(t *testing.T) {
	for path, says := range map[string]string{"/dev/zero": "larger than", "/dev/null": "only line"} {
		check(t, path, []string{"--url-file", path}, "", ExitUsage, []string{"--url-file F", says})
	}
}
