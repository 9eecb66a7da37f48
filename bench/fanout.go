package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// deliveryTimeout is how long an event may take to reach a watcher.
const deliveryTimeout = 20 * time.Second

// A delivery is an event that has reached a watcher.
type delivery struct {
	revision int64
	latency  time.Duration
}

// watchable is what fanOut needs of a store.
type watchable interface {
	// watch opens a watch; next waits for events and answers their revisions.
	watch(ctx context.Context, prefix string) (next func() ([]int64, error), err error)
}

// fanOut measures how long it takes from the moment a client asks for a write
// until a watcher has the event: the write itself is in it. put writes the n-th
// time and answers the revision; the next write waits until all watchers have the
// event of this one, and no other event may come. An operation is an event that
// has reached a watcher.
func fanOut(ctx context.Context, s watchable, watchers, puts int, most time.Duration, put func(ctx context.Context, n int) (int64, error)) (result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var (
		work  sync.WaitGroup
		asked atomic.Int64 // since began
		began = time.Now()
		got   = make(chan delivery, watchers)
	)
	defer func() { cancel(nil); work.Wait() }()
	for range watchers {
		next, err := s.watch(ctx, keyPrefix)
		if err != nil {
			return result{}, fmt.Errorf("open watch: %w", err)
		}
		work.Go(func() {
			for {
				revisions, err := next()
				if err != nil {
					cancel(fmt.Errorf("read watch: %w", err))
					return
				}
				latency := time.Since(began) - time.Duration(asked.Load())
				for _, revision := range revisions {
					select {
					case got <- delivery{revision, latency}:
					case <-ctx.Done():
						return
					}
				}
			}
		})
	}

	took := make([]time.Duration, 0, puts*watchers)
	timeout := time.NewTimer(deliveryTimeout)
	defer timeout.Stop()
	first := time.Now()
	for n := 0; n < puts && time.Since(first) < most; n++ {
		timeout.Reset(deliveryTimeout)
		asked.Store(int64(time.Since(began)))
		revision, err := put(ctx, n)
		if err != nil {
			return result{}, err
		}
		for i := range watchers {
			select {
			case d := <-got:
				if d.revision != revision {
					return result{}, fmt.Errorf("%w: event of revision %d, want %d", errWrong, d.revision, revision)
				}
				took = append(took, d.latency)
			case <-timeout.C:
				return result{}, fmt.Errorf("%d of %d watchers have the event after %v", i, watchers, deliveryTimeout)
			case <-ctx.Done():
				return result{}, context.Cause(ctx)
			}
		}
	}
	return summarise(took, time.Since(first)), nil
}
