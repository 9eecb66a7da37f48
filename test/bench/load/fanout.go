package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// DeliveryTimeout is how long an event may take to reach a watcher.
const DeliveryTimeout = 20 * time.Second

// A delivery is an event that has reached a watcher.
type delivery struct {
	revision int64
	latency  time.Duration
}

// A Watch opens a watch, which ends with ctx. next waits for events and returns their
// revisions.
type Watch func(ctx context.Context) (next func() ([]int64, error), err error)

// FanOut measures the time from a client's request for a write until a watcher has the event, which
// includes the write itself. put makes the n-th write and returns its revision. The next write
// waits until all watchers have the event of this one. Any other event is an ErrWrong. Each event
// that has reached a watcher counts as an operation.
func FanOut(ctx context.Context, watch Watch, watchers, puts int, most time.Duration, put func(ctx context.Context, n int) (int64, error)) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var (
		work  sync.WaitGroup
		asked atomic.Int64 // since began
		began = time.Now()
		got   = make(chan delivery, watchers)
	)
	defer func() { cancel(nil); work.Wait() }()
	for range watchers {
		next, err := watch(ctx)
		if err != nil {
			return Result{}, fmt.Errorf("open watch: %w", err)
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
	timeout := time.NewTimer(DeliveryTimeout)
	defer timeout.Stop()
	first := time.Now()
	for n := 0; n < puts && time.Since(first) < most; n++ {
		timeout.Reset(DeliveryTimeout)
		asked.Store(int64(time.Since(began)))
		revision, err := put(ctx, n)
		if err != nil {
			return Result{}, err
		}
		for i := range watchers {
			select {
			case d := <-got:
				if d.revision != revision {
					return Result{}, fmt.Errorf("%w: event of revision %d, want %d", ErrWrong, d.revision, revision)
				}
				took = append(took, d.latency)
			case <-timeout.C:
				return Result{}, fmt.Errorf("%d of %d watchers have the event after %v", i, watchers, DeliveryTimeout)
			case <-ctx.Done():
				return Result{}, context.Cause(ctx)
			}
		}
	}
	return Summarise(took, time.Since(first)), nil
}
