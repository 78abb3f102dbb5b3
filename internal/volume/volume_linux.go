package volume

import (
	"os"

	"golang.org/x/sys/unix"
)

// Of returns the room on the volume of dir. A quota of the user or the project does not count.
func Of(dir string) (Room, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return Room{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
	}
	unit := int64(st.Frsize)
	if unit == 0 {
		unit = int64(st.Bsize)
	}
	return Room{Free: int64(st.Bavail) * unit, Size: int64(st.Blocks) * unit}, nil
}
