package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSyncProbesTheJournal: where fdatasync may succeed although the journal was aborted, a failed reservation counts as a failed
// sync. Here it fails because the descriptor is read-only, which fdatasync accepts.
func TestSyncProbesTheJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := osFS{}.Open(path, ModeCreate)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Datasync(), f.Close()); err != nil {
		t.Fatalf("a healthy file: %v", err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, probe := range []bool{false, true} {
		f := &osFile{fd: fd, name: path, probe: probe}
		if err := f.Datasync(); (err != nil) != probe {
			t.Errorf("probe %v: %v", probe, err)
		}
	}
	unix.Close(fd)
}

// TestADirectoryThatIsAFile: a check finds what Open would fail with.
func TestADirectoryThatIsAFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := CheckDirectory(dir, Options{AllowOverlay: true}); err != nil {
		t.Skip(err)
	}
	for path, wants := range map[string]string{dir + "/new/er": "", dir + "/link": "", file: "name a directory", file + "/new": "name a directory"} {
		err := CheckDirectory(path, Options{AllowOverlay: true})
		if (err == nil) != (wants == "") || err != nil && !strings.Contains(err.Error(), wants) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
