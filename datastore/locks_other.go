//go:build !linux

package datastore

// lockingProcesses: which process has a lock cannot be told here without opening the
// database.
func lockingProcesses(string) []int { return nil }
