package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// A server is a karve process with a data directory of its own.
type server struct {
	cmd        *exec.Cmd
	gone       chan struct{}
	kubeconfig string
	log        string
}

// start returns when the server is ready. It adds env to the environment, and more to the arguments.
func (s *suite) start(ctx context.Context, dir string, nodes int, env []string, more ...string) (*server, error) {
	data := filepath.Join(dir, "data")
	v := &server{gone: make(chan struct{}), kubeconfig: filepath.Join(data, "admin.kubeconfig"), log: filepath.Join(dir, "karve.log")}
	log, err := os.Create(v.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{"server", "--data-dir", data, "--bind-address", "127.0.0.1", "--secure-port", "0", "--insecure-port", "0",
		// Two tests wait for a round of each of these; by default a round takes five
		// minutes, and one test waits ten.
		"--kube-apiserver-arg", "etcd-compaction-interval=30s", "--kube-controller-manager-arg", "resource-quota-sync-period=30s"}
	if nodes > 0 {
		args = append(args, "--simulate-nodes", strconv.Itoa(nodes))
	}
	v.cmd = exec.Command(s.karve, append(args, more...)...)
	v.cmd.Env = append(os.Environ(), env...)
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	v.cmd.Stdout, v.cmd.Stderr = log, log
	if err := v.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start karve: %w", err)
	}
	go func() {
		v.cmd.Wait()
		close(v.gone)
	}()
	// It writes the kubeconfig when it is ready.
	for limit := time.After(2 * time.Minute); ; {
		if _, err := os.Stat(v.kubeconfig); err == nil {
			return v, nil
		}
		select {
		case <-v.gone:
			err = fmt.Errorf("karve ended: %v", v.cmd.ProcessState)
		case <-limit:
			err = fmt.Errorf("karve is not ready")
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(20 * time.Millisecond):
			continue
		}
		v.stop()
		said, _ := os.ReadFile(v.log)
		return nil, fmt.Errorf("%w; its log: %s", err, tail(said))
	}
}

func (v *server) stop() {
	v.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-v.gone:
	case <-time.After(time.Minute):
		v.cmd.Process.Kill()
		<-v.gone
	}
}

// keepLog copies the log to the file kept, where someone looks for it after a failure.
func (v *server) keepLog(kept string, stderr io.Writer) {
	said, err := os.ReadFile(v.log)
	if err == nil {
		err = os.WriteFile(kept, said, 0o600)
	}
	if err != nil {
		fmt.Fprintln(stderr, "keep karve's log:", err)
		return
	}
	fmt.Fprintln(stderr, "karve's log is", kept)
}
