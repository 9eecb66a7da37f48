//go:build !linux

package sqlitefile

import "os"

// syncsItself says that a File syncs the commits of mode full itself, and not SQLite.
const syncsItself = false

// syncData makes a file durable.
func syncData(f *os.File) error { return f.Sync() }
