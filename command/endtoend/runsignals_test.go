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

	"github.com/karve-k8s/karve/datastore/directory"
)

// runDirPrefix begins the names of the temporary directories of karve run.
const runDirPrefix = "karve-run-"

// runs starts karve run with a script that prints "up", and waits for that.
func runs(t *testing.T, temp, script string) *process {
	t.Helper()
	return runsAt(t, nil, temp, script)
}

// runsAt is runs at a terminal, or at none.
func runsAt(t *testing.T, terminal *os.File, temp, script string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, "karve", append(append([]string{"run"}, bare...), "--", "sh", "-c", script)...)}
	p.cmd.Env = append(p.cmd.Env, "TMPDIR="+temp)
	p.cmd.WaitDelay = patience // of children that have its output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: terminal != nil}
	if terminal != nil {
		p.cmd.Stdin = terminal // of which Setctty makes the process' terminal
	}
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
		"SIGHUP":          {syscall.SIGHUP},
		"SIGHUP, twice":   {syscall.SIGHUP, syscall.SIGHUP},
		"SIGTERM, twice":  {syscall.SIGTERM, syscall.SIGTERM}, // as GNU timeout does
		"SIGINT, SIGTERM": {syscall.SIGINT, syscall.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			temp := tempDir(t)
			p := runs(t, temp, `trap "exit 5" HUP INT TERM; echo up; while :; do sleep 0.1; done`)
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
	const new, kept = runDirPrefix + "1", runDirPrefix + "2"
	if err := os.Mkdir(filepath.Join(temp, new), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := directory.Acquire(filepath.Join(temp, kept)) // as a data directory has one
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	cmd := command(t, "karve", append(append([]string{"run"}, bare...), "--", "true")...)
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	if got := finish(t, cmd); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	left := runDirs(t, temp)
	if len(before) != 2 || len(left) != 3 || !slices.Contains(left, filepath.Join(temp, new)) || !slices.Contains(left, filepath.Join(temp, kept)) {
		t.Errorf("left: %v, before: %v; want the one in use, the new one, and the user's data directory", left, before)
	}
	used.signal(syscall.SIGTERM)
	used.wait(patience)
	if left := runDirs(t, temp); len(left) != 2 {
		t.Errorf("left: %v, want the new one, and the user's data directory", left)
	}
}

// The exit code is the command's, whatever becomes of the temporary directory.
func TestRunThatCannotRemoveItsDirectory(t *testing.T) {
	parallel(t)
	cmd := command(t, "karve", append(append([]string{"run"}, bare...), "--", "sh", "-c",
		`cd "${KARVE_DATA_DIR%/*}"; mkdir stuck; touch stuck/file; chmod 500 stuck; pwd`)...)
	if os.Geteuid() == 0 {
		nobody(t, cmd) // root could remove it
	}
	got := finish(t, cmd)
	dir := strings.TrimSpace(got.stdout)
	if got.code != 0 || !strings.Contains(got.stderr, "could not be removed") || !strings.Contains(got.stderr, "remove "+dir+"\n") || strings.Contains(got.stderr, "server's log") {
		t.Errorf("code %d, stderr %q; want 0, and the directory to remove", got.code, got.stderr)
	}
	if err := os.Chmod(filepath.Join(dir, "stuck"), 0o700); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("left are %q, %v; want what could not be removed", left, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
