//go:build !linux

package directory

// networked is not known here: the lock of the system has to do.
func networked(string) bool { return false }
