package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// result is what one row measured. Times are in milliseconds.
type result struct {
	Row       string  `json:"row"`
	Ops       int     `json:"ops"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	// CPU is what one operation cost the peer and its client together, in
	// microseconds.
	CPU float64 `json:"cpu_us_per_op"`
}

// A load is a number of clients that each wait for an answer before they ask
// again, until ops are done or most is over.
type load struct {
	clients int
	ops     int
	most    time.Duration
}

// drive puts a load on op. worker counts the clients, n the operations of that
// client, and i those of all of them; each from 0.
func drive(ctx context.Context, l load, op func(ctx context.Context, worker, n, i int) error) (result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		next    atomic.Int64
		work    sync.WaitGroup
		samples = make([][]time.Duration, l.clients)
		began   = time.Now()
	)
	for w := range l.clients {
		work.Go(func() {
			took := make([]time.Duration, 0, l.ops/l.clients+1)
			for n := 0; ctx.Err() == nil; n++ {
				i := int(next.Add(1)) - 1
				asked := time.Now()
				if i >= l.ops || asked.Sub(began) > l.most {
					break
				}
				if err := op(ctx, w, n, i); err != nil {
					cancel(err)
					break
				}
				took = append(took, time.Since(asked))
			}
			samples[w] = took
		})
	}
	work.Wait()
	elapsed := time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return result{}, err
	}
	return summarise(slices.Concat(samples...), elapsed), nil
}

// summarise sorts took.
func summarise(took []time.Duration, elapsed time.Duration) result {
	slices.Sort(took)
	return result{
		Ops:       len(took),
		PerSecond: float64(len(took)) / elapsed.Seconds(),
		P50:       milliseconds(quantile(took, 0.50)),
		P99:       milliseconds(quantile(took, 0.99)),
	}
}

// quantile is the nearest-rank quantile of sorted values, 0 without any.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
