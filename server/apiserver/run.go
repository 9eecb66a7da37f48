package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/karve-k8s/karve/server/insecure"
)

// readyPoll is how often a starting server is asked whether it is ready. The
// question is a function call; upstream offers no channel to wait on.
const readyPoll = 5 * time.Millisecond

// startGrace is how long a stop waits for a start that is under way.
const startGrace = 30 * time.Second

// terminationTimeout is how long a stop may take, --shutdown-delay-duration not
// counted: as long as a request (--request-timeout), which systemd allows too.
const terminationTimeout = 60 * time.Second

// Server is a built chain. Run it once.
type Server struct {
	config        Config
	delay         time.Duration // --shutdown-delay-duration
	run           func(context.Context) error
	drained       <-chan struct{}
	insecureChain http.Handler
	unfiltered    http.HandlerFunc
	notReady      atomic.Pointer[string]
}

// Run serves both listeners until ctx ends, and calls ready when /readyz says
// ok for everything but c.ReadyChecks. It returns when the termination is over
// as upstream does it: /readyz fails, --shutdown-delay-duration passes, hooks
// run, requests in flight are drained, watches closed, the audit log flushed.
// The insecure listener stays open as long as the secure one.
func (s *Server) Run(ctx context.Context, ready func()) error {
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	isReady := make(chan struct{})
	go func() {
		if s.waitReady(running) {
			close(isReady)
			ready()
		}
	}()
	go func() {
		select {
		case <-ctx.Done():
		case <-running.Done():
			return
		}
		// A post-start hook that is cut short ends the process (klog.Fatalf in
		// k8s.io/apiserver pkg/server/hooks.go): let them come to their end.
		select {
		case <-isReady:
		case <-time.After(startGrace):
		}
		stop(context.Cause(ctx))
	}()

	plain := make(chan struct{})
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	go func() {
		defer close(plain)
		if s.config.InsecureListener == nil {
			return
		}
		err := insecure.Serve(serving, s.config.InsecureListener, s.insecureChain, s.config.Insecure)
		if err != nil {
			stop(fmt.Errorf("insecure listener: %w", err))
		}
	}()
	go func() {
		select {
		case <-s.drained:
			stopServing()
		case <-serving.Done():
		}
	}()

	err := s.runBounded(running)
	stopServing()
	<-plain
	if cause := context.Cause(running); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// runBounded runs the chain, and gives up on a termination that takes longer
// than the requests in flight may. Upstream has no such limit: with storage
// gone, its pre-shutdown hooks can wait for ever.
func (s *Server) runBounded(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	limit := s.delay + terminationTimeout
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("still terminating %v after it was told to stop (is its storage gone?)", limit)
	}
}

// NotReady is what the last look at /readyz found failing.
func (s *Server) NotReady() error {
	if p := s.notReady.Load(); p != nil {
		return errors.New(*p)
	}
	return errors.New("not serving yet")
}

func (s *Server) waitReady(ctx context.Context) bool {
	exclude := url.Values{"verbose": {""}}
	for _, check := range s.config.ReadyChecks {
		exclude.Add("exclude", check.Name())
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		status, body := s.get(ctx, "/readyz?"+exclude.Encode())
		if status == http.StatusOK {
			return true
		}
		failing := strings.Join(failingChecks(body), ", ")
		s.notReady.Store(&failing)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// Healthy asks /livez and returns what fails.
func (s *Server) Healthy(ctx context.Context) error {
	status, body := s.get(ctx, "/livez?verbose")
	if status == http.StatusOK {
		return nil
	}
	return fmt.Errorf("/livez: %s", strings.Join(failingChecks(body), ", "))
}

// get asks the health endpoints directly, past all filters: no connection, no
// identity, no limit.
func (s *Server) get(ctx context.Context, path string) (int, string) {
	answer := httptest.NewRecorder()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err.Error()
	}
	s.unfiltered(answer, r)
	return answer.Code, answer.Body.String()
}

// failingChecks reads the names marked [-] in a verbose health answer.
func failingChecks(body string) []string {
	var failing []string
	for line := range strings.Lines(body) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			failing = append(failing, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(name), "failed: reason withheld")))
		}
	}
	return failing
}
