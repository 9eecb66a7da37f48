package eventually

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that records how it fails.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	panic(f)
}

func TestWaitsEndWithTheLimit(t *testing.T) {
	for name, wait := range map[string]func(testing.TB){
		"Nil":        func(t testing.TB) { Nil(t, "it", func() error { return errors.New("no") }) },
		"True":       func(t testing.TB) { True(t, "it", func() bool { return false }) },
		"Receive":    func(t testing.TB) { Receive(t, "it", make(chan int)) },
		"Goroutines": func(t testing.TB) { Goroutines(t, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &failing{TB: t}
				began := time.Now()
				func() {
					defer func() { _ = recover() }()
					wait(f)
				}()
				if took := time.Since(began); f.message == "" || !strings.Contains(f.message, Limit.String()) || took < Limit || took > 2*Limit {
					t.Errorf("after %v: got %q, want a failure after %v", took, f.message, Limit)
				}
			})
		})
	}
}

func TestWaitsEndWithTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 10 * time.Second
		began := time.Now()
		happened := func() bool { return time.Since(began) >= after }
		True(t, "it", happened)
		Nil(t, "it", func() error {
			if !happened() {
				return errors.New("no")
			}
			return nil
		})
		c := make(chan int)
		go func() {
			time.Sleep(after)
			c <- 7
		}()
		if got := Receive(t, "it", c); got != 7 {
			t.Errorf("got %d, want 7", got)
		}
		if took := time.Since(began); took < 2*after || took > 2*after+time.Second {
			t.Errorf("took %v, want %v", took, 2*after)
		}
	})
	Goroutines(t, 1000)
}
