package process

import (
	"fmt"
	"os"
	"os/exec"
)

// BinaryVariable is the variable that names the karve program of all clusters without [Binary].
const BinaryVariable = "KARVE_BINARY"

// install is the command that installs karve, as docs/ci.md has it.
const install = "curl -fsSLo karve-install.sh https://github.com/karve-k8s/karve/releases/latest/download/install.sh && sh karve-install.sh binary"

// program returns the path of the karve program that a cluster runs: the one of its option, or the
// one that BinaryVariable names, or else karve in the PATH.
func program(option string) (string, error) {
	if option != "" {
		return exec.LookPath(option)
	}
	if named := os.Getenv(BinaryVariable); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			err = fmt.Errorf("%s: %w", BinaryVariable, err)
		}
		return path, err
	}
	path, err := exec.LookPath("karve")
	if err != nil {
		err = fmt.Errorf("%w, and %s is not set. Install karve, or set the variable to the path of one:\n%s", err, BinaryVariable, install)
	}
	return path, err
}
