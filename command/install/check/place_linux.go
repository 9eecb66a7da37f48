package check

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// fleeting says why what is written at dir does not last; empty if it may.
func fleeting(dir string) (why string, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("statfs %s: %w", dir, err)
	}
	switch uint32(s.Type) { // it is signed on 32-bit systems
	case unix.OVERLAYFS_SUPER_MAGIC:
		why = "overlay: it is a container's own and goes with it"
	case unix.TMPFS_MAGIC:
		why = "tmpfs: it is memory: nothing survives a boot"
	}
	return why, nil
}

// freeSpace returns how many bytes users other than root can still write at dir.
func freeSpace(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}

// tryFileSystem locks a file, as the server locks the data directory, and shares memory
// through it, as SQLite does with the index of its WAL.
func tryFileSystem(dir string) error {
	f, err := os.CreateTemp(dir, ".mmap-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("flock: %w", err)
	}
	record := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &record); err != nil {
		return fmt.Errorf("lock of a range: %w", err)
	}
	if err := f.Truncate(4096); err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("shared mmap: %w", err)
	}
	defer unix.Munmap(m)
	m[7] = 'x'
	var b [1]byte
	if _, err := f.ReadAt(b[:], 7); err != nil {
		return err
	} else if b[0] != 'x' {
		return fmt.Errorf("shared mmap: what is written through it is not in the file")
	}
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return err
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo") // without it, nothing is known
	return localLocks(string(mounts), fmt.Sprintf("%d:%d", unix.Major(uint64(s.Dev)), unix.Minor(uint64(s.Dev))))
}

// localLocks returns an error if the file system of a device is mounted with an option that keeps its locks on this
// machine.
func localLocks(mounts, device string) error {
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != device {
			continue
		}
		for option := range strings.SplitSeq(fields[len(fields)-1], ",") {
			switch option {
			case "nolock", "local_lock=all", "local_lock=flock", "nobrl", "localflocks": // of NFS, SMB, and GFS2 or OCFS2
				return fmt.Errorf("mounted with %s, so another machine could use it at the same time and destroy the datastore", option)
			}
		}
	}
	return nil
}
