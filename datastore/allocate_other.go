//go:build !linux

package datastore

import (
	"errors"
	"os"
)

// allocate has no call to use here.
func allocate(*os.File, int64) error { return errors.ErrUnsupported }
