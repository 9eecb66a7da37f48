package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/bench/machine"
	"github.com/karve-k8s/karve/bench/report"
)

const (
	// abandonedLabels is the number of labels of the ConfigMap. Its body has 2.5 MB, less than
	// the API server's limit of 3 MB.
	abandonedLabels = 190_000

	// abandonedAfter is how long a client waits before it leaves.
	abandonedAfter = 2 * time.Second

	// A control plane is idle when it has used less CPU time than idleCPU in each of
	// idleLooks seconds in a row.
	idleCPU     = 100 * time.Millisecond
	idleLooks   = 3
	idleTimeout = 15 * time.Minute

	rowPeakRSS = "RSS in all, peak"
)

// abandonedRows are how many requests are sent at the same time.
var abandonedRows = []struct {
	name, row string
	requests  int
}{
	{"one", "1 request", 1},
	{"eight", "8 requests at the same time", 8},
}

// abandoned is the command bench abandoned.
func abandoned(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var rows []string
	for _, r := range abandonedRows {
		rows = append(rows, r.name)
	}
	cmp, only := newComparison("abandoned", 1, rows, stdout, stderr)
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	cmp.Setting = fmt.Sprintf("create of a ConfigMap with %s labels; the client leaves after %v", report.Number(abandonedLabels), abandonedAfter)
	for _, r := range abandonedRows {
		cmp.lines = append(cmp.lines, line{row: r.row, unit: "CPU s"})
	}
	cmp.lines = append(cmp.lines, line{row: rowPeakRSS, unit: "MB"})
	cmp.notes = fmt.Sprintf("CPU s: the time of all processes until they were idle again (less than %v in each of %d seconds).\n", idleCPU, idleLooks)
	body := manyLabels(abandonedLabels)
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		c, probe, err := p.startReady(ctx, dir)
		if err != nil {
			return err
		}
		defer c.kill()
		defer probe.close()
		for _, r := range abandonedRows {
			if !cmp.wants(r.name) {
				continue
			}
			from := len(s.Figures)
			before, err := c.awaitIdle(ctx)
			if err != nil {
				return err
			}
			if err := probe.abandon(ctx, r.requests, body, abandonedAfter); err != nil {
				return err
			}
			after, err := c.awaitIdle(ctx)
			if err != nil {
				return err
			}
			s.add(r.row, "CPU s", (after - before).Seconds())
			cmp.progress(p, s, from)
		}
		peaks, err := c.each(machine.PeakMemory)
		if err != nil {
			return err
		}
		s.add(rowPeakRSS, "MB", megabytes(peaks)...)
		cmp.progress(p, s, len(s.Figures)-1)
		_, err = c.stop(ctx)
		return err
	})
}

// manyLabels is a ConfigMap with n labels, in JSON.
func manyLabels(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"many","labels":{`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"l%06d":""`, i)
	}
	b.WriteString(`}}}`)
	return []byte(b.String())
}

// abandon sends n requests at the same time, and leaves after the given time. An answer before
// that is an error, because nothing was abandoned.
func (p *prober) abandon(ctx context.Context, n int, body []byte, after time.Duration) error {
	errs := make([]error, n)
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			ctx, leave := context.WithTimeout(ctx, after)
			defer leave()
			_, err := p.do(ctx, http.MethodPost, "/api/v1/namespaces/default/configmaps", body)
			switch {
			case err == nil:
				errs[i] = errors.New("the request was answered before the client left")
			case !errors.Is(err, context.DeadlineExceeded):
				errs[i] = fmt.Errorf("before the client left: %w", err)
			}
		})
	}
	clients.Wait()
	return errors.Join(errs...)
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
