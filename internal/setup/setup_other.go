//go:build !unix

package setup

import (
	"os"
	"os/exec"
)

// No service is installed on these systems; the package only has to compile.

const lockFlags = 0

func lock(*os.File) error { return nil }

func release(*os.File) {}

func apart(*exec.Cmd) {}

// Umask does nothing here.
func Umask() {}
