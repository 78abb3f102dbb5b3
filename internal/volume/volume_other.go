//go:build !linux

package volume

import "errors"

// Of reports that the room is not known: files can be written on Linux only.
func Of(string) (Room, error) { return Room{}, errors.ErrUnsupported }
