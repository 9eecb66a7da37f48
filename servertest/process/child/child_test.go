package child

import (
	"context"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

const limit = time.Minute // generous: the machine may be busy

func start(t *testing.T, script string) (*Process, *Ready, *strings.Builder) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	var printed strings.Builder
	ready := NewReady(regexp.MustCompile(`(?m)^ready at (\S+)\n`), &printed)
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdout = ready
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p, ready, &printed
}

func TestReadyAndStop(t *testing.T) {
	p, ready, printed := start(t, "echo starting; echo ready at port; exec sleep 1000")
	match, err := p.Await(t.Context(), ready, limit)
	if err != nil || match[1] != "port" || !p.Running() {
		t.Fatalf("got %q, %v, running %v, want the port of a process that runs", match, err, p.Running())
	}
	if err := p.Stop(limit); err != nil || p.Running() {
		t.Errorf("stop: %v, running %v", err, p.Running())
	}
	if printed.String() != "starting\nready at port\n" {
		t.Errorf("passed on %q", printed)
	}
	if err := p.Kill(); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("kill after the end: %v", err)
	}
}

func TestEndsThatAreErrors(t *testing.T) {
	p, ready, _ := start(t, "exit 3")
	if _, err := p.Await(t.Context(), ready, limit); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a process that fails: %v", err)
	}
	p, ready, _ = start(t, "exec sleep 1000")
	if _, err := p.Await(t.Context(), ready, time.Millisecond); err == nil || p.Running() {
		t.Errorf("a process that is never ready: %v, running %v", err, p.Running())
	}
	p, ready, _ = start(t, "exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Await(ctx, ready, limit); err == nil || p.Running() {
		t.Errorf("a context that has ended: %v, running %v", err, p.Running())
	}
	p, ready, _ = start(t, "trap '' TERM; echo ready at x; while :; do sleep 1; done")
	if _, err := p.Await(t.Context(), ready, limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "still runs") || p.Running() {
		t.Errorf("a process that ignores SIGTERM: %v, running %v", err, p.Running())
	}
}
