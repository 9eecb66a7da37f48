package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	// groupStep, leastGroup and mostGroup are the limits that are tried, in MiB.
	groupStep, leastGroup, mostGroup = 8, 64, 512
	// groupTime is how long a control plane may take to become ready in a group, and how long it has to live. Near the
	// limit, the kernel takes pages of the program away and reads them again.
	groupTime = time.Minute
)

// smallestGroup finds the smallest control group.
func (cmp *comparison) smallestGroup(ctx context.Context, p *peer, dir string, s *sample) error {
	for _, binary := range p.binaries { // a group does not pay for pages that are in the page cache
		if _, err := os.ReadFile(binary); err != nil {
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
	s.add("smallest control group in which it becomes ready and lives", bytesOf, float64(limit(found)<<20))
	return nil
}

// livesWithin starts a new control plane in a control group. why says what has kept it from becoming ready
// or living.
func (p *peer) livesWithin(ctx context.Context, dir string, limit int64) (why, err error) {
	group, err := machine.NewGroup(limit)
	if err != nil {
		return nil, err
	}
	c := &cluster{began: time.Now(), group: group}
	defer func() {
		c.kill()
		err = errors.Join(err, group.Remove())
	}()
	starting, cancel := context.WithTimeoutCause(ctx, groupTime, fmt.Errorf("not ready after %v", groupTime))
	defer cancel()
	probe, why := p.launchReady(starting, dir, c)
	if why == nil {
		defer probe.close()
		if err := pause(ctx, groupTime); err != nil {
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
