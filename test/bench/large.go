package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	rowLarge = "warm, many objects, cold page cache"
	// atRest is how long after a start with many objects its memory is measured.
	atRest = time.Minute
	// perNamespace is how many of the objects are in one namespace, and with this client, at the same time.
	perNamespace = 10000
)

// startLarge starts on a store with many objects. No page of its files is in the page cache.
func (cmp *comparison) startLarge(ctx context.Context, p *peer, dir string, s *sample, count int) error {
	err := cmp.load(ctx, p, dir, s, apiPlan{}, func(b *apiBench, ctx context.Context) error {
		for ; count > 0; count -= perNamespace {
			o, err := b.newObjects(ctx, fmt.Sprintf("bench-large-%d", count), min(count, perNamespace))
			if err != nil {
				return err
			}
			if _, err := o.create(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create the objects: %w", err)
	}
	if err := evict(dir); err != nil {
		return err
	}
	return p.whileRunning(ctx, dir, func(c *cluster, probe *prober) error {
		if err := c.started(s, rowLarge); err != nil {
			return err
		}
		probe.close()
		if err := pause(ctx, atRest); err != nil {
			return err
		}
		return c.memory(s, fmt.Sprintf("%s: anonymous memory %v later", rowLarge, atRest), machine.AnonymousMemory)
	})
}

// evict takes the files of a directory out of the page cache.
func evict(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil { // a page that is not on the disk stays
			return err
		}
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("evict %s from the page cache: %w", path, err)
		}
		return nil
	})
}
