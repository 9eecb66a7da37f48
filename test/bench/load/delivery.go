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

// An arrival is an event that has reached the watcher.
type arrival struct {
	revision int64
	latency  time.Duration
}

// A Watch opens a watch, which ends with ctx. next waits for an event and returns its revision.
type Watch func(ctx context.Context) (next func() (int64, error), err error)

// Delivery measures the time from a client's request for a write until a watcher has the event, which
// includes the write itself. put makes the n-th write and returns its revision. The next write
// waits for the event of this one. Any other event is an ErrWrong.
func Delivery(ctx context.Context, watch Watch, puts int, most time.Duration, put func(ctx context.Context, n int) (int64, error)) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var (
		work  sync.WaitGroup
		asked atomic.Int64 // since began
		began = time.Now()
		got   = make(chan arrival, 1)
	)
	defer func() { cancel(nil); work.Wait() }()
	next, err := watch(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("open watch: %w", err)
	}
	work.Go(func() {
		for {
			revision, err := next()
			if err != nil {
				cancel(fmt.Errorf("read watch: %w", err))
				return
			}
			select {
			case got <- arrival{revision, time.Since(began) - time.Duration(asked.Load())}:
			case <-ctx.Done():
				return
			}
		}
	})

	took := make([]time.Duration, 0, puts)
	first := time.Now()
	for n := 0; n < puts && time.Since(first) < most; n++ {
		asked.Store(int64(time.Since(began)))
		revision, err := put(ctx, n)
		if err != nil {
			return Result{}, err
		}
		select {
		case a := <-got:
			if a.revision != revision {
				return Result{}, fmt.Errorf("%w: event of revision %d, want %d", ErrWrong, a.revision, revision)
			}
			took = append(took, a.latency)
		case <-time.After(DeliveryTimeout):
			return Result{}, fmt.Errorf("no event after %v", DeliveryTimeout)
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		}
	}
	return Summarise(took, time.Since(first)), nil
}
