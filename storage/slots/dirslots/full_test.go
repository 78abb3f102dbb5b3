//go:build unix

package dirslots

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
)

// integration's TestFullStore fills a real file system.
func TestFull(t *testing.T) {
	s := &Store{dir: "/srv/files"}
	for errno, remedy := range map[syscall.Errno]string{syscall.ENOSPC: "free some space in the store", syscall.EDQUOT: "raise the disk quota of this user"} {
		err := s.explain(&fs.PathError{Op: "write", Path: "/srv/files/.slots/x", Err: errno})
		if !errors.Is(err, slots.ErrFull) || !errors.Is(err, storage.ErrNoSpace) || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
		for _, says := range []string{"shared:/srv/files: no room: the store is full", remedy, "nothing acknowledged is lost"} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("it does not say %q: %v", says, err)
			}
		}
	}
}

// Errors that last until an operator acts. cmd/fencepost's TestDoctorRefusesReadOnlyDirectories mounts a read-only directory.
func TestRefusals(t *testing.T) {
	s := &Store{dir: "/srv/files"}
	for errno, says := range map[syscall.Errno]string{
		syscall.EROFS:   "the directory is read-only: write /srv/files/.slots/x: read-only file system; mount it for writing",
		syscall.EACCES:  "run as the user that owns it",
		syscall.EPERM:   "run as the user that owns it",
		syscall.ENOTSUP: "the file system has no hard links",
		syscall.EMLINK:  "the file system has no hard links",
	} {
		err := s.explain(&fs.PathError{Op: "write", Path: "/srv/files/.slots/x", Err: errno})
		if !errors.Is(err, storage.ErrRefused) || errors.Is(err, slots.ErrFull) || !errors.Is(err, errno) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v; want a refusal that says %q", errno, err, says)
		}
	}
	for errno, says := range map[syscall.Errno]string{syscall.EPERM: "the file system has no hard links, or the server maps", syscall.EACCES: "run as the user that owns it"} {
		err := s.explain(&os.LinkError{Op: "link", Old: "/srv/files/.slots/x", New: "/srv/files/x", Err: errno})
		if !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("a link, %v: %v; want a refusal that says %q", errno, err, says)
		}
	}
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EMFILE} {
		if err := s.explain(errno); errors.Is(err, storage.ErrRefused) || errors.Is(err, slots.ErrFull) || !errors.Is(err, errno) {
			t.Errorf("it may be temporary: %v", err)
		}
	}
}
