package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	rowFreshPeak = "memory, peak until then"
	rowFreshLull = "memory in the lull after it"
)

// A freshLoad is a number of objects that clients create in a control plane that has just
// become ready.
type freshLoad struct {
	name    string // of -only
	row     string
	objects int
}

var freshLoads = []freshLoad{
	{"2000", "create 2,000 at the ready line, 32 clients", 2000},
	{"4000", "create 4,000 at the ready line, 32 clients", 4000},
}

func (l freshLoad) peak() string { return l.row + ": " + rowFreshPeak }
func (l freshLoad) lull() string { return l.row + ": " + rowFreshLull }

func freshLines() (lines []line) {
	for _, l := range freshLoads {
		lines = append(lines, line{row: l.row, unit: "/s"}, line{row: l.row, unit: "p50 ms"},
			line{row: l.row, unit: "p99 ms"}, line{row: l.row, unit: perServer}, line{row: l.row, unit: perClient},
			line{row: l.peak(), unit: "MB"}, line{row: l.lull(), unit: "MB"})
	}
	return lines
}

// fresh is the command bench fresh.
func fresh(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var rows []string
	for _, l := range freshLoads {
		rows = append(rows, l.name)
	}
	cmp, only := newComparison("fresh", 5, rows, stdout, stderr)
	lull := cmp.flags.Duration("lull", 25*time.Second, "how long nothing asks before memory is measured; 0: do not measure it")
	profiles := cmp.flags.String("profile", "", "directory for CPU profiles of the API server, one for each row and peer")
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	if *profiles != "" {
		if err := os.MkdirAll(*profiles, 0o755); err != nil {
			return fmt.Errorf("-profile: %w", err)
		}
	}
	cmp.Setting = "ConfigMaps of 1 KB, from the moment a new cluster is ready; client-go with protobuf, 32 connections, no rate limit, on the same cores"
	silence()
	cmp.lines = freshLines()
	cmp.notes = "ready: karve has written admin.kubeconfig; etcd + kube-apiserver: /readyz, RBAC and namespaces.\n" +
		"server, client µs each: CPU time of one operation, with all that the server does meanwhile. memory: RssAnon.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		for _, l := range freshLoads {
			if !cmp.wants(l.name) {
				continue
			}
			own := filepath.Join(dir, l.name)
			if err := os.Mkdir(own, 0o700); err != nil {
				return err
			}
			if err := cmp.fresh(ctx, p, own, s, l, *lull, *profiles); err != nil {
				return err
			}
		}
		return nil
	})
}

// fresh measures one load on a control plane of its own.
func (cmp *comparison) fresh(ctx context.Context, p *peer, dir string, s *sample, l freshLoad, lull time.Duration, profiles string) error {
	c := &cluster{began: time.Now()}
	defer func() { c.kill() }()
	if err := p.launch(ctx, dir, c); err != nil {
		return err
	}
	probe, err := c.probe(ctx)
	if err != nil {
		return err
	}
	defer probe.close()
	b := &apiBench{comparison: cmp, cluster: c, peer: p, sample: s, probe: probe, profiles: profiles}
	if err := b.connect(); err != nil {
		return err
	}
	o := &objects{bench: b, namespace: "default", all: make([]*corev1.ConfigMap, l.objects)}
	if p.controllers {
		err = c.poll(ctx, func() error { _, err := os.Stat(filepath.Join(dir, "admin.kubeconfig")); return err })
	} else {
		err = probe.await(ctx, born...)
	}
	if err != nil {
		return fmt.Errorf("wait until it is ready: %w", err)
	}
	peak := b.cluster.sampleMemory(ctx, 20*time.Millisecond)
	defer peak()
	if err := b.row(ctx, l.row, o.create); err != nil {
		return err
	}
	from := len(s.Figures)
	s.add(l.peak(), "MB", megabytes([]float64{peak()})...)
	if lull > 0 {
		probe.close()
		if err := pause(ctx, lull); err != nil {
			return err
		}
		now, err := c.each(machine.AnonymousMemory)
		if err != nil {
			return err
		}
		s.add(l.lull(), "MB", megabytes(now)...)
	}
	cmp.progress(p, s, from)
	_, err = c.stop(ctx)
	return err
}
