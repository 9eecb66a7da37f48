package load

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestDriveBounds(t *testing.T) {
	nothing := func(context.Context, int, int, int) error { return nil }
	res, err := Drive(t.Context(), Limits{Clients: 4, Ops: 10, Most: time.Minute}, nothing)
	if err != nil || res.Ops != 10 {
		t.Errorf("bounded by count: %d operations, %v, want 10", res.Ops, err)
	}
	began := time.Now()
	res, err = Drive(t.Context(), Limits{Clients: 4, Ops: 1 << 30 / 4096, Most: 50 * time.Millisecond}, func(ctx context.Context, _, _, _ int) error {
		time.Sleep(time.Millisecond)
		return nil
	})
	if took := time.Since(began); err != nil || res.Ops == 0 || took > 10*time.Second {
		t.Errorf("bounded by time: %d operations in %v, %v", res.Ops, took, err)
	}
	broken := errors.New("broken")
	if _, err := Drive(t.Context(), Limits{Clients: 4, Ops: 10, Most: time.Minute}, func(context.Context, int, int, int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("failing operation: %v, want %v", err, broken)
	}
}

// A peer must not send an event twice.
func TestFanOutRefusesOtherEvents(t *testing.T) {
	events := make(chan int64, 1)
	watch := func(ctx context.Context) (func() ([]int64, error), error) {
		return func() ([]int64, error) {
			select {
			case revision := <-events:
				return []int64{revision, revision}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, nil
	}
	_, err := FanOut(t.Context(), watch, 1, 10, time.Minute, func(_ context.Context, n int) (int64, error) {
		events <- int64(n)
		return int64(n), nil
	})
	if !errors.Is(err, ErrWrong) {
		t.Errorf("event that comes twice: %v, want %v", err, ErrWrong)
	}
}
