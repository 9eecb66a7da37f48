package certs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Several programs may change a kubeconfig at once: none of their changes is lost, whatever name they have for
// the file.
func TestMergesAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, real, link := filepath.Join(dir, "src"), filepath.Join(dir, "real"), filepath.Join(dir, "link")
	fatal(t, WriteKubeconfig(src, Kubeconfig{Server: "http://127.0.0.1:1"}))
	fatal(t, os.Symlink("real", link))
	text := []byte(read(t, src))
	const merges = 10
	errs := make(chan error)
	for i := range merges {
		go func() {
			_, err := MergeKubeconfig(t.Context(), []string{real, link}[i%2], text, MergeOptions{Name: fmt.Sprint("c", i)})
			errs <- err
		}()
	}
	for range merges {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := len(mustLoad(t, real).Contexts); got != merges {
		t.Errorf("got %d contexts, want %d", got, merges)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.lock")); err != nil || len(left) > 0 {
		t.Errorf("locks are left: %v (%v)", left, err)
	}
}

// While kubectl changes a kubeconfig, FILE.lock is there.
func TestMergeWaitsForKubectl(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	fatal(t, WriteKubeconfig(src, Kubeconfig{Server: "http://127.0.0.1:1"}))
	lock := dst + ".lock"
	fatal(t, os.WriteFile(lock, nil, 0o600))
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := MergeKubeconfig(ended, dst, []byte(read(t, src)), MergeOptions{}); err == nil || !strings.Contains(err.Error(), lock+" is there") {
		t.Errorf("got %v, want the lock's name", err)
	}
	if _, err := os.Stat(dst); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kubeconfig is written beside the lock (%v)", err)
	}
	merged, text := make(chan error), []byte(read(t, src))
	go func() {
		_, err := MergeKubeconfig(t.Context(), dst, text, MergeOptions{})
		merged <- err
	}()
	fatal(t, os.Remove(lock))
	if err := <-merged; err != nil {
		t.Errorf("after the lock is gone: %v", err)
	}
}
