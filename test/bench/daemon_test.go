package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentVariable makes this test a benchmark that starts a daemon and waits.
const parentVariable = "BENCH_TEST_PARENT"

// TestDaemonDiesWithItsParent: nothing is left when the benchmark is killed.
func TestDaemonDiesWithItsParent(t *testing.T) {
	if dir := os.Getenv(parentVariable); dir != "" {
		d, err := startDaemon(dir, "sleep", "/bin/sleep", "1000")
		if err != nil {
			t.Fatal(err)
		}
		os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(d.PID())), 0o600)
		os.Stdout.WriteString("started\n")
		time.Sleep(time.Minute)
		return
	}
	dir := t.TempDir()
	parent := exec.Command(exe(t), "-test.run", "^TestDaemonDiesWithItsParent$")
	parent.Env = append(os.Environ(), parentVariable+"="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	bufio.NewReader(out).ReadString('\n')
	parent.Process.Kill()
	parent.Wait()
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		// It may stay a zombie, because a container may have no process that waits for it.
		stat, err := os.ReadFile(filepath.Join("/proc", string(text), "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	t.Error("the daemon has outlived its parent by two seconds")
}

func TestDaemonStopsAndFails(t *testing.T) {
	dir := t.TempDir()
	d, err := startDaemon(dir, "sleep", "/bin/sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Kill()
	if err := d.failed(); err != nil {
		t.Errorf("running daemon: %v", err)
	}
	if err := d.stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	broken, err := startDaemon(dir, "broken", "/bin/sh", "-c", "echo no such flag; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	<-broken.Ended()
	if err := broken.failed(); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("daemon that has failed: %v, want its status and last lines", err)
	}
}
