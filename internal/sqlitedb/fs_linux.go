package sqlitedb

import (
	"golang.org/x/sys/unix"
)

// unsafeTypes are the file systems (statfs(2) f_type) on which several machines may share a file, or a user-space
// server may serve it. Source: linux/magic.h and the file systems' own headers.
var unsafeTypes = map[uint32]string{
	0x6969:     "NFS",
	0x517B:     "SMB",
	0xFF534D42: "CIFS",
	0xFE534D42: "SMB2",
	0x01021997: "9P",
	0x00C36400: "Ceph",
	0x5346414F: "AFS",
	0x6B414653: "AFS",
	0x73757245: "Coda",
	0x564C:     "NCP",
	0x0BD00BD0: "Lustre",
	0x47504653: "GPFS",
	0x01161970: "GFS2",
	0x7461636F: "OCFS2",
	0x65735546: "FUSE",
}

// unsafeFileSystem names the file system of dir if WAL is unsafe on it. A file system that cannot be queried passes:
// SQLite's own checks follow.
func unsafeFileSystem(dir string) (name string, unsafe bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false
	}
	name, unsafe = unsafeTypes[uint32(st.Type)]
	return name, unsafe
}
