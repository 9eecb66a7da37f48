// Package filemode compares modes in tests, so that they run on Windows as well.
package filemode

import (
	"io/fs"
	"runtime"
)

// Is tells whether a file has the mode want. On Windows, where the directory decides who may read
// a file, every file has.
func Is(info fs.FileInfo, want fs.FileMode) bool {
	return runtime.GOOS == "windows" || info.Mode().Perm() == want
}
