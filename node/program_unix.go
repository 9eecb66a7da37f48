//go:build unix

package node

import (
	"io/fs"
	"os/exec"
	"syscall"
)

// apart keeps the terminal's Ctrl-C from a program: only this process decides what an interruption
// ends, and how.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
}

// nonblock lets a FIFO be opened without a writer.
const nonblock = syscall.O_NONBLOCK

// ownerOf is the user and group of a file.
func ownerOf(info fs.FileInfo) (uid, gid int) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), int(s.Gid)
	}
	return -1, -1 // os.Chown leaves them
}
