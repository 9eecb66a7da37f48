package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// The packages of the peers. go.mod has them as tools, with their versions.
const (
	etcdPackage          = "go.etcd.io/etcd/server/v3"
	kubeAPIServerPackage = "k8s.io/kubernetes/cmd/kube-apiserver"
	kubernetesVersion    = "v1.37.2"
)

// buildGrace is how long a compilation may take to end after an interrupt.
const buildGrace = 5 * time.Second

// buildDir is the directory of this program, build/ in the repository: scripts/bench puts it
// there, and git ignores it.
func buildDir() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own binary: %w", err)
	}
	return filepath.Dir(own), nil
}

// chosenKarve returns the absolute path of the binary that was asked for, because each server has a
// working directory of its own. Without one, it builds what a user would install.
func chosenKarve(ctx context.Context, binary string, stderr io.Writer) (string, error) {
	if binary != "" {
		return filepath.Abs(binary)
	}
	dir, err := buildDir()
	if err != nil {
		return "", err
	}
	output := filepath.Join(dir, "karve")
	return output, build(ctx, stderr, "karve", exec.CommandContext(ctx, filepath.Join(filepath.Dir(dir), "scripts", "build"), output))
}

// buildPeer builds what Karve is compared with, with the same options as Karve.
func buildPeer(ctx context.Context, stderr io.Writer, name, pkg, ldflags string) (string, error) {
	dir, err := buildDir()
	if err != nil {
		return "", err
	}
	output := filepath.Join(dir, "peers", name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w "+ldflags, "-o", output, pkg)
	cmd.Dir = filepath.Join(filepath.Dir(dir), "test")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return output, build(ctx, stderr, name, cmd)
}

// build runs a compilation.
func build(ctx context.Context, stderr io.Writer, name string, cmd *exec.Cmd) error {
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = buildGrace
	fmt.Fprintf(stderr, "build %s (minutes the first time)\n", name)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("build %s: %w", name, err)
	}
	return nil
}
