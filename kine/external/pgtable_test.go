package external

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The reason why a server cannot listen is told once, not every second.
func TestAFailureToListenIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var told []error
		go followPostgres(ctx, "h/db?sslmode=perhaps", nil, func(int64) { t.Error("it has listened") }, func(err error) { told = append(told, err) })
		time.Sleep(10 * listenAgain)
		cancel()
		synctest.Wait()
		if len(told) != 1 || told[0] == nil {
			t.Errorf("%v, want one reason", told)
		}
	})
}
