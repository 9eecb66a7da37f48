package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cgroupMount is where cgroups are mounted (cgroups(7)): the one hierarchy of version 2, or the
// hierarchies of version 1, one of which is memory.
const cgroupMount = "/sys/fs/cgroup"

var errNoCgroup = errors.New("memory cannot be limited here")

// A cgroup limits the memory of the processes that start in it.
type cgroup struct {
	dir   string
	file  *os.File // version 2
	files cgroupFiles
}

// cgroupFiles are the names of the files in one version of cgroups.
type cgroupFiles struct{ limit, withSwap, peak string }

var (
	filesV1 = cgroupFiles{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes"}
	filesV2 = cgroupFiles{"memory.max", "memory.swap.max", "memory.peak"}
)

// limitMemory makes a cgroup with a limit in bytes, without swap. Its parent is the nearest
// cgroup above this process that gives its children the memory controller.
func limitMemory(bytes int64) (*cgroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	files := filesV2
	parent, err := memoryParent(cgroupMount, string(own))
	if err != nil {
		var errV1 error
		if parent, errV1 = memoryParentV1(cgroupMount, string(own)); errV1 != nil {
			return nil, errors.Join(err, errV1)
		}
		files = filesV1
	}
	dir, err := os.MkdirTemp(parent, "karve-bench-")
	if err != nil {
		return nil, fmt.Errorf("%w: %w (run as root, or under systemd-run --user --scope -p Delegate=yes)", errNoCgroup, err)
	}
	c := &cgroup{dir: dir, files: files}
	if err := c.limit(bytes); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// memoryParent finds the cgroup to make one in. own is the content of /proc/self/cgroup.
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

// memoryParentV1 does the same for version 1, whose memory hierarchy can limit memory in every
// cgroup.
func memoryParentV1(mount, own string) (string, error) {
	for line := range strings.Lines(own) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || !slices.Contains(strings.Split(fields[1], ","), "memory") {
			continue
		}
		dir := filepath.Join(mount, "memory", fields[2])
		if _, err := os.Stat(filepath.Join(dir, filesV1.limit)); err != nil {
			return "", fmt.Errorf("%w: %w", errNoCgroup, err)
		}
		return dir, nil
	}
	return "", fmt.Errorf("%w: there is no memory hierarchy of cgroup v1", errNoCgroup)
}

func (c *cgroup) limit(bytes int64) (err error) {
	text, withSwap := []byte(strconv.FormatInt(bytes, 10)), []byte("0")
	if c.files == filesV1 {
		withSwap = text // memory and swap together
	}
	if err := os.WriteFile(filepath.Join(c.dir, c.files.limit), text, 0o644); err != nil {
		return fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	// A kernel without swap has no such file.
	if err := writeThere(filepath.Join(c.dir, c.files.withSwap), withSwap); err != nil {
		return fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	if c.files == filesV1 {
		return nil
	}
	if c.file, err = os.Open(c.dir); err != nil {
		return fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	return nil
}

// writeThere writes a file if it exists. In a cgroup, the error of creating a file would not be
// os.ErrNotExist.
func writeThere(name string, text []byte) error {
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return os.WriteFile(name, text, 0o644)
}

// apply makes a command start in the cgroup. Only version 2 can fork into a cgroup; in version 1
// a shell enters the cgroup and then becomes the command.
func (c *cgroup) apply(cmd *exec.Cmd) error {
	if c.files == filesV2 {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(c.file.Fd())
		return nil
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		return fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	cmd.Args = append([]string{shell, "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(c.dir, "cgroup.procs"), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = shell
	return nil
}

// peak is the largest memory use so far, in bytes, or -1 where the kernel (before 5.19) does not
// report it.
func (c *cgroup) peak() (int64, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, c.files.peak))
	if errors.Is(err, os.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// close removes the cgroup. It retries, because a process in it may be about to end.
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

// parseSize parses a number of bytes such as 200M or 1G. The units are powers of 1024, as in
// systemd and Docker.
func parseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "KMG")
	shift := map[string]int{"": 0, "K": 10, "M": 20, "G": 30}
	by, known := shift[text[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n <= 0 || n > 1<<62>>by {
		return 0, fmt.Errorf("%q is not a size, want a number of bytes such as 200M", text)
	}
	return n << by, nil
}
