package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lookAgain is how often waitForHangup looks whether its context has ended.
const lookAgain = time.Second

// waitForHangup waits until nobody reads what is written to out, a pipe or a socket, and reports whether that is so; false means that ctx ended, or
// that out is something else. Without it, a program that waits for messages would notice only when it writes the next one.
func waitForHangup(ctx context.Context, out io.Writer) bool {
	if o, ok := out.(*output); ok {
		out = o.w
	}
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	for ctx.Err() == nil {
		var events int16
		var failed error
		err := conn.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd)}} // errors and hang-ups are always reported
			_, failed = unix.Poll(fds, int(lookAgain.Milliseconds()))
			events = fds[0].Revents
		})
		switch {
		case err != nil, failed != nil && !errors.Is(failed, unix.EINTR), events&unix.POLLNVAL != 0:
			return false
		case events&(unix.POLLERR|unix.POLLHUP) != 0:
			return true
		}
	}
	return false
}
