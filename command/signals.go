package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopSignal is the cause of the end of signalContext.
type stopSignal struct{ os.Signal }

func (s stopSignal) Error() string { return s.String() }

// oneAct is the time in which signals are one wish of one user: GNU timeout, npm and terminals send the
// same signal to a process and then to its group, which it is in.
const oneAct = time.Second

// signalContext ends with the first SIGINT, SIGTERM or SIGHUP, which is its cause. A SIGINT or
// SIGTERM later than oneAct ends the process immediately. A second SIGHUP never does: when a terminal
// closes, both the terminal and its shell send one. If SIGHUP is ignored (nohup), it stays ignored.
func signalContext() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	wanted := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		wanted = append(wanted, syscall.SIGHUP)
	}
	signal.Notify(signals, wanted...)
	done := make(chan struct{})
	go func() {
		for first := (time.Time{}); ; {
			select {
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					cancel(stopSignal{s})
				case s != syscall.SIGHUP && time.Since(first) >= oneAct:
					fmt.Fprintf(os.Stderr, "karve: got a second signal (%v), exiting without a clean stop\n", s)
					os.Exit(exitCodeAfter(s))
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() { signal.Stop(signals); close(done); cancel(nil) }
}

func exitCodeAfter(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return 1
}
