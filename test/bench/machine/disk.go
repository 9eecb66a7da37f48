package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/karve-k8s/karve/test/bench/load"
)

// probeDisk measures how long an append of 1 KB takes until it is on the disk. A durable write of one client cannot
// be faster.
func probeDisk(dir string) (load.Result, error) {
	f, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return load.Result{}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	took := make([]time.Duration, 200)
	block, first := make([]byte, 1024), time.Now()
	for i := range took {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return load.Result{}, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return load.Result{}, fmt.Errorf("sync probe: %w", err)
		}
		took[i] = time.Since(began)
	}
	return load.Summarise(took, time.Since(first)), nil
}

// WorkDir makes a directory on a disk, below dir or in the directory for temporary files.
func WorkDir(dir string) (string, error) {
	work, err := os.MkdirTemp(dir, "kb-") // short: a socket's path has 107 bytes
	if err != nil {
		return "", fmt.Errorf("make work directory: %w", err)
	}
	var st unix.Statfs_t
	if err = unix.Statfs(work, &st); err == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC) {
		err = fmt.Errorf("%s is not on a disk, so a sync costs nothing there: choose another directory with -dir", filepath.Dir(work))
	}
	if err != nil {
		os.Remove(work)
		return "", err
	}
	return work, nil
}
