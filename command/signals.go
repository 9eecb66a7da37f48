package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

// stopSignal is the cause of the end of signalContext.
type stopSignal struct{ os.Signal }

func (s stopSignal) Error() string { return s.String() }

// signalContext ends with the first SIGINT, SIGTERM or SIGHUP, which is its cause. A second SIGINT or
// SIGTERM ends the process immediately, after the acts given to lastly. A second SIGHUP does
// not: when a terminal closes, both the terminal and its shell send one. If SIGHUP is ignored
// (nohup), it stays ignored.
func signalContext() (context.Context, func()) {
	acts := &lastActs{}
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), lastActsKey{}, acts))
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
					acts.run()
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

// lastActs are what has to be done even without a clean stop.
type lastActs struct {
	mu   sync.Mutex
	acts []*func()
}

// lastActsKey is the key of a context's lastActs.
type lastActsKey struct{}

// lastly makes the process call act before a second signal ends it, unless forget has been called.
// The newest act is called first.
func lastly(ctx context.Context, act func()) (forget func()) {
	l, ok := ctx.Value(lastActsKey{}).(*lastActs)
	if !ok {
		return func() {} // nothing handles signals
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acts = append(l.acts, &act)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.acts = slices.DeleteFunc(l.acts, func(other *func()) bool { return other == &act })
	}
}

// run calls the acts. It keeps the lock, so a clean stop that is about to forget one waits until the
// process ends.
func (l *lastActs) run() {
	l.mu.Lock()
	for _, act := range slices.Backward(l.acts) {
		(*act)()
	}
}
