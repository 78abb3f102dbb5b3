//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

// lockFile keeps a second process from using the same state file. The lock ends with the process; the empty lock file stays.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, cli.Usagef("--resume: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &cli.Error{Code: cli.ExitHeld, Err: fmt.Errorf("another producer is using %s; wait until it ends, or stop it", path)}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
