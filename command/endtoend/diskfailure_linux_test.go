package endtoend

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// failFsync makes every fsync of a running process fail with EIO, until the process
// or the test ends.
func failFsync(t *testing.T, pid int) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: no way to make a disk fail")
	}
	said := &output{}
	cmd := exec.Command(strace, "-f", "-p", fmt.Sprint(pid), "-o", os.DevNull,
		"-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO")
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	for deadline := time.Now().Add(patience); !strings.Contains(said.String(), "attached"); time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			t.Skipf("strace may not trace a process here: %s", said.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("strace: %s", said.String())
		}
	}
}

// A disk that fails ends the server, which says so; what it wrote before is there
// after the next start.
func TestDiskFailureEndsTheServer(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir(), bare...)
	namespaces := client(t, p.config()).CoreV1().Namespaces()
	create := func(name string) error {
		_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	if err := create("before"); err != nil {
		t.Fatal(err)
	}
	failFsync(t, p.cmd.Process.Pid)
	if err := create("lost"); err == nil {
		t.Error("a write was acknowledged while fsync fails")
	}
	began := time.Now()
	if code := p.wait(30 * time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	t.Logf("the server ended %v after the write", time.Since(began).Round(time.Millisecond))
	var said []string
	for line := range strings.Lines(p.stderr.String()) {
		if strings.HasPrefix(line, "karve: ") {
			said = append(said, line)
		}
	}
	want := regexp.MustCompile(`^karve: datastore: the disk has failed: .*` + regexp.QuoteMeta(p.dir) + `/mvcc\.db: .*(?:disk I/O|input/output) error`)
	if len(said) != 1 || !want.MatchString(said[0]) {
		t.Errorf("it said %q, want one line %s", said, want)
	}
	if trace := stack(p.stderr.String()); trace != "" {
		t.Errorf("standard error has a stack: %s", trace)
	}

	p = start(t, p.dir, bare...)
	if _, err := client(t, p.config()).CoreV1().Namespaces().Get(t.Context(), "before", metav1.GetOptions{}); err != nil {
		t.Errorf("what was written before the failure: %v", err)
	}
}
