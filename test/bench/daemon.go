package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/servertest/process/child"
	"github.com/karve-k8s/karve/test/bench/machine"
)

// killTimeout is how long a control plane may take to stop.
const killTimeout = 30 * time.Second

// A daemon is a server process. The kernel kills it when the benchmark is killed.
type daemon struct {
	*child.Process
	name, log string
}

// startDaemon starts a binary. A file in dir gets its output.
func startDaemon(dir, name, binary string, args ...string) (*daemon, error) {
	d := &daemon{name: name, log: filepath.Join(dir, name+".log")}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	child.EndWithParent(cmd)
	cmd.SysProcAttr.Setpgid = true // it does not get Ctrl-C: the benchmark stops it
	if d.Process, err = child.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return d, nil
}

// failed returns an error if the daemon has ended by itself, and nil while it runs.
func (d *daemon) failed() error {
	if d.Running() {
		return nil
	}
	said, _ := os.ReadFile(d.log)
	lines := bytes.Split(bytes.TrimSpace(said), []byte("\n"))
	return fmt.Errorf("%s has ended (%v), its last lines:\n%s",
		d.name, d.State(), bytes.Join(lines[max(0, len(lines)-5):], []byte("\n")))
}

// stop sends SIGTERM and waits until the daemon has ended.
func (d *daemon) stop(ctx context.Context) error {
	if err := d.failed(); err != nil {
		return err
	}
	if err := d.Stop(killTimeout); err != nil {
		return fmt.Errorf("stop %s: %w", d.name, err)
	}
	return context.Cause(ctx)
}

// A cluster is a running control plane.
type cluster struct {
	began   time.Time // when its first process was started
	options []string  // of Karve, for this start
	daemons []*daemon // in the order of their start
	host    string    // host:port of the secure listener
	etcd    string    // URL of its etcd; empty: it has none
	certs   string    // directory with admin.crt, admin.key and server-ca.crt

	group *machine.Group // of its processes; nil: the benchmark's own
}

// start starts one of its processes.
func (c *cluster) start(dir, name, binary string, args ...string) error {
	if c.group != nil {
		binary, args = c.group.Command(binary, args)
	}
	d, err := startDaemon(dir, name, binary, args...)
	if err != nil {
		return err
	}
	c.daemons = append(c.daemons, d)
	return nil
}

// sampleMemory samples the anonymous memory of all processes until stop is called. stop returns the largest
// sample, in bytes.
func (c *cluster) sampleMemory(ctx context.Context, every time.Duration) (stop func() float64) {
	ctx, cancel := context.WithCancel(ctx)
	most := make(chan float64)
	go func() {
		peak := 0.0
		for pause(ctx, every) == nil {
			if parts, err := c.each(machine.AnonymousMemory); err == nil {
				peak = max(peak, sum(parts))
			}
		}
		most <- peak
	}()
	return sync.OnceValue(func() float64 { cancel(); return <-most })
}

// file is the path of a certificate (.crt) or a key (.key).
func (c *cluster) file(name certs.Name, ext string) string {
	return filepath.Join(c.certs, string(name)+ext)
}

// config is that of a client without a rate limit, which has the administrator's certificate.
func (c *cluster) config() *rest.Config {
	return &rest.Config{
		Host: "https://" + c.host,
		QPS:  -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: c.file(certs.ServerCA, ".crt"), CertFile: c.file(certs.Admin, ".crt"), KeyFile: c.file(certs.Admin, ".key"),
		},
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
	}
}

// stop ends the processes, the last one first, and returns how long that took.
func (c *cluster) stop(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for i := len(c.daemons) - 1; i >= 0; i-- {
		if err := c.daemons[i].stop(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// kill ends every process with SIGKILL, and removes their control group.
func (c *cluster) kill() {
	for _, d := range c.daemons {
		_ = d.Kill() // it may have ended
	}
	if c.group != nil {
		if err := c.group.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
}

// failed returns an error if a process has ended by itself.
func (c *cluster) failed() error {
	var errs []error
	for _, d := range c.daemons {
		errs = append(errs, d.failed())
	}
	return errors.Join(errs...)
}

// each reads a figure of each process.
func (c *cluster) each(read func(pid int) (int64, error)) (parts []float64, err error) {
	for _, d := range c.daemons {
		n, err := read(d.PID())
		if err != nil {
			return nil, errors.Join(err, d.failed())
		}
		parts = append(parts, float64(n))
	}
	return parts, nil
}

// memory adds a size of the processes, in bytes.
func (c *cluster) memory(s *sample, row string, read func(pid int) (int64, error)) error {
	parts, err := c.each(read)
	s.add(row, bytesOf, parts...)
	return err
}

// cpu is the CPU time that its processes have used.
func (c *cluster) cpu() (time.Duration, error) {
	parts, err := c.each(func(pid int) (int64, error) {
		t, err := machine.CPUTime(pid)
		return int64(t), err
	})
	return time.Duration(sum(parts)), err
}
