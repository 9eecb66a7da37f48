package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Runner runs a program, and returns what it wrote to standard output. Its error has what the
// program said last.
type Runner func(ctx context.Context, name string, args ...string) (string, error)

// Run is the [Runner] of this machine. The program gets no variable KARVE_…, which karve would
// prefer to its configuration file.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	return RunFor(ctx, 2*time.Second, nil, name, args...)
}

// RunFor is [Run] with more variables, for a program that may take up to wait to end when ctx does.
func RunFor(ctx context.Context, wait time.Duration, env []string, name string, args ...string) (string, error) {
	file, err := lookPath(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, file, args...)
	apart(cmd)
	cmd.WaitDelay = wait
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KARVE_") }),
		append(env, "LC_ALL=C", "PATH="+os.Getenv("PATH")+":"+strings.Join(systemDirs, ":"))...)
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it succeeded, and a service that it started keeps its output open
	}
	if err != nil {
		err = fmt.Errorf("%s: %w%s", strings.Join(append([]string{filepath.Base(name)}, args...), " "), err, said(stderr.String(), stdout.String()))
	}
	return stdout.String(), err
}

// said is the last line that a failed program wrote.
func said(outputs ...string) string {
	for _, o := range outputs {
		lines := strings.Split(strings.TrimSpace(o), "\n")
		if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
			return ": " + last
		}
	}
	return ""
}

// systemDirs are not in the PATH of everybody who becomes root, such as by `su`.
var systemDirs = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// Has reports whether a program is installed.
func Has(name string) bool {
	_, err := lookPath(name)
	return err == nil
}

// Runs reports whether a process runs that this user could end.
func Runs(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && p.Signal(syscall.Signal(0)) == nil
}

func lookPath(name string) (string, error) {
	file, err := exec.LookPath(name)
	for _, dir := range systemDirs {
		if err == nil {
			break
		}
		if found, e := exec.LookPath(filepath.Join(dir, name)); e == nil {
			return found, nil
		}
	}
	return file, err
}
