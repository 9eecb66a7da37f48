// Package load puts the load of many clients on an operation, and measures it.
package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Result is what was measured of one row.
type Result struct {
	Ops       int
	PerSecond float64
	P50, P99  time.Duration
}

// Limits say how many clients there are, and when they end: each waits for an answer before
// it asks again, until Ops operations are done or Most is over.
type Limits struct {
	Clients int
	Ops     int
	Most    time.Duration
}

// Drive calls op from many clients within the limits. worker is the number of the client, n that
// of the operation of this client, and i that of the operation of all clients, each from 0. The
// first error ends the load.
func Drive(ctx context.Context, l Limits, op func(ctx context.Context, worker, n, i int) error) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		next    atomic.Int64
		work    sync.WaitGroup
		samples = make([][]time.Duration, l.Clients)
		began   = time.Now()
	)
	for w := range l.Clients {
		work.Go(func() {
			took := make([]time.Duration, 0, l.Ops/l.Clients+1)
			for n := 0; ctx.Err() == nil; n++ {
				i := int(next.Add(1)) - 1
				asked := time.Now()
				if i >= l.Ops || asked.Sub(began) > l.Most {
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
		return Result{}, err
	}
	return Summarise(slices.Concat(samples...), elapsed), nil
}

// Summarise sorts took, and returns its Result.
func Summarise(took []time.Duration, elapsed time.Duration) Result {
	slices.Sort(took)
	return Result{
		Ops:       len(took),
		PerSecond: float64(len(took)) / elapsed.Seconds(),
		P50:       quantile(took, 0.50),
		P99:       quantile(took, 0.99),
	}
}

// quantile is the nearest-rank quantile of sorted values. It is 0 without any.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// ErrWrong is the error of a peer that gives a wrong answer, so that its speed means nothing.
var ErrWrong = errors.New("wrong answer")

// Expect returns an ErrWrong unless got is want. An err that is not nil comes first.
func Expect(got, want int, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("%w: got %d, want %d", ErrWrong, got, want)
	}
	return err
}
