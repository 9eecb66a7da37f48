package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

// footprint is the command bench footprint.
func footprint(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmp := newComparison("footprint", 1, []string{"idle", "binary"}, stdout, stderr)
	settle := cmp.flags.Duration("settle", 40*time.Second, "how long after its start a control plane is measured")
	window := cmp.flags.Duration("window", time.Minute, "how long it is measured")
	if err := cmp.parse(args); err != nil {
		return err
	}
	if *settle < 0 || *window <= 0 {
		return fmt.Errorf("-settle is %v and -window is %v, want at least 0 and more than 0", *settle, *window)
	}
	cmp.setting = fmt.Sprintf("a new control plane without clients; idle: for %v, %v after its start", *window, *settle)
	cmp.notes = "peak: RssAnon, every 100 ms.\n"
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
			s.add("binary", bytesOf, parts...)
		}
		return nil
	})
}

// measureIdle measures a new control plane without clients.
func (c *cluster) measureIdle(ctx context.Context, probe *prober, s *sample, settle, window time.Duration) error {
	peak := c.sampleMemory(ctx, 100*time.Millisecond)
	defer peak()
	probe.close()
	if err := pause(ctx, time.Until(c.began.Add(settle))); err != nil {
		return err
	}
	was, is, err := c.during(ctx, window)
	if err != nil {
		return err
	}
	s.add("anonymous memory (RssAnon), peak", bytesOf, peak())
	s.add("anonymous memory (RssAnon)", bytesOf, is.anonymous...)
	s.add("RSS in all", bytesOf, is.resident...)
	s.add("CPU of the start and until it is idle", cpuPerOp, was.cpu.Seconds())
	s.add("idle CPU", cores, (is.cpu-was.cpu).Seconds()/is.at.Sub(was.at).Seconds())
	s.add("idle disk writes", "written-B/sec", (sum(is.written)-sum(was.written))/is.at.Sub(was.at).Seconds())
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

// pause waits. It returns an error if ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
