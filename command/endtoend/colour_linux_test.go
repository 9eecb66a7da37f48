package endtoend

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore/directory"
)

// onTerminal runs a command whose standard output is a terminal, and returns what that shows.
func onTerminal(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	at := newPTY(t)
	cmd.Stdout = at.terminal
	_ = cmd.Run() // the exit codes of status have a meaning
	return strings.ReplaceAll(at.all(), "\r\n", "\n")
}

func TestColours(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	const yellow = "\x1b[33mstarting\x1b[0m"
	run := func(env string, args ...string) string {
		cmd := command(t, "karve", append(args, "--data-dir", dir)...)
		cmd.Env = append(cmd.Env, env)
		return onTerminal(t, cmd)
	}
	if got := run("TERM=xterm", "status"); !strings.Contains(got, yellow+"\n") {
		t.Errorf("on a terminal: got %q, want %q", got, yellow)
	}
	for _, got := range []string{run("NO_COLOR=1", "status"), run("TERM=dumb", "status"), run("TERM=xterm", "status", "-o", "json"), finish(t, command(t, "karve", "status", "--data-dir", dir)).stdout} {
		if !strings.Contains(got, "starting") || strings.Contains(got, "\x1b") {
			t.Errorf("without colours: got %q", got)
		}
	}
	// Colours do not shift the columns.
	got := run("TERM=xterm", "check", "--secure-port", "0", "--insecure-port", "-1")
	plain := regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(got, "")
	at := strings.Index(plain, "FOUND")
	for line := range strings.Lines(plain) {
		if at < 1 || len(line) <= at || line[at-1] != ' ' || line[at] == ' ' {
			t.Errorf("got %q, want a column at %d", line, at)
		}
	}
	if want := "\x1b[31mfail\x1b[0m"; !strings.Contains(got, want) { // the directory is in use
		t.Errorf("got %q, want %q in it", got, want)
	}
}
