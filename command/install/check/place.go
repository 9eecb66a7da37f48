package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/shell"
)

// checkPlaces checks the data directory, and the datastore's directory if that is another
// one. The datastore's disk is the one that counts.
func checkPlaces(ctx context.Context, t Target) []Finding {
	all := []Finding{checkDir("data directory", t.DataDir, t.Replaced)}
	store := t.DataDir
	if t.StoreDir != "" {
		store = t.StoreDir
	}
	if filepath.Clean(store) != filepath.Clean(t.DataDir) {
		all = append(all, checkDir("datastore's directory", store, t.Replaced))
	}
	dir := existing(store)
	all = append(all, checkSpace(dir), checkFileSystem(dir))
	if t.StoreDir == "" {
		return all // this disk's speed is not the network's
	}
	return append(all, checkSpeed(ctx, dir))
}

// existing returns the directory itself, or the nearest existing one above it, in which it
// would be made.
func existing(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// checkDir checks a directory of the server's: this process may write to it, no other user
// may read it, and no server uses it except the one that is to be replaced.
func checkDir(check, dir string, replaced int) Finding {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return found(check, Fail, "choose another --data-dir", "%s is a file", dir)
	}
	pid, held, err := directory.Holder(dir)
	if err != nil {
		return found(check, Fail, "run this as the server's user or root", "%v", err)
	}
	if held && (pid == 0 || pid != replaced) {
		return found(check, Fail, "karve status --data-dir "+shell.Quoted(dir)+" shows it; to check for a restart of it, add --replaces "+shell.Quoted(dir)+"; to start another server, choose another --data-dir", "the server of %s runs already: %s", dir, holder(pid))
	}
	info, err := os.Stat(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return found(check, Fail, "run this as the server's user or root", "%v", err)
	}
	at := existing(dir)
	probe, failure := os.CreateTemp(at, ".writable-")
	if errors.Is(failure, syscall.EROFS) && err == nil {
		return found(check, Fail, "save its cluster", "%v", directory.ReadOnly(dir))
	} else if failure != nil {
		return found(check, Fail, "make it writable for the server's user, or choose another --data-dir", "%v", failure)
	}
	probe.Close()
	os.Remove(probe.Name())
	switch {
	case err != nil:
		return found(check, OK, "", "%s will be created in %s", dir, at)
	case info.Mode().Perm()&0o066 != 0: // others may pass, as --socket-group lets them: the files have mode 0600
		return found(check, Warn, "chmod 0700 "+dir, "%s has mode %04o: other users can read or change it", dir, info.Mode().Perm())
	}
	return found(check, OK, "", "%s, mode %04o", dir, info.Mode().Perm())
}

// holder names the process of a server; its pid is unknown in another PID namespace.
func holder(pid int) string {
	if pid == 0 {
		return "karve (pid unknown)"
	}
	return fmt.Sprintf("karve (pid %d)", pid)
}

// How much space has to be free: for the ballast, the WAL and the first objects, and for a
// server that runs for years.
const (
	leastSpace = 32 << 20
	easySpace  = 512 << 20
)

func checkSpace(dir string) Finding {
	const check = "disk space"
	free, err := freeSpace(dir)
	switch {
	case err != nil:
		return notKnown(check, err)
	case free < leastSpace:
		return found(check, Fail, "free some space", "%s free at %s; a start needs %s", size(free), dir, size(leastSpace))
	case free < easySpace:
		return found(check, Warn, "free some space soon", "%s free at %s", size(free), dir)
	}
	return found(check, OK, "", "%s free at %s", size(free), dir)
}

// checkFileSystem tries what the datastore needs of a file system.
func checkFileSystem(dir string) Finding {
	const check = "file system"
	why, err := fleeting(dir)
	if err != nil {
		return notKnown(check, err)
	}
	const do = "put --data-dir on a local disk (ext4, xfs, btrfs, f2fs)"
	if err := tryFileSystem(dir); err != nil {
		return found(check, Fail, do, "%v", err)
	}
	if why != "" {
		return found(check, Warn, do+", or on a volume", "%s", why)
	}
	return found(check, OK, "", "locks and mmap work")
}

// A write is answered when an fsync is done. With slowSync, one client that waits for its
// writes has fifty in a second.
const (
	slowSync  = 20 * time.Millisecond
	syncs     = 50
	syncLimit = 2 * time.Second
)

func checkSpeed(ctx context.Context, dir string) Finding {
	return judgeSpeed(measureSync(ctx, dir))
}

func judgeSpeed(took []time.Duration, err error) Finding {
	const check = "disk speed"
	if err != nil {
		return notKnown(check, err)
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	text := fmt.Sprintf("fsync %v, at worst %v of %d", round(median), round(worst), len(took))
	if median > slowSync {
		return found(check, Warn, "a better card or an SSD; or --durability relaxed, which may lose the last 100 ms in a power cut",
			"%s: every write waits for one", text)
	}
	return found(check, OK, "", "%s", text)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// measureSync appends pages to a file and waits for each to be on the disk, as SQLite does
// with the WAL. It removes the file.
func measureSync(ctx context.Context, dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".speed-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	for begin := time.Now(); len(took) < syncs && (len(took) == 0 || time.Since(begin) < syncLimit) && ctx.Err() == nil; {
		one := time.Now()
		if _, err := f.Write(page); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(one))
	}
	return took, ctx.Err()
}
