//go:build unix

package endtoend

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

// runDirPrefix begins the names of the temporary directories of karve run.
const runDirPrefix = "karve-run-"

// runs starts karve run with a script that prints "up", and waits for that.
func runs(t *testing.T, temp, script string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, "karve", append(append([]string{"run"}, bare...), "--", "sh", "-c", script)...)}
	p.cmd.Env = append(p.cmd.Env, "TMPDIR="+temp)
	p.cmd.WaitDelay = patience                             // of children that have its output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal, which would send Ctrl-C to all
	p.begin()
	p.poll("the command", func() error {
		if !strings.Contains(p.stdout.String(), "up") {
			return fmt.Errorf("it has printed %q", p.stdout.String())
		}
		return nil
	})
	if left := runDirs(t, temp); len(left) == 0 {
		t.Error("there is no temporary directory: nothing is tested")
	}
	return p
}

func runDirs(t *testing.T, temp string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(temp, runDirPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// The directory has the keys of the cluster's authorities: no signal leaves it behind.
func TestRunLeavesNothingAfterSignals(t *testing.T) {
	long(t)
	parallel(t)
	if signal.Ignored(syscall.SIGHUP) {
		// Under nohup; and children inherit that, but not a handler.
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(hangups) })
	}
	const stubborn = `trap "echo heard" INT TERM HUP; echo up $$; while :; do sleep 0.1; done`
	for name, test := range map[string]struct {
		script  string
		signals []syscall.Signal
		code    int
	}{
		"SIGHUP":                  {`trap "exit 5" HUP; echo up; while :; do sleep 0.1; done`, []syscall.Signal{syscall.SIGHUP}, 5},
		"SIGHUP, twice":           {`trap "exit 5" HUP; echo up; while :; do sleep 0.1; done`, []syscall.Signal{syscall.SIGHUP, syscall.SIGHUP}, 5},
		"SIGINT, twice":           {stubborn, []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, exitSignal + int(syscall.SIGINT)},
		"SIGHUP and then SIGTERM": {stubborn, []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM}, exitSignal + int(syscall.SIGTERM)},
	} {
		t.Run(name, func(t *testing.T) {
			temp := tempDir(t)
			p := runs(t, temp, test.script)
			for i, s := range test.signals {
				if i > 0 && test.script == stubborn { // two of a kind at a time would be one
					p.poll("the command to hear of the first", func() error {
						if !strings.Contains(p.stdout.String(), "heard") {
							return fmt.Errorf("it has printed %q", p.stdout.String())
						}
						return nil
					})
				}
				p.signal(s)
			}
			if code := p.wait(patience); code != test.code {
				t.Errorf("code %d, want %d; stderr %q", code, test.code, p.stderr.String())
			}
			if left := runDirs(t, temp); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			var pid int
			if n, _ := fmt.Sscanf(p.stdout.String(), "up %d", &pid); n == 1 {
				eventually.Nil(t, "the end of the command", func() error {
					if syscall.Kill(pid, 0) == nil {
						return fmt.Errorf("process %d is there", pid)
					}
					return nil
				})
			}
		})
	}
}

// What kill -9 leaves, the next karve run removes at once, and nothing that is in use, or that another one has
// just made.
func TestRunSweepsWhatAKilledOneLeft(t *testing.T) {
	long(t)
	parallel(t)
	temp := t.TempDir()
	const wait = `echo up; while kill -0 $PPID 2>/dev/null; do sleep 0.1; done`
	used := runs(t, temp, wait)
	killed := runs(t, temp, wait)
	before := runDirs(t, temp)
	killed.kill()
	const new, byOthers = runDirPrefix + "new", runDirPrefix + "by-others"
	for _, name := range []string{new, byOthers} {
		if err := os.Mkdir(filepath.Join(temp, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(temp, new, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Minute)
	if err := os.Chtimes(filepath.Join(temp, byOthers), old, old); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, "karve", append(append([]string{"run"}, bare...), "--", "true")...)
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	if got := finish(t, cmd); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	left := runDirs(t, temp)
	if len(before) != 2 || len(left) != 3 || !slices.Contains(left, filepath.Join(temp, new)) || !slices.Contains(left, filepath.Join(temp, byOthers)) {
		t.Errorf("left: %v, before: %v; want the one in use, the new one, and the one without a lock", left, before)
	}
	used.signal(syscall.SIGTERM)
	used.wait(patience)
	if left := runDirs(t, temp); len(left) != 2 {
		t.Errorf("left: %v, want the new one, and the one without a lock", left)
	}
}
