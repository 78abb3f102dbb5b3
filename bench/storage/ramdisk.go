package storage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/bench/internal/machine"
)

// mountRAM mounts an ext4 file system of size bytes, in a file in memory, below parent. There a sync costs only the
// kernel's and the program's work and no device's, so that ratios hardly vary.
func mountRAM(parent string, size int64) (dir string, unmount func(), err error) {
	mkfs, err := exec.LookPath("mkfs.ext4")
	switch {
	case os.Geteuid() != 0:
		return "", nil, errors.New("mounting needs root")
	case err != nil:
		return "", nil, errors.New("mkfs.ext4 is not installed")
	case machine.AvailableMemory() < 2*size: // the image, and the page cache of the file system in it
		return "", nil, fmt.Errorf("it may take %d MiB of memory", 2*size>>20)
	}
	ram, disk := filepath.Join(parent, "ram"), filepath.Join(parent, "disk")
	// Detaching never fails because a file is still open; the rest happens when it is closed.
	unmount = func() {
		for _, d := range []string{disk, ram} {
			unix.Unmount(d, unix.MNT_DETACH) // not mounted: nothing to do
			os.Remove(d)
		}
	}
	defer func() {
		if err != nil {
			unmount()
		}
	}()
	if err := errors.Join(os.Mkdir(ram, 0o700), os.Mkdir(disk, 0o700)); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("tmpfs", ram, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=0700,size=%d", size)); err != nil {
		return "", nil, fmt.Errorf("mount tmpfs: %w", err)
	}
	image := filepath.Join(ram, "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
		return "", nil, err
	}
	// Not lazily: a kernel thread would initialise tables during a measurement.
	if err := run(mkfs, "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image); err != nil {
		return "", nil, err
	}
	if err := run("mount", "-t", "ext4", "-o", "loop,discard", image, disk); err != nil {
		return "", nil, err
	}
	return disk, unmount, nil
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, strings.TrimSpace(string(out)))
	}
	return nil
}
