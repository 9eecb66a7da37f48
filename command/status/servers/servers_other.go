//go:build !linux

package servers

import "slices"

// Running returns the servers that run in the usual data directories: this system has no files
// that name the holders of locks.
func Running(usual ...string) ([]Server, error) {
	var all []Server
	for _, dir := range usual {
		if s, ok := serverIn(dir); ok && dir != "" && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all, nil
}
