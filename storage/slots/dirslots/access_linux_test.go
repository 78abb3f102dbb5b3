package dirslots_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
)

// asUser runs f without root's privileges over files. The thread that dropped them ends with f.
func asUser(t *testing.T, f func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		if os.Getuid() == 0 {
			if err := syscall.Setfsuid(65534); err != nil {
				t.Error(err)
				return
			}
		}
		f()
	}()
	<-ended
}

// A request without permission is refused, unless it may have changed something. A folder that cannot be opened proves nothing about the values in it.
func TestAccess(t *testing.T) {
	asUser(t, func() {
		dir := t.TempDir() // the user's
		must := func(errs ...error) {
			t.Helper()
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		}
		must(os.Chmod(dir, 0o500))
		s, err := dirslots.Open(dir)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := s.List(t.Context(), "orders"); err != nil {
			t.Errorf("a directory that may be read: %v", err)
		}
		if err := s.Create(t.Context(), "orders/1", nil); !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "run as the user that owns it") {
			t.Errorf("a directory in which nothing may be made: %v", err)
		}
		must(os.Chmod(dir, 0o700))
		folder := filepath.Join(dir, "orders")
		must(os.Mkdir(folder, 0o500))
		if err := s.Create(t.Context(), "orders/1", []byte("x")); !errors.Is(err, storage.ErrRefused) {
			t.Errorf("a folder in which nothing may be made: %v", err)
		}
		// Names can be created and looked up in this folder, but it cannot be opened.
		must(os.Chmod(folder, 0o300))
		if _, err := s.Read(t.Context(), "orders/1"); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a value in a folder that cannot be opened: %v", err)
		}
		if err := s.Create(t.Context(), "orders/1", []byte("x")); err == nil || errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "not known whether orders/1 was created") {
			t.Errorf("a name that cannot be synced: %v", err)
		}
		must(os.Chmod(folder, 0o700))
		if b, err := s.Read(t.Context(), "orders/1"); err != nil || string(b) != "x" {
			t.Errorf("it was created: %q, %v", b, err)
		}
	})
}

// A full directory can be opened, for reading and for deletions that free space.
func TestAFullDirectoryIsOpened(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=4"); err != nil {
		t.Skipf("mounting a small tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.Mkdir(filepath.Join(dir, ".slots"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".slots/leftover", "value"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	if err := s.Create(t.Context(), "orders", nil); !errors.Is(err, slots.ErrFull) {
		t.Errorf("create: %v", err)
	}
	if err := s.Delete(t.Context(), "value"); err != nil {
		t.Error(err)
	}
}
