//go:build !unix

package atomicfile

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: files have no owner to keep.
func keepOwner(*os.File, fs.FileInfo) error { return nil }

// unsyncable is always true: directories cannot be synced.
func unsyncable(error) bool { return true }
