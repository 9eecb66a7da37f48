//go:build !linux

package server

import (
	"context"
	"time"
)

// watchAddresses sends once a minute: whoever receives compares.
func watchAddresses(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{})
	go func() {
		tick := time.NewTicker(time.Minute)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			select {
			case changed <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return changed
}
