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

// The directory has the keys of the cluster's authorities: a stop leaves nothing of it behind.
func TestRunLeavesNothingAfterSignals(t *testing.T) {
	long(t)
	parallel(t)
	if signal.Ignored(syscall.SIGHUP) {
		// Under nohup; and children inherit that, but not a handler.
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(hangups) })
	}
	for name, signals := range map[string][]syscall.Signal{
		"SIGHUP":        {syscall.SIGHUP},
		"SIGHUP, twice": {syscall.SIGHUP, syscall.SIGHUP},
	} {
		t.Run(name, func(t *testing.T) {
			temp := tempDir(t)
			p := runs(t, temp, `trap "exit 5" HUP; echo up; while :; do sleep 0.1; done`)
			for _, s := range signals {
				p.signal(s)
			}
			if code := p.wait(patience); code != 5 {
				t.Errorf("code %d, want 5; stderr %q", code, p.stderr.String())
			}
			if left := runDirs(t, temp); len(left) > 0 {
				t.Errorf("left behind: %v", left)
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
