//go:build !linux

package check

import (
	"errors"
	"io/fs"
)

func fleeting(string) (string, error) { return "", errors.ErrUnsupported }

func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }

func tryFileSystem(string) error { return nil }

func readableByOthers(info fs.FileInfo) bool {
	return info.Mode().Perm()&0o066 != 0
}
