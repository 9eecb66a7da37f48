package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// stopSignal is the cause of the end of signalContext.
type stopSignal struct{ os.Signal }

func (s stopSignal) Error() string { return s.String() }

// signalContext ends with the first SIGINT, SIGTERM or SIGHUP, which is its cause. A second SIGINT or
// SIGTERM ends the process immediately. A second SIGHUP does not: when a terminal closes, both the
// terminal and its shell send one. If SIGHUP is ignored (nohup), it stays ignored.
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
		for stopping := false; ; {
			select {
			case s := <-signals:
				switch {
				case !stopping:
					stopping = true
					cancel(stopSignal{s})
				case s != syscall.SIGHUP:
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
