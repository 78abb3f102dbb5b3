//go:build unix

package dirslots

import (
	"os"
	"syscall"
)

// openFlags: a symbolic link is not a value, and a FIFO must not block the open.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// names returns how many names a file has.
func names(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint64(st.Nlink)
}
