//go:build !linux

package durability

import "os/exec"

// endWithParent does nothing: only Linux can tie a process to its parent.
func endWithParent(*exec.Cmd) {}
