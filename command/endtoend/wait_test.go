package endtoend

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// It may begin before the server, and ends when that is ready.
func TestWait(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	waiting := command(t, "karve", "wait", "--data-dir", dir)
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { waiting.Process.Kill() })
	launched := launch(t, dir, bare...)
	if err := waiting.Wait(); err != nil {
		t.Errorf("karve wait: %v", err)
	}
	karve(t, "status", "--data-dir", dir)
	launched.stop()
	began := time.Now()
	got := finish(t, command(t, "karve", "wait", "--data-dir", dir, "--timeout", "300ms"))
	if got.code != 1 || !strings.Contains(got.stderr, "not ready after 300ms") || !strings.Contains(got.stderr, "stopped: no server runs with --data-dir "+dir) {
		t.Errorf("after %v: got code %d and %s, want 1 and that the server is stopped", time.Since(began), got.code, got.stderr)
	}
}
