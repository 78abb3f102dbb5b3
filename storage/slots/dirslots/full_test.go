//go:build unix

package dirslots

import (
	"errors"
	"io/fs"
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
