package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// safe refuses what a user other than root and the server's own could change.
func safe(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could become an administrator: run chown %d %[1]s", path, stat.Uid, os.Geteuid())
	}
	if info.Mode().Perm()&0o022 == 0 || ok && info.IsDir() && volume(path, stat) {
		return nil
	}
	return fmt.Errorf("%s has mode %04o, so other users could become administrators: run chmod go-w %[1]s", path, info.Mode().Perm())
}

// version differs after a change that keeps size and time of modification, as of an image whose files have one fixed time.
func version(path string) string {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return err.Error()
	}
	return fmt.Sprint(stat.Dev, stat.Ino, stat.Ctim.Nano())
}

// volume reports whether a directory is itself where something is mounted read-only, such as a ConfigMap, which has mode 0777. Below that, modes
// count: the sandbox of a service (ProtectSystem=) shows everything read-only, but other users can write there.
func volume(dir string, stat *syscall.Stat_t) bool {
	info, err := os.Stat(filepath.Dir(dir))
	if err != nil {
		return false
	}
	above, ok := info.Sys().(*syscall.Stat_t)
	return ok && above.Dev != stat.Dev && errors.Is(unix.Access(dir, unix.W_OK), unix.EROFS)
}
