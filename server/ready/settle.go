package ready

import (
	"context"
	"sync"
	"time"
)

// Settling is what a control plane does once, some time after it is ready.
type Settling struct {
	After time.Duration
	// Do is in order. It is not done when the control plane stops before.
	Do []func()

	running sync.WaitGroup
}

// Begin waits for the time, or the end of ctx, in a goroutine of its own.
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
			do()
		}
	})
}

// Wait returns when nothing of it runs any more.
func (s *Settling) Wait() { s.running.Wait() }
