// Package lifecycle starts the parts of a control plane in order, and stops them in
// reverse. It knows nothing about them but their names and what they need.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/karve-k8s/karve/server/startup"
)

// Part is a piece of the control plane with a life of its own.
//
// It is started when the parts that it needs are ready. A part that is switched off, and
// so is not in the list, is not waited for. Run starts the part, calls ready once it
// serves, and returns when ctx has ended and everything that it started is gone; or
// earlier, with the reason. Run calls ready at most once.
//
// What a part hands over to those that need it is complete before it calls ready.
type Part struct {
	Name  string
	Needs []string
	Run   func(ctx context.Context, ready func()) error
}

// What is being done to a part.
const (
	Starting = "starting"
	Stopping = "stopping"
)

// Failed tells [Run] that the part whose context ctx is has failed, and why, while the part
// goes on serving the parts above it until they have stopped. A part that returns instead
// takes its services away from them first: watches of a closed datastore, for example, are
// begun again and again without a pause, which holds up the stop. Only the first failure counts.
func Failed(ctx context.Context, err error) {
	if tell, ok := ctx.Value(failedKey{}).(func(error)); ok {
		tell(err)
	}
}

type failedKey struct{}

var (
	// ErrStopped is the failure of a part that returned nil before its context ended.
	ErrStopped = errors.New("stopped by itself")
	// ErrNoAnswer is what a part says about itself as long as it has nothing to say.
	ErrNoAnswer = errors.New("no answer yet")
)

// Run starts each part once those it needs are ready, at the same time where
// they need not wait for each other, calls up when all are, and waits for ctx to
// end or a part to fail. Then it stops what has started in reverse order, each
// part gone before the next is stopped.
//
//	waiting → starting → ready → stopping → gone
//	             └────────┴─ failed: stop the rest
//
// The parts' contexts carry ctx's values but not its end: storage must outlive
// an API server that drains. The error names the part that failed; it is nil
// when ctx ended first and every part stopped cleanly. It calls doing
// before each start and stop.
func Run(ctx context.Context, parts []Part, doing func(verb, name string), up func() error) error {
	type running struct {
		name   string
		cancel context.CancelFunc
		done   chan error
	}
	var started []running
	failures, isReady := make(chan error, 1), make(chan string, len(parts))
	start := func(p Part) {
		doing(Starting, p.Name)
		fail := func(err error) {
			select {
			case failures <- fmt.Errorf("%s: %w", p.Name, err):
			default: // another was first
			}
		}
		own, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), failedKey{}, fail))
		r := running{p.Name, cancel, make(chan error, 1)}
		started = append(started, r)
		go func() {
			err := p.Run(own, func() { isReady <- p.Name })
			if err == nil && own.Err() == nil {
				err = ErrStopped
			}
			r.done <- err
			if own.Err() == nil {
				fail(err)
			}
		}()
	}

	var failure error
	waiting, unready := slices.Clone(parts), names(parts)
	for len(unready) > 0 && failure == nil && ctx.Err() == nil {
		var blocked []Part
		for _, p := range waiting {
			if slices.ContainsFunc(p.Needs, func(need string) bool { return slices.Contains(unready, need) }) {
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
		doing(Stopping, p.name)
		p.cancel()
		if err := <-p.done; err != nil && !errors.Is(err, context.Canceled) &&
			(failure == nil || !errors.Is(failure, err)) {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
	}
	return errors.Join(errs...)
}

func names(parts []Part) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.Name)
	}
	return all
}

// Traced records how long a part takes to be ready.
func Traced(t *startup.Trace, p Part) Part {
	return Part{p.Name, p.Needs, func(ctx context.Context, ready func()) error {
		done := t.Part(p.Name)
		return p.Run(ctx, func() { done(); ready() })
	}}
}

// Within fails a start that takes longer than limit, naming the part and what
// it last said about itself.
func Within(limit time.Duration, p Part, last func() error) Part {
	return Part{p.Name, p.Needs, func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timer := time.AfterFunc(limit, func() {
			cancel(fmt.Errorf("not ready after %v: %w", limit, last()))
		})
		defer timer.Stop()
		err := p.Run(ctx, func() { timer.Stop(); ready() })
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			return cause
		}
		return err
	}}
}
