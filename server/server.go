// Package server runs a whole Kubernetes control plane in this process.
//
// Read [Run] first: it is the start-up story, top to bottom. config.go has what a user decides,
// plan.go what becomes of it, parts.go what each part gets from the others. Each part has a
// package: certificates, storage, snapshots, apiserver, controllers, scheduler, ready, and
// package simulate. Package lifecycle starts and stops them.
package server

import (
	"context"
	"errors"
	"time"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/notify"
	"github.com/karve-k8s/karve/server/queues"
	"github.com/karve-k8s/karve/server/startup"
)

// Run starts a control plane, announces that it is ready (Config.Ready, sd_notify,
// the admin's kubeconfig), and runs it until ctx ends; then it stops the parts
// in reverse order and returns nil. An error says which part failed and why;
// what had started by then has been stopped.
//
// Several control planes in one process, one after another, are fine. At the same time
// they share upstream's global metrics, and must have the same feature gates: another
// one is refused with [apiserver.ErrOtherGates].
func Run(ctx context.Context, c Config) (err error) {
	began := time.Now()
	trace := startup.New(began)
	full := c.complete()
	var collector *memory.Collector
	if full.MemoryLimit != 0 {
		collector = memory.Begin(full.MemoryLimit, full.SettleAfter > 0)
		defer collector.End()
	}
	logbridge.Serve(full.Log)

	// Before anything of upstream's runs: the API server would tell systemd
	// that it is ready as soon as it listens, and unset the variable.
	systemd := notify.Take()

	// Every problem is reported at once, before anything is made.
	done := trace.Part("configuration")
	plan, releaseGates, err := full.plan(ctx)
	if err != nil {
		return err
	}
	defer releaseGates()
	queues.EndLoops(plan.deviations.On(deviations.Queues))
	claim, err := plan.claim(full.Log)
	if err != nil {
		return err
	}
	defer claim.release()
	done()

	// The data directory: a fork is made before anything reads it, and a kubeconfig tells
	// that the cluster answers.
	if err := plan.fork.Make(ctx, trace, full.Log); err != nil {
		return err
	}
	if err := removeKubeconfig(plan.DataDir); err != nil {
		return err
	}

	// The parts, each as soon as those that it needs are ready. When all are, the control
	// plane is announced, and settles some time later.
	s := assemble(plan, claim, start{began, trace, systemd, collector})
	defer s.settling.Wait()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	go systemd.Watchdog(running, s.healthy)
	go s.progress.run(running)
	defer s.writeFailedTrace()
	return lifecycle.Run(ctx, s.parts(), s.doing, func() error { return s.announce(running) })
}

// plan makes a plan of the configuration, and gives the process its feature gates until
// releaseGates is called. A configuration that is refused touches nothing.
func (c completed) plan(ctx context.Context) (_ *plan, releaseGates func(), err error) {
	draft := c.parse()
	releaseGates = func() {}
	gates, err := draft.gates()
	if err == nil {
		var held func()
		if held, err = gates.Hold(); err == nil {
			releaseGates = held
		}
	}
	plan, refused := draft.validate(ctx)
	if refused != nil {
		releaseGates()
		return nil, nil, errors.Join(refused, draft.taken())
	}
	if err != nil {
		return nil, nil, err
	}
	return plan, releaseGates, nil
}
