//go:build !linux

package child

import "os/exec"

// EndWithParent does nothing: only Linux can tie a process to its parent.
func EndWithParent(*exec.Cmd) {}
