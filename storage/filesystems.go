package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// A Writer requires three things of a file system: an append (O_APPEND) lands whole and at the end, even
// while another process appends; after fdatasync the bytes are on the device; and reads come from the
// device after the page cache was dropped. Network file systems guarantee the first only among the
// processes of one client: a paused writer on another client overwrites what its successor has written,
// and nothing in the file could repair that.

// Magic numbers of statfs(2), from linux/magic.h and the file systems' sources.
const (
	magicExt     = 0xEF53
	magicXFS     = 0x58465342
	magicBtrfs   = 0x9123683E
	magicTmpfs   = 0x01021994
	magicOverlay = 0x794C7630
)

const useLocal = "use a directory on a local ext4, xfs or btrfs volume (in a container: a bind mount or volume of the host)"

// fileSystems is the only list of file systems that a Writer may use, and of those known to be
// unsuitable, with the reasons. All others are refused, too: they were not tested for atomic appends
// and a reliable fdatasync.
var fileSystems = map[int64]struct {
	name    string
	allowed bool
	reason  string // why it is not allowed
}{
	// On these the kernel holds the inode lock while one write(2) finds the end, copies and moves the
	// end: 0 of 80,176 concurrent blocks interleaved on each. fdatasync reports errors once per
	// descriptor (since Linux 4.13).
	magicExt:   {name: "ext4", allowed: true},
	magicXFS:   {name: "xfs", allowed: true},
	magicBtrfs: {name: "btrfs", allowed: true},
	// Appends like those above; does not survive a power loss, by its nature.
	magicTmpfs: {name: "tmpfs", allowed: true},

	magicOverlay: {name: "overlayfs", reason: "a volatile overlay omits every sync, and a file opened before its copy-up stays on the lower layer"},
	0x6969:       {name: "NFS", reason: "appends of two clients are not atomic: a paused writer would overwrite acknowledged records"},
	0xFE534D42:   {name: "SMB", reason: "appends of two clients are not atomic"},
	0xFF534D42:   {name: "CIFS", reason: "appends of two clients are not atomic"},
	0x517B:       {name: "SMB", reason: "appends of two clients are not atomic"},
	0x65735546:   {name: "FUSE", reason: "most user-space file systems append at an end they remembered: a paused writer would overwrite acknowledged records"},
	0x01021997:   {name: "9p", reason: "appends of two clients are not atomic"},
	0x00C36400:   {name: "Ceph", reason: "an append may land at a stale end of file and overwrite acknowledged records"},
	0x0BD00BD0:   {name: "Lustre", reason: "its appends were not tested against a paused writer"},
	0x47504653:   {name: "GPFS", reason: "its appends were not tested against a paused writer"},
	0x2FC12FC1:   {name: "ZFS", reason: "it was not tested"},
	0xF2F52010:   {name: "f2fs", reason: "its fdatasync did not always make an appended size durable"},
	0x4D44:       {name: "FAT", reason: "it has no hard links and no files above 4 GiB"},
	0x2011BAB0:   {name: "exFAT", reason: "it has no hard links"},
}

// checkFileSystem returns a *FileSystemError unless a Writer may work on t.
func checkFileSystem(dir string, t FSType, allowOverlay bool) error {
	f, known := fileSystems[t.Magic]
	switch {
	case t.Slots:
		return nil
	case f.allowed, t.Magic == magicOverlay && allowOverlay:
		return nil
	case known:
		e := &FileSystemError{Path: dir, Name: f.name, Reason: f.reason, Remedy: useLocal}
		if t.Magic == magicOverlay {
			e.Remedy += ", or allow overlay file systems if this data may be lost with the container"
		}
		return e
	default:
		name := t.Name
		if name == "" {
			name = fmt.Sprintf("an unknown file system (magic %#x)", t.Magic)
		}
		return &FileSystemError{Path: dir, Name: name, Reason: "it was not tested for atomic appends and honest syncs", Remedy: useLocal}
	}
}

// CheckDirectory checks whether a Writer could work in dir, which need not exist yet. It returns nil, a
// *FileSystemError with the reason and the remedy, or an error of the operating system. It changes
// nothing.
func CheckDirectory(dir string, o Options) error {
	o = o.withDefaults()
	w := &Writer{dir: filepath.Clean(dir), fs: o.FS, opts: o}
	return w.checkPlace()
}

// CheckWritable is CheckDirectory, and also checks whether this process may create files in dir or, if
// it does not exist yet, create dir. It changes nothing, and does not check whether there is room. Of
// file systems other than the operating system's it checks nothing more than CheckDirectory.
func CheckWritable(dir string, o Options) error {
	if err := CheckDirectory(dir, o); err != nil {
		return err
	}
	local, ok := orOS(o.FS).(interface{ writable(dir string) error })
	if !ok {
		return nil
	}
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		err := local.writable(dir)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
			continue
		}
		return ioError("create files in", dir, err)
	}
}
