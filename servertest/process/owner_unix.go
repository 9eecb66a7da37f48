//go:build unix

package process

import (
	"fmt"
	"os"
	"syscall"
)

// onlyMine returns an error if another user than this one and root can change path.
func onlyMine(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch link := info.Mode()&os.ModeSymlink != 0; { // the mode of a link means nothing
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%s belongs to the user %d, who could change the program", path, owner)
	case !link && info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be changed by other users (mode %o)", path, info.Mode().Perm())
	}
	return nil
}
