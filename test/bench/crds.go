package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	rowCRDsApplied    = "apply → in discovery"
	rowCRDsResident   = "RSS when settled"
	rowCRDsAnonymous  = "anonymous memory when settled"
	rowCRDsV2         = "OpenAPI v2"
	rowCRDsPeak       = "RSS, peak"
	rowCRDsAfterwards = "RSS when settled after OpenAPI"
)

// A control plane is idle when it has used less CPU time than idleCPU in each of idleLooks seconds in a row.
const (
	idleCPU     = 100 * time.Millisecond
	idleLooks   = 3
	idleTimeout = 15 * time.Minute
)

var crdLines = []line{
	{row: rowCRDsApplied, unit: "s"}, {row: rowCRDsApplied, unit: "CPU s"},
	{row: rowCRDsResident, unit: "MB"},
	{row: rowCRDsAnonymous, unit: "MB"},
	{row: rowCRDsV2, unit: "s"}, {row: rowCRDsV2, unit: "CPU s"},
	{row: rowCRDsAfterwards, unit: "MB"},
	{row: rowCRDsPeak, unit: "MB"},
}

// crds is the command bench crds.
func crds(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"apply", "openapi"}
	cmp, only := newComparison("crds", 1, rows, stdout, stderr)
	settle := cmp.flags.Duration("settle", 30*time.Second, "how long the control plane has no clients before its memory is measured")
	if err := cmp.parse(args, only, rows); err != nil {
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
	cmp.Setting = fmt.Sprintf("%d CustomResourceDefinitions, %.1f MB of JSON, applied on the server one after the other; settled: after %v without clients", len(all), float64(size)/1e6, *settle)
	cmp.lines = crdLines
	cmp.notes = "CRDs: those of " + moduleNames() + ".\nCPU s: the CPU time of all processes. etcd + kube-apiserver: without controllers, which watch every kind.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return p.whileRunning(ctx, dir, func(c *cluster, probe *prober) error {
			b := &crdBench{comparison: cmp, cluster: c, peer: p, sample: s, probe: probe, crds: all, settle: *settle}
			return b.measure(ctx)
		})
	})
}

// A crdBench measures one control plane.
type crdBench struct {
	*comparison
	cluster *cluster
	peer    *peer
	sample  *sample
	probe   *prober
	crds    []crd
	settle  time.Duration
}

func (b *crdBench) measure(ctx context.Context) error {
	if _, err := b.cluster.awaitIdle(ctx); err != nil { // the start is no part of the first row
		return err
	}
	if err := b.timed(ctx, rowCRDsApplied, b.apply); err != nil {
		return err
	}
	if err := b.memory(ctx, rowCRDsResident, rowCRDsAnonymous); err != nil {
		return err
	}
	if b.wants("openapi") {
		if err := b.timed(ctx, rowCRDsV2, b.openAPIv2); err != nil {
			return err
		}
		if err := b.memory(ctx, rowCRDsAfterwards, ""); err != nil {
			return err
		}
	}
	from := len(b.sample.Figures)
	peaks, err := b.cluster.each(machine.PeakMemory)
	if err != nil {
		return err
	}
	b.sample.add(rowCRDsPeak, "MB", megabytes(peaks)...)
	b.progress(b.peer, b.sample, from)
	return nil
}

// timed measures how long do takes, and the CPU time of the control plane until it is idle
// again.
func (b *crdBench) timed(ctx context.Context, row string, do func(context.Context) error) error {
	from := len(b.sample.Figures)
	before, err := b.cluster.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", row, err)
	}
	b.sample.add(row, "s", time.Since(began).Seconds())
	after, err := b.cluster.awaitIdle(ctx)
	if err != nil {
		return err
	}
	b.sample.add(row, "CPU s", (after - before).Seconds())
	b.progress(b.peer, b.sample, from)
	return nil
}

// memory measures the memory after a time without clients.
func (b *crdBench) memory(ctx context.Context, resident, anonymous string) error {
	from := len(b.sample.Figures)
	b.probe.close()
	if err := pause(ctx, b.settle); err != nil {
		return err
	}
	is, err := b.cluster.consumption()
	if err != nil {
		return err
	}
	b.sample.add(resident, "MB", megabytes(is.resident)...)
	if anonymous != "" {
		b.sample.add(anonymous, "MB", megabytes(is.anonymous)...)
	}
	b.progress(b.peer, b.sample, from)
	return nil
}

// apply applies all definitions as `kubectl apply --server-side` does, one after the other, and
// waits until every kind is in discovery. Discovery lists a kind once it is established.
func (b *crdBench) apply(ctx context.Context) error {
	for _, c := range b.crds {
		path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + c.Metadata.Name + "?fieldManager=bench&force=true&fieldValidation=Strict"
		if _, err := b.probe.send(ctx, http.MethodPatch, path, c.body, http.Header{"Content-Type": {"application/apply-patch+yaml"}}); err != nil {
			return err
		}
	}
	return b.cluster.poll(ctx, func() error {
		answer, err := b.probe.send(ctx, http.MethodGet, "/apis", nil, http.Header{"Accept": {"application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"}})
		if err != nil {
			return err
		}
		return contains(answer, b.crds, inDiscovery)
	})
}

// openAPIv2 waits until the document has all kinds. It asks for protobuf, as client-go does.
func (b *crdBench) openAPIv2(ctx context.Context) error {
	return b.cluster.poll(ctx, func() error {
		answer, err := b.probe.send(ctx, http.MethodGet, "/openapi/v2", nil, http.Header{"Accept": {"application/com.github.proto-openapi.spec.v2@v1.0+protobuf"}})
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
