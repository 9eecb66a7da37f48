package child

import (
	"os/exec"
	"syscall"
)

// EndWithParent has the kernel kill the process when its parent ends without doing so.
func EndWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
