package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	rowCold = "cold, empty data directory"
	rowWarm = "warm, existing data directory"
	rowStop = "stop (SIGTERM → gone)"
	rowRun  = "karve run -- kubectl get namespaces"
)

// born are the paths that have to answer before a cluster counts as started.
var born = []string{
	"/readyz",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin",
	"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cluster-admin",
	"/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings/system::leader-locking-kube-scheduler",
	"/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public/rolebindings/system:controller:bootstrap-signer",
	"/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
	"/api/v1/namespaces/default",
	"/api/v1/namespaces/kube-system",
	"/api/v1/namespaces/kube-public",
	"/api/v1/namespaces/kube-node-lease",
	"/api/v1/namespaces/default/services/kubernetes",
}

const defaultServiceAccount = "/api/v1/namespaces/default/serviceaccounts/default"

// start is the command bench start.
func start(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmp := newComparison("start", 5, []string{"cold", "warm", "run", "large"}, stdout, stderr)
	cmp.only = []string{"cold", "warm", "run"} // large takes minutes
	objects := cmp.flags.Int("objects", 300000, "number of ConfigMaps of 1 KB in the store of -only large")
	if err := cmp.parse(args); err != nil {
		return err
	}
	cmp.setting = fmt.Sprintf("from the start of the process until /readyz is ok and every object of a new cluster exists, polled every %v", pollEvery)
	cmp.notes = "etcd + kube-apiserver: without controllers and scheduler, and so without the default ServiceAccount.\n" +
		"karve run: from an empty directory until the process has ended and nothing of the cluster is left; kubectl is karve's.\n" +
		"stop: after warm starts, without clients.\n" +
		"CPU: of all processes until then. It can be compared on a busy machine too.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return cmp.measureStart(ctx, p, dir, s, *objects)
	})
}

func (cmp *comparison) measureStart(ctx context.Context, p *peer, dir string, s *sample, objects int) error {
	if cmp.wants("cold") || cmp.wants("warm") {
		if err := p.startOnce(ctx, dir, s, rowCold); err != nil {
			return err
		}
	}
	if cmp.wants("warm") {
		if err := p.startOnce(ctx, dir, s, rowWarm); err != nil {
			return err
		}
	}
	if cmp.wants("run") && p.controllers { // etcd + kube-apiserver have no such command
		if err := cmp.runOnce(ctx, p, dir, s); err != nil {
			return err
		}
	}
	if cmp.wants("large") {
		return cmp.startLarge(ctx, p, filepath.Join(dir, "large"), s, objects)
	}
	return nil
}

// runOnce runs karve run, which starts a cluster for the time of a command.
func (cmp *comparison) runOnce(ctx context.Context, p *peer, dir string, s *sample) error {
	began := time.Now()
	cmd := exec.CommandContext(ctx, p.binaries[0], "run", "--", "kubectl", "get", "namespaces", "--output", "name")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.Stderr = cmp.stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("karve run: %w", err)
	}
	if want := "namespace/kube-system"; !strings.Contains(string(out), want) {
		return fmt.Errorf("karve run: printed %q, without %s", out, want)
	}
	s.add(rowRun, perOp, time.Since(began).Seconds())
	s.add(rowRun, cpuPerOp, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	return nil
}

// startOnce starts the control plane and stops it again.
func (p *peer) startOnce(ctx context.Context, dir string, s *sample, row string) error {
	c, probe, err := p.startReady(ctx, dir)
	if err != nil {
		return err
	}
	defer c.kill()
	defer probe.close()
	if err := c.started(s, row); err != nil {
		return err
	}
	probe.close()
	stopped, err := c.stop(ctx)
	if err != nil {
		return err
	}
	if row == rowWarm {
		s.add(rowStop, perOp, stopped.Seconds())
	}
	return nil
}

// started adds the time since the start of the processes, and their CPU time.
func (c *cluster) started(s *sample, row string) error {
	s.add(row, perOp, time.Since(c.began).Seconds())
	cpu, err := c.cpu()
	s.add(row, cpuPerOp, cpu.Seconds())
	return err
}

// startReady launches the peer, Karve with these options, and waits until every path of born answers. It leaves no process
// if that fails.
func (p *peer) startReady(ctx context.Context, dir string, options ...string) (*cluster, *prober, error) {
	c := &cluster{began: time.Now(), options: options}
	if p.group > 0 {
		var err error
		if c.group, err = machine.NewGroup(p.group << 20); err != nil {
			return nil, nil, err
		}
	}
	probe, err := p.launchReady(ctx, dir, c)
	if err != nil {
		c.kill()
		return nil, nil, err
	}
	return c, probe, nil
}

// whileRunning starts the peer, calls measure when it is ready, and stops it.
func (p *peer) whileRunning(ctx context.Context, dir string, measure func(*cluster, *prober) error) error {
	c, probe, err := p.startReady(ctx, dir)
	if err != nil {
		return err
	}
	defer c.kill()
	defer probe.close()
	if err := measure(c, probe); err != nil {
		return errors.Join(err, c.failed())
	}
	_, err = c.stop(ctx)
	return err
}

func (p *peer) launchReady(ctx context.Context, dir string, c *cluster) (*prober, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := p.launch(ctx, dir, c); err != nil {
		return nil, err
	}
	probe, err := c.probe(ctx)
	if err != nil {
		return nil, err
	}
	paths := slices.Clone(born)
	if p.controllers {
		paths = append(paths, defaultServiceAccount)
	}
	if err := probe.await(ctx, paths...); err != nil {
		probe.close()
		return nil, err
	}
	return probe, nil
}
