package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroupMount is where cgroups are, https://docs.kernel.org/admin-guide/cgroup-v2.html.
const cgroupMount = "/sys/fs/cgroup"

var errNoCgroup = errors.New("memory cannot be limited here")

// A cgroup bounds the memory of the processes that are started in it.
type cgroup struct {
	dir  string
	file *os.File
}

// limitMemory makes a cgroup of so many bytes, without swap, below the nearest
// one above this process' that hands memory out to its children.
func limitMemory(bytes int64) (*cgroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	parent, err := memoryParent(cgroupMount, string(own))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "karve-bench-")
	if err != nil {
		return nil, fmt.Errorf("%w: %w (run as root, or under systemd-run --user --scope -p Delegate=yes)", errNoCgroup, err)
	}
	c := &cgroup{dir: dir}
	if err := c.limit(bytes); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// memoryParent finds the cgroup to make one in. own is what /proc/self/cgroup
// says.
func memoryParent(mount, own string) (string, error) {
	path := ""
	for line := range strings.Lines(own) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = rest
		}
	}
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err != nil || path == "" {
		return "", fmt.Errorf("%w: %s is not a cgroup v2 hierarchy", errNoCgroup, mount)
	}
	for {
		dir := filepath.Join(mount, path)
		if given, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); err == nil && slices.Contains(strings.Fields(string(given)), "memory") {
			return dir, nil
		}
		if path == "/" || path == "." {
			return "", fmt.Errorf("%w: no cgroup from %s up has memory in its cgroup.subtree_control", errNoCgroup, mount)
		}
		path = filepath.Dir(path)
	}
}

func (c *cgroup) limit(bytes int64) (err error) {
	if err := os.WriteFile(filepath.Join(c.dir, "memory.max"), []byte(strconv.FormatInt(bytes, 10)), 0o644); err != nil {
		return fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	// A kernel without swap has no such file.
	if err := os.WriteFile(filepath.Join(c.dir, "memory.swap.max"), []byte("0"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	if c.file, err = os.Open(c.dir); err != nil {
		return fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	return nil
}

// apply makes a process start in the cgroup.
func (c *cgroup) apply(attr *syscall.SysProcAttr) {
	attr.UseCgroupFD, attr.CgroupFD = true, int(c.file.Fd())
}

// peak is the most memory that was ever in use, in bytes; -1 where the kernel
// (before 5.19) does not tell.
func (c *cgroup) peak() (int64, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "memory.peak"))
	if errors.Is(err, os.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// close removes the cgroup, in which there may be a process that is about to go.
func (c *cgroup) close() error {
	if c.file != nil {
		c.file.Close()
	}
	var err error
	for range 20 {
		if err = os.Remove(c.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// parseSize reads a number of bytes such as 200M or 1G, powers of 1024 as
// systemd and Docker have them.
func parseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "KMG")
	shift := map[string]int{"": 0, "K": 10, "M": 20, "G": 30}
	by, known := shift[text[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n <= 0 || n > 1<<62>>by {
		return 0, fmt.Errorf("%q is no size, want something like 200M", text)
	}
	return n << by, nil
}
