package setup

import (
	"errors"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

const lockFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK

func lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}

// release ends the lock. Closing the file would not, while a process that is being started still has it.
func release(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// apart keeps the terminal's Ctrl-C from a program: only this process decides what an interruption
// ends, and how.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
}

// Umask lets other users read what root makes for them, whatever umask root has: secrets have modes of their own.
func Umask() {
	if os.Geteuid() == 0 {
		unix.Umask(0o022)
	}
}
