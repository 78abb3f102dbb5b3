package storage_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
)

// TestCheckWritable: a directory for new files is one that this user may write to, or create. Checking leaves nothing.
func TestCheckWritable(t *testing.T) {
	dir := t.TempDir()
	for p := dir; p != filepath.Dir(os.TempDir()) && p != "/"; p = filepath.Dir(p) {
		if p != os.TempDir() {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(path string) error { return storage.CheckWritable(path, storage.Options{AllowOverlay: true}) }
	for _, path := range []string{dir, filepath.Join(dir, "a", "b")} {
		if err := check(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{file, filepath.Join(file, "a")} {
		if err := check(path); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), "name a directory") {
			t.Errorf("%s: %v", path, err)
		}
	}
	done := make(chan error, 2)
	go func() {
		runtime.LockOSThread() // this thread is another user from now on, and ends with the function
		if os.Getuid() == 0 {
			if err := syscall.Setfsuid(65534); err != nil {
				done <- err
			}
		} else if err := os.Chmod(dir, 0o555); err != nil {
			done <- err
		}
		done <- check(dir)
		done <- check(filepath.Join(dir, "a", "b"))
	}()
	for range 2 {
		if err := <-done; !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "give this user access to both") {
			t.Errorf("a directory of another user: %v", err)
		}
	}
	os.Chmod(dir, 0o755)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestADirectoryInPlaceOfTheFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, storage.FileName("orders")), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := storage.Open(t.Context(), dir, "orders", 1, storage.Options{AllowOverlay: true})
	if !errors.Is(err, syscall.EISDIR) || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("got %v", err)
	}
}
