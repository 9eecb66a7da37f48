package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/karve-k8s/karve/server/startup"
)

// part is a piece of the control plane with a life of its own.
//
// It is started when the parts it needs are ready; those that are not there at
// all, because they are switched off, are not waited for. run starts the part,
// calls ready once it serves, and returns when ctx has ended and everything it
// started is gone; or earlier, with the reason. ready may be called at most once.
type part struct {
	name  string
	needs []string
	run   func(ctx context.Context, ready func()) error
}

// What is being done to a part.
const (
	starting = "starting"
	stopping = "stopping"
)

// failed tells runParts that the part whose context ctx is has failed, and why, while it
// goes on serving the parts above it until they have stopped. A part that returns instead
// takes its services away from them first: watches of a closed datastore, say, are begun
// again and again without a pause, which holds up the stop. Only the first failure counts.
func failed(ctx context.Context, err error) {
	if tell, ok := ctx.Value(failedKey{}).(func(error)); ok {
		tell(err)
	}
}

type failedKey struct{}

// errStopped is a part that returned nil although nobody had told it to stop.
var errStopped = errors.New("stopped by itself")

// runParts starts each part once those it needs are ready, at the same time where
// they need not wait for each other, calls up when all are, and waits for ctx to
// end or a part to fail. Then it stops what has started in reverse order, each
// part gone before the next is told to go.
//
//	waiting → starting → ready → stopping → gone
//	             └────────┴─ failed: stop the rest
//
// The parts' contexts carry ctx's values but not its end: storage must outlive
// an API server that drains. The error names the part that failed; it is nil
// when ctx ended first and every part stopped cleanly. doing is told each
// start and stop before it happens.
func runParts(ctx context.Context, parts []part, doing func(verb, name string), up func() error) error {
	type running struct {
		name   string
		cancel context.CancelFunc
		done   chan error
	}
	var started []running
	failures, isReady := make(chan error, 1), make(chan string, len(parts))
	start := func(p part) {
		doing(starting, p.name)
		fail := func(err error) {
			select {
			case failures <- fmt.Errorf("%s: %w", p.name, err):
			default: // another was first
			}
		}
		own, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), failedKey{}, fail))
		r := running{p.name, cancel, make(chan error, 1)}
		started = append(started, r)
		go func() {
			err := p.run(own, func() { isReady <- p.name })
			if err == nil && own.Err() == nil {
				err = errStopped
			}
			r.done <- err
			if own.Err() == nil {
				fail(err)
			}
		}()
	}

	var failure error
	waiting, unready := slices.Clone(parts), partNames(parts)
	for len(unready) > 0 && failure == nil && ctx.Err() == nil {
		var blocked []part
		for _, p := range waiting {
			if slices.ContainsFunc(p.needs, func(need string) bool { return slices.Contains(unready, need) }) {
				blocked = append(blocked, p)
			} else {
				start(p)
			}
		}
		waiting = blocked
		select {
		case name := <-isReady:
			unready = slices.DeleteFunc(unready, func(n string) bool { return n == name })
		case failure = <-failures:
		case <-ctx.Done():
		}
	}
	if failure == nil && ctx.Err() == nil {
		if failure = up(); failure == nil {
			select {
			case failure = <-failures:
			case <-ctx.Done():
			}
		}
	}
	errs := []error{failure}
	for i := len(started) - 1; i >= 0; i-- {
		p := started[i]
		doing(stopping, p.name)
		p.cancel()
		if err := <-p.done; err != nil && !errors.Is(err, context.Canceled) &&
			(failure == nil || !errors.Is(failure, err)) {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
	}
	return errors.Join(errs...)
}

func partNames(parts []part) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	return all
}

// traced records how long a part takes to be ready.
func traced(t *startup.Trace, p part) part {
	return part{p.name, p.needs, func(ctx context.Context, ready func()) error {
		done := t.Part(p.name)
		return p.run(ctx, func() { done(); ready() })
	}}
}

// within fails a start that takes longer than limit, naming the part and what
// it last said about itself.
func within(limit time.Duration, p part, last func() error) part {
	return part{p.name, p.needs, func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timer := time.AfterFunc(limit, func() {
			cancel(fmt.Errorf("not ready after %v: %w", limit, last()))
		})
		defer timer.Stop()
		err := p.run(ctx, func() { timer.Stop(); ready() })
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			return cause
		}
		return err
	}}
}
