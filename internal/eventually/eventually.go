// Package eventually has what tests wait with. Each function fails the test if what it waits
// for has not happened after [Limit], which is long enough for a machine that is busy with
// other work. No test takes that long unless it fails.
package eventually

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// Limit is how long the functions wait.
const Limit = time.Minute

// pause is between two calls of a check.
const pause = 5 * time.Millisecond

// Nil calls check until it returns nil. what says what the test waits for.
func Nil(t testing.TB, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(Limit); ; time.Sleep(pause) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v: %v", what, Limit, err)
		}
	}
}

// True calls check until it returns true. what says what the test waits for.
func True(t testing.TB, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Limit); !check(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, Limit)
		}
	}
}

// Receive returns the next value of c, or the zero value if c is closed. what says what the
// test waits for.
func Receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("%s: not after %v", what, Limit)
		panic("not reached")
	}
}

// Goroutines waits until there are at most most goroutines in the process.
func Goroutines(t testing.TB, most int) {
	t.Helper()
	Nil(t, "goroutines end", func() error {
		n := runtime.NumGoroutine()
		if n <= most {
			return nil
		}
		stacks := make([]byte, 1<<16)
		return fmt.Errorf("there are %d, want %d:\n%s", n, most, stacks[:runtime.Stack(stacks, true)])
	})
}
