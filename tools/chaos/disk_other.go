//go:build unix && !linux

package main

import "errors"

type disk struct{}

func newDisk(image, dir string) (*disk, error) {
	return nil, errors.New("a disk of its own is made on Linux only")
}

func (d *disk) remove(bool) error           { return nil }
func (d *disk) fill() (func() error, error) { return nil, errors.ErrUnsupported }
func (d *disk) freeze() error               { return errors.ErrUnsupported }
func (d *disk) thaw() error                 { return errors.ErrUnsupported }
