package process

import (
	"context"
	"sync"
	"testing"
)

// Base is a cluster with the forks of its last snapshot. Snapshot and Fork of this package
// and of servertest use it.
type Base struct {
	// Take takes a snapshot of the cluster as it is now (see NewForks).
	Take func(context.Context) (*Forks, error)

	mu    sync.Mutex
	forks *Forks // nil: there is no snapshot
}

// Snapshot takes a new snapshot. The remaining forks of the last one end.
func (b *Base) Snapshot(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.close()
	if err == nil {
		b.forks, err = b.Take(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Fork returns a cluster as the snapshot was, for the test until it ends. Without a
// snapshot, it takes one now.
func (b *Base) Fork(t testing.TB) (Instance, *Cluster) {
	t.Helper()
	var err error
	b.mu.Lock()
	if b.forks == nil {
		b.forks, err = b.Take(t.Context())
	}
	forks := b.forks
	b.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	one, err := forks.take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forks.give(one) })
	return one.Instance, one.Cluster
}

// End ends the remaining forks. The test fails if one of them did not end cleanly.
func (b *Base) End(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.close(); err != nil {
		t.Errorf("forks: %v", err)
	}
}

func (b *Base) close() error {
	if b.forks == nil {
		return nil
	}
	defer func() { b.forks = nil }()
	return b.forks.Close()
}
