package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// exists tells whether there is a file of that name.
func Exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func Same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// unusedName is name, or name with a number.
func Unused(name string) (string, error) {
	for i := 1; ; i++ {
		candidate := name
		if i > 1 {
			candidate = fmt.Sprintf("%s.%d", name, i)
		}
		if taken, err := Exists(candidate); err != nil || !taken {
			return candidate, err
		}
	}
}
