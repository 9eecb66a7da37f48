//go:build !linux

package datastore

// settleQuota is for a file system of Linux.
func settleQuota(string) {}
