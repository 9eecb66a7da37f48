package endtoend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The paths of the sockets are longer than the kernel takes.
func TestLongPaths(t *testing.T) {
	parallel(t)
	dir := filepath.Join(tempDir(t), strings.Repeat("x", 70))
	temp := filepath.Join(dir, strings.Repeat("y", 70))
	if err := os.MkdirAll(temp, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	run := command(t, "karve", append(append([]string{"run"}, bare...), "--", "echo", "ran")...)
	run.Env = append(run.Env, "TMPDIR="+temp)
	if got := succeed(t, run); got != "ran\n" {
		t.Errorf("karve run with a TMPDIR of %d characters: got %q", len(temp), got)
	}
	data := filepath.Join(temp, "data")
	p := launchWith(t, data, []string{"TMPDIR=" + temp}, bare...).waitReady()
	for _, args := range [][]string{
		{"status", "--data-dir", data},                                   // the control socket
		{"datastore", "compact", "--data-dir", data},                     // the etcd API
		{"snapshot", "--data-dir", data, filepath.Join(dir, "snapshot")}, // both
		{"kubectl", "--data-dir", data, "get", "namespace", "-o", "name"},
	} {
		karve(t, args...)
	}
	p.stop()
	if left, err := filepath.Glob(filepath.Join(temp, "karve-*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left behind: %v (%v)", left, err)
	}
	if left, err := filepath.Glob(filepath.Join(data, "*.sock")); err != nil || len(left) > 0 {
		t.Errorf("sockets are left behind: %v (%v)", left, err)
	}
}
