//go:build !unix

package endtoend

import (
	"io/fs"
	"os/exec"
)

// become is never called here.
func become(*exec.Cmd, uint32) {}

func ownedBy(fs.FileInfo, uint32) bool { return true }
