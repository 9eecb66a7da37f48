//go:build !linux

package sqlitefile

// lockingProcesses: which process has a lock cannot be told here without opening the
// database.
func LockingProcesses(string) []int { return nil }
