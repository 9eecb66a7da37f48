//go:build unix

package certs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A FIFO would keep the merge waiting, and its rename would replace a device.
func TestMergeIntoWhatIsNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("fifo", link); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{fifo, link, os.DevNull, dir} {
		if _, err := MergeKubeconfig(t.Context(), to, nil, MergeOptions{}); err == nil || !strings.Contains(err.Error(), to+" is not a regular file") {
			t.Errorf("%s: got %v", to, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.lock")); len(left) > 0 {
		t.Errorf("locks are left: %v", left)
	}
}
