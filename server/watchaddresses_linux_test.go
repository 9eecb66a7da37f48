package server

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An error that lasts is read once a minute, not all the time; each one still makes
// the addresses be looked at. News after it are read immediately again.
func TestAddressNewsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var reads atomic.Int64
		var broken atomic.Bool
		broken.Store(true)
		news := make(chan struct{})
		changed := make(chan struct{}, 1)
		go readChanges(ctx, func([]byte) (int, error) {
			reads.Add(1)
			if broken.Load() {
				return 0, errors.New("the socket is broken")
			}
			select {
			case <-news:
				return 1, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}, changed)
		time.Sleep(time.Hour)
		synctest.Wait()
		// 0.1 + 0.2 + … + 51.2 s, and then a minute each.
		if got := reads.Load(); got < 60 || got > 75 {
			t.Errorf("%d reads in an hour, want about 69", got)
		}
		select {
		case <-changed:
		default:
			t.Error("an error does not count as a change")
		}
		broken.Store(false)
		time.Sleep(readRetryLimit)
		for range 3 {
			begun := time.Now()
			news <- struct{}{}
			<-changed
			if took := time.Since(begun); took != 0 {
				t.Errorf("told %v after the change, want immediately", took)
			}
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
	})
}
