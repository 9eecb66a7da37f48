// Package server runs a whole Kubernetes control plane in this process.
//
// Read [Run] first: it shows the startup from beginning to end. config.go has the configuration,
// plan.go parses and validates it, and parts.go connects the parts. Each part has a package:
// certificates, storage, snapshots, apiserver, controllers, scheduler, and package simulate.
// Package lifecycle starts and stops them.
package server

import (
	"context"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/queues"
)

// Run starts a control plane, announces that it is ready (the admin's kubeconfig, sd_notify,
// Config.Ready), and runs it until ctx ends. Then it stops the parts in reverse order and returns
// nil. An error names the part that failed, and the cause. Run has then stopped all parts that had
// started.
//
// One process may run several control planes one after another. If they run at the same time, they
// share upstream's global metrics and must have the same feature gates. Run refuses a control plane
// with other gates with [apiserver.ErrOtherGates].
func Run(ctx context.Context, c Config) (err error) {
	start := lifecycle.NewStart() // takes the variables of systemd before upstream's code runs
	full := c.complete()
	var collector *memory.Collector
	if full.MemoryLimit != 0 {
		collector = memory.Begin(full.MemoryLimit, full.SettleAfter > 0)
		defer collector.End()
	}
	defer logbridge.Serve(full.Log)()

	// Report every problem together, before anything is created.
	done := start.Part("configuration")
	plan, releaseGates, err := full.plan(ctx)
	if err != nil {
		return err
	}
	release := releaseGates // when no part runs any more
	defer func() { release() }()
	queues.EndLoops(plan.deviations.On(deviations.Queues))
	claim, err := plan.claim(full.Log)
	if err != nil {
		return err
	}
	release = func() { claim.release(); releaseGates() }
	done()

	// Prepare the data directory. The fork has to be made before anything reads the directory.
	// The kubeconfig of the last start has to go, because its presence means that the cluster
	// answers.
	if err := plan.fork.Make(ctx, start.Trace, full.Log); err != nil {
		return err
	}
	putBack, err := setKubeconfigAside(plan.DataDir)
	if err != nil {
		return err
	}
	defer putBack()

	// Start the parts. Each starts as soon as the parts that it needs are ready. When all are
	// ready, the control plane announces that. It settles some time later.
	s := assemble(plan, claim, start)
	s.collector = collector
	gone := release
	release = func() {}
	return start.Run(ctx, s.parts(), gone)
}

// plan makes a plan of the configuration, and sets the process' feature gates until the caller
// calls releaseGates. A refused configuration changes nothing.
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
		return nil, nil, refused
	}
	if err != nil {
		return nil, nil, err
	}
	return plan, releaseGates, nil
}
