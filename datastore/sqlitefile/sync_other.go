//go:build !linux

package sqlitefile

import "os"

// syncData makes a file durable.
func syncData(f *os.File) error { return f.Sync() }
