package process

import (
	"context"
	"sync"
	"testing"
)

// Base is a cluster as far as others are made of it: the forks of its last snapshot. It
// is what Snapshot and Fork of this package and of servertest are made of.
type Base struct {
	// Take takes a snapshot of the cluster as it is now (see NewForks).
	Take func(context.Context) (*Forks, error)

	mu    sync.Mutex
	forks *Forks // nil: there is no snapshot
}

// Snapshot takes another one; what is left of the forks of the last one ends.
func (b *Base) Snapshot(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.take(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Fork is a cluster as the snapshot was, until the test ends. Without a snapshot there
// is one now.
func (b *Base) Fork(t testing.TB) (Instance, *Cluster) {
	t.Helper()
	forks, err := b.last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return forks.Fork(t)
}

// End ends what is left of the forks. The test fails if that was not as it should be.
func (b *Base) End(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.close(); err != nil {
		t.Errorf("forks: %v", err)
	}
}

func (b *Base) last(ctx context.Context) (*Forks, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.forks == nil {
		if err := b.take(ctx); err != nil {
			return nil, err
		}
	}
	return b.forks, nil
}

func (b *Base) take(ctx context.Context) (err error) {
	if err := b.close(); err != nil {
		return err
	}
	b.forks, err = b.Take(ctx)
	return err
}

func (b *Base) close() error {
	if b.forks == nil {
		return nil
	}
	defer func() { b.forks = nil }()
	return b.forks.Close()
}
