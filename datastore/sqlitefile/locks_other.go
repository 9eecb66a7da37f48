//go:build !linux

package sqlitefile

// LockingProcesses returns none: here they cannot be found without opening the database.
func LockingProcesses(string) []int { return nil }
