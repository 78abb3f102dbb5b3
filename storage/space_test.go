//go:build linux

package storage_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/storage"
)

// TestFullDisk fills a real, small file system. The batch that does not fit is refused before a byte of it is written,
// and appended once there is space.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("mounting a small tmpfs needs root: %v; TestNoSpaceBeforeAnyByte covers the same with a memory file system", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	testFullDisk(t, dir)
}

// testFullDisk fills the file system that dir is on.
func testFullDisk(t *testing.T, dir string) {
	ballast := filepath.Join(dir, "ballast")
	must(t, writeBallast(ballast))

	files := filepath.Join(dir, "files")
	w := mustOpen(t, files, 1, storage.Options{})
	payload := make([]byte, 100<<10)
	n := 0
	var err error
	for ; err == nil && n < 100; n++ {
		if err = w.Append([]storage.Record{{ID: fmt.Append(nil, n), Payload: payload}}); err == nil {
			mustSync(t, w)
		}
	}
	n--
	var ns *storage.NoSpaceError
	var dead *storage.PoisonedError
	if !errors.As(err, &ns) || errors.As(err, &dead) || !errors.Is(err, syscall.ENOSPC) || n < 20 {
		t.Fatalf("after %d batches: %v", n, err)
	}
	if rep := mustVerify(t, nil, w.Path()); rep.Err() != nil || rep.Messages != uint64(n) || rep.Torn.End != 0 || rep.Size != w.Size() {
		t.Errorf("with a full disk: %+v", rep)
	}
	must(t, unix.Unlink(ballast))
	must(t, w.Append([]storage.Record{{ID: fmt.Append(nil, n), Payload: payload}}))
	must(t, w.Close())
	if all := readAll(t, nil, w.Path()); len(all) != n+1 {
		t.Errorf("%d records, want %d", len(all), n+1)
	}
}

// writeBallast leaves 4 MiB free.
func writeBallast(path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	n := int64(st.Bfree)*int64(st.Bsize) - 4<<20
	for err = unix.Fallocate(fd, 0, 0, n); err == unix.ENOSPC; err = unix.Fallocate(fd, 0, 0, n) {
		n -= 1 << 20 // the file system itself needs some space
	}
	return errors.Join(err, unix.Close(fd))
}
