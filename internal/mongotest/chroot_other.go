//go:build !linux

package mongotest

import (
	"context"
	"errors"
)

func startChroot(context.Context, Options, string) (*Server, error) {
	return nil, errors.New("a chroot needs root on Debian")
}
