package options

import (
	"os"
	"path/filepath"
)

// Exists tells whether path exists.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Absolute returns dir as an absolute path. An empty dir stays empty.
func Absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil && dir != "" {
		return abs
	}
	return dir
}
