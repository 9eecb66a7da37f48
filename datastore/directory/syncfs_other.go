//go:build !linux

package directory

import "os"

// settleDeletions does nothing: it is for btrfs.
func settleDeletions(string) {}

func copiesOnWrite(string) bool { return false }

// allocate does nothing here: writing allocates.
func allocate(*os.File, int64) error { return nil }
