package storage

import (
	"errors"
	"path/filepath"
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
