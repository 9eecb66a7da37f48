package servers

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

// Whoever opens a pipe without a writer waits for one.
func TestKubeconfigThatIsAPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, KubeconfigName), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Kubeconfig(dir); !errors.Is(err, ErrUnlike) {
		t.Errorf("got %v, want ErrUnlike", err)
	}
}
