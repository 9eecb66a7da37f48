package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

// stopSignal is the cause of the end of signalContext.
type stopSignal struct{ os.Signal }

func (s stopSignal) Error() string { return s.String() }

// oneAct is the time in which signals are one wish of one user: GNU timeout, npm and terminals send the
// same signal to a process and then to its group, which it is in.
const oneAct = time.Second

// finishing is set by commands that change a machine and take that back when they are interrupted: a second signal does not end them, and
// neither does output that nobody reads any more, as that of `| tee log` after Ctrl-C.
var finishing atomic.Bool

// finish is Before of these commands.
func finish(*cli.Context) error {
	finishing.Store(true)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // then a write fails; programs that this one starts do not inherit it
	return nil
}

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
				case s != syscall.SIGHUP && finishing.Load():
					fmt.Fprintf(os.Stderr, "karve: interrupted already, and what was changed is being taken back (kill -9 %d would leave it)\n", os.Getpid())
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
