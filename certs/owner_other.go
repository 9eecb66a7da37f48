//go:build !unix

package certs

import "os"

// keepOwner does nothing: there are no owners to keep.
func keepOwner(*os.File, os.FileInfo) error { return nil }

// unsyncable is always true: here, directories cannot be synced.
func unsyncable(error) bool { return true }
