package ready

import (
	"context"
	"sync"
	"time"
)

// Settling is the work that a control plane does once, some time after it is ready.
type Settling struct {
	After time.Duration
	// Do are called in order, unless the control plane stops first. Their context ends when it
	// stops.
	Do []func(context.Context)

	running sync.WaitGroup
}

// Begin starts a goroutine that does the work after the delay, unless ctx ends first.
func (s *Settling) Begin(ctx context.Context) {
	s.running.Go(func() {
		if s.After > 0 {
			timer := time.NewTimer(s.After)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		for _, do := range s.Do {
			if ctx.Err() != nil {
				return
			}
			do(ctx)
		}
	})
}

// Wait returns when no more of the work is running.
func (s *Settling) Wait() { s.running.Wait() }
