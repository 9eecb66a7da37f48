//go:build !unix

package process

import "io/fs"

// mine returns true: the user's temporary directory is closed to others by its access list.
func mine(fs.FileInfo) bool { return true }
