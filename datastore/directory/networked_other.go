//go:build !linux

package directory

// networked cannot be found out here: the system's lock has to do.
func networked(string) bool { return false }
