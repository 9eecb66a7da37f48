package endtoend

import (
	"io/fs"
	"os/exec"
	"syscall"
)

// become makes cmd run as another user, in none of our groups.
func become(cmd *exec.Cmd, id uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
}

func ownedBy(info fs.FileInfo, id uint32) bool { return info.Sys().(*syscall.Stat_t).Uid == id }
