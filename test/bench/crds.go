package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

// A control plane is idle when it has used less CPU time than idleCPU in each of idleLooks seconds in a row.
const (
	idleCPU     = 100 * time.Millisecond
	idleLooks   = 3
	idleTimeout = 15 * time.Minute
)

// crds is the command bench crds.
func crds(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmp := newComparison("crds", 1, []string{"apply", "openapi"}, stdout, stderr)
	settle := cmp.flags.Duration("settle", 30*time.Second, "how long the control plane has no clients before its memory is measured")
	if err := cmp.parse(args); err != nil {
		return err
	}
	if *settle < 0 {
		return fmt.Errorf("-settle is %v, want at least 0", *settle)
	}
	all, err := readCRDs(ctx)
	if err != nil {
		return err
	}
	size := 0
	for _, c := range all {
		size += len(c.body)
	}
	cmp.setting = fmt.Sprintf("%d CustomResourceDefinitions, %.1f MB of JSON, applied on the server one after the other; settled: after %v without clients", len(all), float64(size)/1e6, *settle)
	cmp.notes = "CRDs: those of crossplane and kyverno.\nCPU: the CPU time of all processes. etcd + kube-apiserver: without controllers, which watch every kind.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return p.whileRunning(ctx, dir, func(c *cluster, probe *prober) error {
			b := &crdBench{bench{cmp, c, p, s, probe}, all, *settle}
			return b.measure(ctx)
		})
	})
}

// A crdBench measures one control plane.
type crdBench struct {
	bench
	crds   []crd
	settle time.Duration
}

func (b *crdBench) measure(ctx context.Context) error {
	if _, err := b.cluster.awaitIdle(ctx); err != nil { // the start is no part of the first row
		return err
	}
	if err := b.timed(ctx, "apply → in discovery", b.apply); err != nil {
		return err
	}
	if err := b.settled(ctx, "RSS when settled"); err != nil {
		return err
	}
	if b.wants("openapi") {
		if err := b.timed(ctx, "OpenAPI v2", b.openAPIv2); err != nil {
			return err
		}
		if err := b.settled(ctx, "RSS when settled after OpenAPI"); err != nil {
			return err
		}
	}
	return b.cluster.memory(b.sample, "RSS, peak", machine.PeakMemory)
}

// timed measures how long do takes, and the CPU time of the control plane until it is idle
// again.
func (b *crdBench) timed(ctx context.Context, row string, do func(context.Context) error) error {
	before, err := b.cluster.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", row, err)
	}
	b.sample.add(row, perOp, time.Since(began).Seconds())
	after, err := b.cluster.awaitIdle(ctx)
	if err != nil {
		return err
	}
	b.sample.add(row, cpuPerOp, (after - before).Seconds())
	return nil
}

// settled measures the memory after a time without clients.
func (b *crdBench) settled(ctx context.Context, row string) error {
	b.probe.close()
	if err := pause(ctx, b.settle); err != nil {
		return err
	}
	return b.cluster.memory(b.sample, row, machine.ResidentMemory)
}

// apply applies all definitions as `kubectl apply --server-side` does, one after the other, and
// waits until every kind is in discovery. Discovery lists a kind once it is established.
func (b *crdBench) apply(ctx context.Context) error {
	for _, c := range b.crds {
		path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + c.Metadata.Name + "?fieldManager=bench&force=true&fieldValidation=Strict"
		if _, err := b.probe.do(ctx, http.MethodPatch, path, c.body, "Content-Type", "application/apply-patch+yaml"); err != nil {
			return err
		}
	}
	return b.cluster.poll(ctx, func() error {
		answer, err := b.probe.do(ctx, http.MethodGet, "/apis", nil, "Accept", "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList")
		if err != nil {
			return err
		}
		return contains(answer, b.crds, inDiscovery)
	})
}

// openAPIv2 waits until the document has all kinds. It asks for protobuf, as client-go does.
func (b *crdBench) openAPIv2(ctx context.Context) error {
	return b.cluster.poll(ctx, func() error {
		answer, err := b.probe.do(ctx, http.MethodGet, "/openapi/v2", nil, "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
		if err != nil {
			return err
		}
		return contains(answer, b.crds, definition)
	})
}

// awaitIdle waits until the control plane is idle, and returns the CPU time that its processes
// have used since they began.
func (c *cluster) awaitIdle(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, idleTimeout, fmt.Errorf("not idle after %v", idleTimeout))
	defer cancel()
	used, err := c.cpu()
	for looks := 0; err == nil && looks < idleLooks; looks++ {
		if err := pause(ctx, time.Second); err != nil {
			return 0, err
		}
		before := used
		if used, err = c.cpu(); used-before >= idleCPU {
			looks = -1
		}
	}
	return used, err
}
