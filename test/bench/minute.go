package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	rowGroup      = "smallest control group in which it becomes ready and lives"
	rowMinutePeak = "anonymous memory, peak from ready on"
	rowMinuteCPU  = "CPU time of the first 40 s"
)

const (
	// minute is how long a control plane is watched after it is ready.
	minute = time.Minute
	// groupStep, leastGroup and mostGroup are the limits that are tried, in MiB.
	groupStep, leastGroup, mostGroup = 8, 64, 512
	// groupTimeout is how long a control plane may take to become ready in a group. Near the limit, the
	// kernel takes pages of the program away and reads them again.
	groupTimeout = time.Minute
)

var minuteLines = []line{
	{row: rowMinutePeak, unit: "MB"},
	{row: rowMinuteCPU, unit: "CPU s"},
	{row: rowGroup, unit: "MiB"},
}

// minuteCommand is the command bench minute.
func minuteCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"peak", "group"}
	cmp, only := newComparison("minute", 1, rows, stdout, stderr)
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	cmp.Setting = fmt.Sprintf("the first minute of a new control plane without clients; control groups in steps of %d MiB", groupStep)
	cmp.lines = minuteLines
	cmp.notes = "peak: RssAnon of all processes, every 100 ms. group: ready within a minute, and for a minute; no swap. The programs' own files are in the\n" +
		"page cache before and do not count; what the programs write, their anonymous memory and the kernel's do. It needs root.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		if cmp.wants("peak") {
			if err := p.firstMinute(ctx, filepath.Join(dir, "peak"), s); err != nil {
				return err
			}
		}
		if cmp.wants("group") {
			if err := cmp.smallestGroup(ctx, p, dir, s); err != nil {
				return err
			}
		}
		cmp.progress(p, s, 0)
		return nil
	})
}

// firstMinute measures a new control plane.
func (p *peer) firstMinute(ctx context.Context, dir string, s *sample) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return p.whileRunning(ctx, dir, func(c *cluster, probe *prober) error {
		probe.close()
		peak := c.sampleMemory(ctx, 100*time.Millisecond)
		defer peak()
		ready := time.Now()
		if err := pause(ctx, time.Until(c.began.Add(40*time.Second))); err != nil {
			return err
		}
		cpu, err := c.cpu()
		if err != nil {
			return err
		}
		if err := pause(ctx, time.Until(ready.Add(minute))); err != nil {
			return err
		}
		s.add(rowMinutePeak, "MB", megabytes([]float64{peak()})...)
		s.add(rowMinuteCPU, "CPU s", cpu.Seconds())
		return nil
	})
}

// smallestGroup finds the smallest control group.
func (cmp *comparison) smallestGroup(ctx context.Context, p *peer, dir string, s *sample) error {
	for _, binary := range p.binaries {
		if err := intoPageCache(binary); err != nil {
			return err
		}
	}
	var failed error // not for want of memory
	limit := func(i int) int { return leastGroup + i*groupStep }
	n := (mostGroup-leastGroup)/groupStep + 1
	found := sort.Search(n, func(i int) bool {
		if failed != nil {
			return true
		}
		why, err := p.livesWithin(ctx, filepath.Join(dir, strconv.Itoa(limit(i))), int64(limit(i))<<20)
		failed = err
		if why != nil {
			fmt.Fprintf(cmp.stderr, "%s, %d MiB: %v\n", p.title, limit(i), why)
		}
		return err == nil && why == nil
	})
	switch {
	case failed != nil:
		return failed
	case found == n:
		return fmt.Errorf("%s does not live in %d MiB", p.title, mostGroup)
	}
	s.add(rowGroup, "MiB", float64(limit(found)))
	return nil
}

// livesWithin starts a new control plane in a control group. why says what has kept it from becoming ready
// or living.
func (p *peer) livesWithin(ctx context.Context, dir string, limit int64) (why, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	group, err := machine.NewGroup(limit)
	if err != nil {
		return nil, err
	}
	c := &cluster{began: time.Now(), group: group}
	defer func() {
		c.kill()
		err = errors.Join(err, group.Remove())
	}()
	starting, cancel := context.WithTimeoutCause(ctx, groupTimeout, fmt.Errorf("not ready after %v", groupTimeout))
	defer cancel()
	probe, why := p.launchReady(starting, dir, c)
	if why == nil {
		defer probe.close()
		if err := pause(ctx, minute); err != nil {
			return nil, err
		}
		if why = c.failed(); why == nil {
			_, why = probe.do(ctx, "GET", "/readyz", nil)
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return why, nil
}

// intoPageCache reads a file.
func intoPageCache(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}
