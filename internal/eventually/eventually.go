// Package eventually has what tests wait with. A function that takes the test fails it if what
// it waits for has not happened after [Limit], which is long enough for a machine that is busy
// with other work.
package eventually

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// Limit is how long the functions wait.
const Limit = 90 * time.Second

// pause is between two calls of a check.
const pause = 5 * time.Millisecond

// Nil calls check until it returns nil. what says what the test waits for.
func Nil(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := Poll(check); err != nil {
		t.Fatalf("%s: not after %v: %v", what, Limit, err)
	}
}

// Poll calls check until it returns nil, for tests that go on if it does not: then Poll returns
// the last error.
func Poll(check func() error) error {
	for deadline := time.Now().Add(Limit); ; time.Sleep(pause) {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
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
