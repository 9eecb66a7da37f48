package servers

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Running returns the servers that run, by data directory, as far as this user may look at their
// processes: root sees all, others their own. It finds them by the locks of their data
// directories (proc_locks(5), proc_pid_fd(5)), so no server that has ended is among them. usual is
// not needed here: see servers_other.go.
func Running(usual ...string) ([]Server, error) {
	pids, err := lockHolders()
	if err != nil {
		return nil, fmt.Errorf("look for running servers: %w", err)
	}
	var all []Server
	for _, pid := range pids {
		for _, dir := range lockedDirs(pid) {
			if s, ok := serverIn(dir); ok && s.PID == pid && !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b Server) int { return cmp.Compare(a.DataDir, b.DataDir) })
	return all, nil
}

// lockHolders are the processes that hold a lock by flock(2).
func lockHolders() ([]int, error) {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil, err
	}
	var pids []int
	for line := range strings.Lines(string(text)) {
		// 8: FLOCK  ADVISORY  WRITE 2084 fe:00:11321834 0 EOF
		fields := strings.Fields(line)
		if len(fields) != 8 || fields[1] != "FLOCK" || fields[3] != "WRITE" {
			continue
		}
		// Processes outside this PID namespace have a number below 1.
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// lockedDirs are the directories whose file lock a process has open. None for a process that has
// ended, or that this user may not look at.
func lockedDirs(pid int) []string {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(fds)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if path, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil && filepath.IsAbs(path) && filepath.Base(path) == "lock" {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return dirs
}
