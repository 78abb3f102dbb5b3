package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRoom(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system; run the tests as root to include this one")
	}
	dir := t.TempDir()
	const size = 8 << 20
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })

	if r, err := Of(dir); err != nil || r != (Room{Free: size, Size: size}) || r.Low() {
		t.Errorf("empty: %+v, low: %t, %v", r, r.Low(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "much"), make([]byte, size-size/16), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Of(dir); err != nil || r != (Room{Free: size / 16, Size: size}) || !r.Low() {
		t.Errorf("nearly full: %+v, low: %t, %v", r, r.Low(), err)
	}
	if r, err := Of(filepath.Join(dir, "no-such")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %+v, %v", r, err)
	}
}
