package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// disk is a small ext4 file system in a file.
type disk struct{ image, dir string }

const diskSize = 48 << 20

// newDisk mounts a new disk at dir. It needs root, mkfs.ext4 and a loop device.
func newDisk(image, dir string) (*disk, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("mounting a disk takes root")
	}
	f, err := os.Create(image)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(diskSize)
	f.Close()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for _, c := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w: %s", c, err, out)
		}
	}
	return &disk{image, dir}, nil
}

// remove unmounts the disk. If keep is set, it first copies the files on it.
func (d *disk) remove(keep bool) error {
	_ = d.thaw()
	if keep {
		if out, err := exec.Command("cp", "-a", d.dir, d.dir+".kept").CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", d.dir, err, out)
		}
	}
	if out, err := exec.Command("umount", d.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("umount %s: %w: %s", d.dir, err, out)
	}
	return os.Remove(d.image)
}

// fill takes all free space, and returns a function that releases it.
func (d *disk) fill() (undo func() error, err error) {
	f, err := os.CreateTemp(d.dir, "ballast-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	undo = func() error { return os.Remove(f.Name()) }
	size := int64(0)
	for step := int64(16 << 20); step >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, size, step); {
		case err == nil:
			size += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		case !errors.Is(err, unix.EINTR):
			return nil, errors.Join(err, undo())
		}
	}
	return undo, nil
}

// The requests that freeze and thaw a file system, see ioctl_list(2).
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

func (d *disk) ioctl(request uint) error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}

// freeze makes every write to the disk, and every sync, wait until thaw.
func (d *disk) freeze() error { return d.ioctl(fiFreeze) }
func (d *disk) thaw() error   { return d.ioctl(fiThaw) }
