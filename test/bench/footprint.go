package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
	"github.com/karve-k8s/karve/test/bench/report"
)

const (
	rowMemory     = "anonymous memory (RssAnon)"
	rowRSS        = "RSS in all"
	rowIdleCPU    = "idle CPU"
	rowIdleDisk   = "idle disk writes"
	rowIdleSyncs  = "idle durable commits"
	rowGoroutines = "goroutines"
	rowBinary     = "binary"
)

var footprintLines = []line{
	{row: rowMemory, unit: "MB"},
	{row: rowRSS, unit: "MB"},
	{row: rowIdleCPU, unit: "% of a core"},
	{row: rowIdleDisk, unit: "kB/s"},
	{row: rowIdleSyncs, unit: "/min"},
	{row: rowGoroutines, unit: "goroutines"},
	{row: rowBinary, unit: "MB"},
}

// footprint is the command bench footprint.
func footprint(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"idle", "binary"}
	cmp, only := newComparison("footprint", 1, rows, stdout, stderr)
	settle := cmp.flags.Duration("settle", 30*time.Second, "how long a new control plane runs before it is measured")
	window := cmp.flags.Duration("window", time.Minute, "how long it is measured")
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	if *settle < 0 || *window <= 0 {
		return fmt.Errorf("-settle is %v and -window is %v, want at least 0 and more than 0", *settle, *window)
	}
	cmp.Setting = fmt.Sprintf("a new control plane, measured for %v after %v without clients; MB are millions of bytes", *window, *settle)
	cmp.lines = footprintLines
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) (err error) {
		if cmp.wants("idle") {
			err := p.whileRunning(ctx, dir, func(c *cluster, probe *prober) error {
				return c.measureIdle(ctx, probe, s, *settle, *window)
			})
			if err != nil {
				return err
			}
		}
		if cmp.wants("binary") {
			parts, err := p.sizes()
			if err != nil {
				return err
			}
			s.add(rowBinary, "MB", megabytes(parts)...)
		}
		cmp.progress(p, s, 0)
		return nil
	})
}

// megabytes are millions of bytes.
func megabytes(bytes []float64) []float64 {
	mb := make([]float64, len(bytes))
	for i, b := range bytes {
		mb[i] = b / 1e6
	}
	return mb
}

// measureIdle measures a new control plane without clients.
func (c *cluster) measureIdle(ctx context.Context, probe *prober, s *sample, settle, window time.Duration) error {
	if err := pause(ctx, settle); err != nil {
		return err
	}
	// Reading the metrics costs memory, so it gets some time to settle.
	before, err := c.commits(ctx, probe)
	if err != nil {
		return err
	}
	probe.close()
	looked := time.Now()
	if err := pause(ctx, min(5*time.Second, settle)); err != nil {
		return err
	}
	was, is, err := c.during(ctx, window)
	if err != nil {
		return err
	}
	seconds := is.at.Sub(was.at).Seconds()
	s.add(rowMemory, "MB", megabytes(is.anonymous)...)
	s.add(rowRSS, "MB", megabytes(is.resident)...)
	s.add(rowIdleCPU, "% of a core", 100*(is.cpu-was.cpu).Seconds()/seconds)
	s.add(rowIdleDisk, "kB/s", (sum(is.written)-sum(was.written))/1e3/seconds)
	after, err := c.commits(ctx, probe)
	if err != nil {
		return err
	}
	s.add(rowIdleSyncs, "/min", (after-before)/time.Since(looked).Minutes())
	goroutines, err := c.goroutines(ctx, probe)
	if err != nil {
		return err
	}
	s.add(rowGoroutines, "goroutines", goroutines...)
	return nil
}

// consumption is the memory of the processes of a cluster, and what they have used so far.
type consumption struct {
	at                           time.Time
	cpu                          time.Duration
	anonymous, resident, written []float64 // bytes, for each process
}

func (c *cluster) consumption() (u consumption, err error) {
	u.at = time.Now()
	var errs [4]error
	u.cpu, errs[0] = c.cpu()
	u.anonymous, errs[1] = c.each(machine.AnonymousMemory)
	u.resident, errs[2] = c.each(machine.ResidentMemory)
	u.written, errs[3] = c.each(machine.WrittenBytes)
	return u, errors.Join(errs[:]...)
}

// during is what the processes have used before and after a time.
func (c *cluster) during(ctx context.Context, window time.Duration) (was, is consumption, err error) {
	if was, err = c.consumption(); err != nil {
		return was, is, err
	}
	if err = pause(ctx, window); err != nil {
		return was, is, err
	}
	is, err = c.consumption()
	return was, is, err
}

// pages are the metrics pages of the processes, in their order.
func (c *cluster) pages(ctx context.Context, probe *prober) ([][]byte, error) {
	var pages [][]byte
	if c.etcd != "" {
		etcd := &prober{cluster: c, base: c.etcd, client: &http.Client{Transport: &http.Transport{}}}
		defer etcd.close()
		page, err := etcd.do(ctx, http.MethodGet, "/metrics", nil)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
	}
	page, err := probe.do(ctx, http.MethodGet, "/metrics", nil)
	return append(pages, page), err
}

// commits is how often the datastore has synced a commit to the disk.
func (c *cluster) commits(ctx context.Context, probe *prober) (total float64, err error) {
	pages, err := c.pages(ctx, probe)
	if err != nil {
		return 0, err
	}
	names := []string{"karve_datastore_commits_total"}
	if c.etcd != "" {
		names = []string{"etcd_disk_wal_fsync_duration_seconds_count", "etcd_disk_backend_commit_duration_seconds_count"}
	}
	for _, name := range names {
		v, err := report.Metric(pages[0], name)
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
}

func (c *cluster) goroutines(ctx context.Context, probe *prober) (parts []float64, err error) {
	pages, err := c.pages(ctx, probe)
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		v, err := report.Metric(page, "go_goroutines")
		if err != nil {
			return nil, err
		}
		parts = append(parts, v)
	}
	return parts, nil
}

// pause waits. It returns an error if ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
