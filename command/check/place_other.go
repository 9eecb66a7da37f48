//go:build !linux

package check

import (
	"errors"
	"io/fs"
	"runtime"
)

func fleeting(string) (string, error) { return "", errors.ErrUnsupported }

func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }

func tryFileSystem(string) error { return nil }

// readableByOthers returns false: Windows' modes say nothing about other users.
func readableByOthers(info fs.FileInfo) bool {
	return runtime.GOOS != "windows" && info.Mode().Perm()&0o066 != 0
}
