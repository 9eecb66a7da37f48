package durability

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the process when the test ends without doing so.
func endWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
