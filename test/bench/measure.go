package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
)

// A bench measures one peer that runs.
type bench struct {
	*comparison
	cluster *cluster
	peer    *peer
	sample  *sample
	probe   *prober // nil: it has no API
}

// row measures one row, with its CPU time.
func (b *bench) row(ctx context.Context, name string, run func(context.Context) (load.Result, error)) error {
	server, client, err := b.cpu()
	if err != nil {
		return err
	}
	profiled := b.profile(ctx, name)
	res, err := run(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	serverAfter, clientAfter, err := b.cpu()
	if err != nil {
		return err
	}
	if err := profiled(); err != nil {
		return fmt.Errorf("%s: profile: %w", name, err)
	}
	if res.Ops == 0 {
		return fmt.Errorf("%s: no operation was done", name)
	}
	each := func(d time.Duration) float64 { return d.Seconds() / float64(res.Ops) }
	b.sample.add(name, perSecond, res.PerSecond)
	b.sample.add(name, p50, res.P50.Seconds())
	b.sample.add(name, p99, res.P99.Seconds())
	b.sample.add(name, serverCPU, each(serverAfter-server))
	b.sample.add(name, clientCPU, each(clientAfter-client))
	return nil
}

// profileTime is how much of a row is profiled.
const profileTime = 3 * time.Second

// profile has the API server profile itself; the function it answers waits until
// that is done.
func (b *bench) profile(ctx context.Context, row string) (done func() error) {
	if b.profiles == "" {
		return func() error { return nil }
	}
	written := make(chan error, 1)
	go func() {
		profile, err := b.probe.do(ctx, http.MethodGet, fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", profileTime.Seconds()), nil)
		if err == nil {
			err = os.WriteFile(filepath.Join(b.profiles, slug(b.peer.title+" "+row)+".pprof"), profile, 0o644)
		}
		written <- err
	}()
	return func() error { return <-written }
}

// cpu is the CPU time that the control plane and its client have used.
func (b *bench) cpu() (server, client time.Duration, err error) {
	if server, err = b.cluster.cpu(); err != nil {
		return 0, 0, err
	}
	client, err = machine.CPUTime(machine.OwnPID)
	return server, client, err
}
