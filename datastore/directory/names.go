package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Exists reports whether there is a file of that name. It does not follow a symbolic link.
func Exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Unused returns name, or name with a number, so that there is no file of that name yet, alone or with one
// of the endings.
func Unused(name string, endings ...string) (string, error) {
	for i := 1; ; i++ {
		candidate := name
		if i > 1 {
			candidate = fmt.Sprintf("%s.%d", name, i)
		}
		free := true
		for _, ending := range append([]string{""}, endings...) {
			taken, err := Exists(candidate + ending)
			if err != nil {
				return candidate, err
			}
			free = free && !taken
		}
		if free {
			return candidate, nil
		}
	}
}
