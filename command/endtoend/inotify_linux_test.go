package endtoend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// inNamespace makes p, which has not begun, run in a user namespace with at most limit inotify instances.
func (p *process) inNamespace(limit int) {
	p.cmd.Args = append([]string{"sh", "-c", `echo "$0" >/proc/sys/user/max_inotify_instances && exec "$@"`, fmt.Sprint(limit), p.cmd.Path}, p.cmd.Args[1:]...)
	p.cmd.Path = "/bin/sh"
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
}

var problems = regexp.MustCompile(`(?m)^.*level=(warning|error|fatal).*$`)

// A server has at most two inotify instances: a user has 128, for all servers, editors and tests. Where none is left, it
// serves all the same, and says so once.
func TestInotifyInstances(t *testing.T) {
	parallel(t)
	probe := &process{t: t, cmd: command(t, "true")}
	probe.cmd.Path = "/bin/true"
	probe.inNamespace(0)
	if said, err := probe.cmd.CombinedOutput(); err != nil {
		t.Skipf("no user namespace with a limit of its own can be made: %v, %s", err, said)
	}
	for limit, want := range map[int]int{0: 1, 2: 0} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			p := prepare(t, "karve", nil, "server", "--data-dir", filepath.Join(t.TempDir(), "data"), "--secure-port", "0", "--insecure-port", "-1", "--simulate-nodes", "3")
			p.inNamespace(limit)
			p.begin()
			p.waitReady()
			const told = "raise the sysctl fs.inotify.max_user_instances"
			p.poll("the log says that there is no instance", func() error {
				if want > 0 && !strings.Contains(p.stderr.String(), told) {
					return errors.New("it does not")
				}
				return nil
			})
			if n := p.instances(); n > limit {
				t.Errorf("got %d inotify instances, want at most %d", n, limit)
			}
			p.stop()
			if lines := problems.FindAllString(p.stderr.String(), -1); len(lines) != want || want > 0 && !strings.Contains(lines[0], told) {
				t.Errorf("got %d warnings and errors, want %d:\n%s", len(lines), want, strings.Join(lines, "\n"))
			}
		})
	}
}

// instances returns how many inotify instances the process has.
func (p *process) instances() int {
	p.t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	if err != nil || len(links) == 0 {
		p.t.Fatalf("the descriptors of process %d: %v", p.cmd.Process.Pid, err)
	}
	n := 0
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.Contains(to, "inotify") && strings.HasPrefix(to, "anon_inode:") {
			n++
		}
	}
	return n
}
