package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// A Group is a control group of processes (cgroups(7)) with a limit of memory and without swap.
type Group struct{ dir string }

// NewGroup makes a control group, of version 2 if the system has that controller there.
func NewGroup(limit int64) (*Group, error) {
	root, file, swap := "/sys/fs/cgroup", "memory.max", "memory.swap.max"
	if _, err := os.Stat(filepath.Join(root, "memory")); err == nil {
		root, file, swap = filepath.Join(root, "memory"), "memory.limit_in_bytes", "memory.swappiness"
	}
	g := &Group{filepath.Join(root, fmt.Sprintf("karve-bench-%d", OwnPID))}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a control group: %w", err)
	}
	err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(limit, 10)), 0o644)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("limit a control group: %w", err), g.Remove())
	}
	_ = os.WriteFile(filepath.Join(g.dir, swap), []byte("0"), 0o644) // the kernel may have no swap
	return g, nil
}

// Command is a command that runs a program in the group.
func (g *Group) Command(binary string, args []string) (string, []string) {
	return "/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), binary}, args...)
}

// Remove removes the group once its processes have ended.
func (g *Group) Remove() (err error) {
	for range 100 { // the kernel takes a moment to see that they have
		if err = os.Remove(g.dir); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("remove a control group: %w", err)
}
