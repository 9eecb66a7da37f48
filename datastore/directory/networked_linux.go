package directory

import "golang.org/x/sys/unix"

// networked reports whether a directory is on a file system that other machines may have
// mounted too. FUSE and 9P do not count: most of them are folders of this machine in a
// container. Without a machine-id there, this machine would look like another one after each
// power cut.
func networked(dir string) bool {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return false
	}
	switch int64(uint32(s.Type)) { // it is signed on 32-bit systems
	case unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC,
		unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC,
		0x0bd00bd0, // Lustre
		0x01161970: // GFS2
		return true
	}
	return false
}
